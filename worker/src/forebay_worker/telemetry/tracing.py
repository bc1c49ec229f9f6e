"""The tracing events of a request, and the object that receives them: chosen once, at the start.

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
    """Receives the events of each request. ``now``: monotonic seconds. ``now_ms``: the brokers' epoch milliseconds."""

    def started(self, work: Work, now: float, now_ms: int) -> None:
        """An execution begins."""

    def execution_ended(self, work: Work, now: float, *, error: str | None) -> None:
        """The execution has ended; ``error``: code of the failure, None for a success."""

    def decided(self, work: Work, reason: Reason) -> None:
        """The request's outcome is known, whether it ran or not; its records are in flight."""

    def passed_on(self, work: Work, status: str, reason: Reason | None = None) -> None:
        """It ends here and continues elsewhere: ``retried``, ``expedited``; or it had ended before: ``duplicate``."""

    def release(self, work: Work) -> None:
        """The request is released without an outcome: another worker runs it, or this one later."""

    def delivered(self, work: Work, now: float) -> None:
        """All records of its outcome are durable."""

    def onward(self, work: Work) -> Mapping[str, str]:
        """Headers for the record that continues the request: a retry, an expedited one, a dead letter."""
        ...

    def result_headers(self, work: Work) -> list[Header] | None:
        """Headers for its result."""
        ...

    def around(self, backend: Backend) -> Backend:
        """The backend, with its calls traced."""
        ...

    def close(self) -> None:
        """Exports the remaining spans, for a bounded time. Blocks: call it last."""


class NoTracing:
    """Records nothing; a record's own traceparent goes wherever the request goes."""

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
        # An invalid value may be of any size, and must not enlarge a result.
        found = parse_traceparent(work.history.traceparent)
        return None if found is None else [(TRACEPARENT, str(found).encode())]

    def around(self, backend: Backend) -> Backend:
        return backend

    def close(self) -> None:
        """Nothing."""


NO_TRACING = NoTracing()
