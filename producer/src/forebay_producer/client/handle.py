"""What a submit returns: the position of a request in Kafka, and what may be done with it. No I/O of its own: its
producer does the work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from forebay_producer.client.control_client import ControlAnswer
from forebay_producer.client.sender import Submitted
from forebay_schemas.contract.results import Result

if TYPE_CHECKING:
    from forebay_producer.client.client import Producer

CONTROL_WAIT_SECONDS: Final = 5.0
"""Default wait for a worker's answer to a cancel or an expedite."""


class Handle(Submitted, frozen=True, gc=False, kw_only=True):
    """A submitted request: its position in Kafka, and methods to cancel it, expedite it or wait for its outcome."""

    producer: Producer

    def cancel(self, *, wait_seconds: float = CONTROL_WAIT_SECONDS) -> ControlAnswer:
        """As `Producer.cancel`."""
        return self.producer.cancel(self, wait_seconds=wait_seconds)

    def expedite(self, *, wait_seconds: float = CONTROL_WAIT_SECONDS) -> ControlAnswer:
        """As `Producer.expedite`."""
        return self.producer.expedite(self, wait_seconds=wait_seconds)

    def outcome(self, *, timeout_seconds: float) -> Result:
        """As `Producer.outcome`."""
        return self.producer.outcome(self, timeout_seconds=timeout_seconds)
