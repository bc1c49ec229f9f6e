"""What the worker tells tracing of each request, and the object that hears it: chosen once, at the start.

Everything here is called on the event loop's thread, never blocks and never raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from forebay_schemas.contract.headers import TRACEPARENT, Header
from forebay_schemas.contract.reasons import Reason
from forebay_schemas.contract.trace_context import parse_traceparent
from forebay_worker.request.work import Work

if TYPE_CHECKING:
    from forebay_worker.request.backend import Backend


class Tracing(Protocol):
    """Hears of each request. ``now`` is monotonic seconds, ``now_ms`` the brokers' epoch milliseconds."""

    def started(self, work: Work, now: float, now_ms: int) -> None:
        """An execution begins."""

    def execution_ended(self, work: Work, now: float, *, error: str | None) -> None:
        """It has ended; ``error`` is the code of why it failed, None when it did not."""

    def decided(self, work: Work, reason: Reason) -> None:
        """How the request ends is known, whether it ran or not; its records are on their way."""

    def passed_on(self, work: Work, status: str, reason: Reason | None = None) -> None:
        """It ends here and goes on elsewhere: ``retried``, ``expedited``; or it had ended before: ``duplicate``."""

    def release(self, work: Work) -> None:
        """Another worker runs it, or this one later: it has no outcome here."""

    def delivered(self, work: Work, now: float) -> None:
        """All that was to be written of its end is durable."""

    def onward(self, work: Work) -> Mapping[str, str]:
        """Headers for the record that carries it on: a retry, an expedited one, a dead letter."""
        ...

    def result_headers(self, work: Work) -> list[Header] | None:
        """Headers for its result."""
        ...

    def around(self, backend: Backend) -> Backend:
        """The backend, with its calls traced."""
        ...

    def close(self) -> None:
        """Exports what is left, for a bounded time. Blocks: to be called when all else is done."""


class NoTracing:
    """Nothing is recorded; a record's own traceparent goes where the request goes."""

    def started(self, work: Work, now: float, now_ms: int) -> None:
        """Nothing."""

    def execution_ended(self, work: Work, now: float, *, error: str | None) -> None:
        """Nothing."""

    def decided(self, work: Work, reason: Reason) -> None:
        """Nothing."""

    def passed_on(self, work: Work, status: str, reason: Reason | None = None) -> None:
        """Nothing."""

    def release(self, work: Work) -> None:
        """Nothing."""

    def delivered(self, work: Work, now: float) -> None:
        """Nothing."""

    def onward(self, work: Work) -> Mapping[str, str]:  # noqa: ARG002 - as its protocol has it
        return {}

    def result_headers(self, work: Work) -> list[Header] | None:
        # What breaks the format may be of any size, and a result must not grow by it.
        found = parse_traceparent(work.history.traceparent)
        return None if found is None else [(TRACEPARENT, str(found).encode())]

    def around(self, backend: Backend) -> Backend:
        return backend

    def close(self) -> None:
        """Nothing."""


NO_TRACING = NoTracing()
