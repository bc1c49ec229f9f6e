"""The errors that interrupt a run, and those after which it tries again."""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError

from forebay_schemas.errors import BrokerUnreachableError, ForebayError, TopicMissingError
from forebay_schemas.kafka.errors import is_unreachable
from forebay_schemas.kafka.transient import TRANSIENT

# Error codes of purged records.
_ALSO_TRANSIENT: Final = {KafkaError._PURGE_INFLIGHT, KafkaError._PURGE_QUEUE, KafkaError._STATE}


class InterruptedRunError(ForebayError):
    """The user wants the run to stop."""

    reason = "interrupted"


class LostTurnError(ForebayError):
    """The run lost its lease and must request it again. ``cause``: None if only time has passed."""

    reason = "lost_turn"

    def __init__(self, cause: ForebayError | None) -> None:
        super().__init__("the run lost its turn" if cause is None else str(cause))
        self.cause = cause


TRANSIENT_ERRORS: Final = (LostTurnError, BrokerUnreachableError, TopicMissingError)
"""Errors after which a run tries again. Its topics existed at its start, so a missing one will return."""


def is_transient_failure(error: KafkaError) -> bool:
    """Whether a retry may help, with a new client if necessary. The failed record may have been written."""
    return (
        is_unreachable(error, known=True)
        or error.retriable()
        or error.fatal()
        or error.code() in TRANSIENT
        or error.code() in _ALSO_TRANSIENT
    )
