"""What interrupts a run, and after which of it the run tries again."""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError

from forebay_schemas.errors import BrokerUnreachableError, ForebayError, TopicMissingError
from forebay_schemas.kafka.errors import is_unreachable
from forebay_schemas.kafka.transient import PASSING

# What a client says of purged records.
_ALSO_PASSING: Final = {KafkaError._PURGE_INFLIGHT, KafkaError._PURGE_QUEUE, KafkaError._STATE}


class InterruptedRunError(ForebayError):
    """Whoever started the run wants it to stop."""

    reason = "interrupted"


class LostTurnError(ForebayError):
    """The run must ask for its turn anew. ``cause``: what went wrong, None when only time has passed."""

    reason = "lost_turn"

    def __init__(self, cause: ForebayError | None) -> None:
        super().__init__("the run lost its turn" if cause is None else str(cause))
        self.cause = cause


PASSING_ERRORS: Final = (LostTurnError, BrokerUnreachableError, TopicMissingError)
"""What a run tries again after: its topics were there when it began, so one that is missing comes back."""


def is_passing_failure(error: KafkaError) -> bool:
    """Whether trying again may help, with a new client if need be; what failed so may have been written."""
    return (
        is_unreachable(error, known=True)
        or error.retriable()
        or error.fatal()
        or error.code() in PASSING
        or error.code() in _ALSO_PASSING
    )
