"""A dead letter as a line of JSON that preserves its bytes. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from forebay_producer.dead_letters.letter import Letter
from forebay_producer.dead_letters.state import State
from forebay_producer.dead_letters.views import bytes_shown
from forebay_schemas.runtime.terminal import printable_json

_encoder: Final = msgspec.json.Encoder()


def export_line(letter: Letter, state: State, *, topic: str) -> bytes:
    """One line, with its end.

    ``topic``, ``partition``, ``offset``, ``timestamp`` (epoch milliseconds): the dead letter's own. ``key``, ``value``
    and the second of each pair in ``headers``: null where there is none, a string where the bytes are UTF-8, else
    ``{"base64": "..."}``. ``request_id``, ``reason``, ``state`` are there to search by; all of it is in the rest.
    """
    line = {
        "request_id": letter.request_id,
        "reason": letter.reason,
        "state": state.value,
        "topic": topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "timestamp": letter.at_ms,
        "key": bytes_shown(letter.key),
        "value": bytes_shown(letter.value),
        "headers": [[name, bytes_shown(value)] for name, value in letter.headers],
    }
    text = _encoder.encode(line)
    # ASCII escapes are read alike by Python and all other parsers, and cannot control a terminal.
    return (text if text.isascii() and b"\x7f" not in text else printable_json(text.decode()).encode()) + b"\n"
