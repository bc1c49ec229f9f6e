"""A program: the command `forebay`, killed right before its producer gets the n-th record of a kind, or a while after.

``python -m harness.killed_replay KIND NUMBER SECONDS ARGUMENT...``; a kind is an action of the audit topic, or
``request`` for what goes anywhere else.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import msgspec
from confluent_kafka import Producer

from forebay_producer.cli.app import main
from forebay_producer.dead_letters.runs import lease as dead_letters_run


def _killing(kind: str, number: int, seconds: float) -> type[Producer]:
    left = number

    class KillingProducer(Producer):
        def produce(self, topic: str, value: Any = None, *arguments: Any, **options: Any) -> None:
            nonlocal left
            found = msgspec.json.decode(value)["action"] if topic.endswith(".audit") else "request"
            left -= found == kind
            if found == kind and left == 0 and seconds == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            super().produce(topic, value, *arguments, **options)
            if found == kind and left == 0:
                time.sleep(seconds)
                os.kill(os.getpid(), signal.SIGKILL)

    return KillingProducer


if __name__ == "__main__":
    killing = _killing(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
    setattr(dead_letters_run, "Producer", killing)  # noqa: B010 - it is not exported
    sys.argv[1:] = sys.argv[4:]
    main()
