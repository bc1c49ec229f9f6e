"""Spans of sent records: the protocols, and the implementation that records nothing. Never raises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from forebay_schemas.contract.headers import Header
from forebay_schemas.contract.tiers import Tier

if TYPE_CHECKING:
    from forebay_producer.client.prepare import Prepared

SentHeaders = list[tuple[str, str | bytes | None]]
"""Headers in confluent-kafka's form."""


class ReplayRecord(Protocol):
    """The attributes of a replayed dead letter that its span shows."""

    @property
    def topic(self) -> str: ...
    @property
    def tier(self) -> Tier: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[Header]: ...
    @property
    def request_id(self) -> str: ...
    @property
    def replay_count(self) -> int: ...
    @property
    def reason(self) -> str | None: ...


class SendSpan(Protocol):
    """One record on its way to the broker."""

    def headers(self, given: Sequence[Header]) -> SentHeaders | None:
        """The headers to send the record with: those given, and the span's own."""
        ...

    def delivered(self, partition: int, offset: int) -> None:
        """The broker has acknowledged the record."""

    def failed(self, error: str) -> None:
        """The record failed or was not acknowledged. ``error``: the error's reason code."""


class SendTracing(Protocol):
    """Begins a span for each record. From any thread: a span's parent is the caller's own."""

    def sending(self, prepared: Prepared, topic: str) -> SendSpan:
        """Starts the span of a submit: a child of the span in its traceparent, else of the caller's span."""
        ...

    def replaying(self, replay: ReplayRecord, *, run_id: str) -> SendSpan:
        """Starts the span of a replay, in the trace of the original request."""
        ...

    def close(self) -> None:
        """Exports the remaining spans, for a bounded time."""


class _NoSpan:
    def headers(self, given: Sequence[Header]) -> SentHeaders | None:
        return [*given] if given else None

    def delivered(self, partition: int, offset: int) -> None:
        """Nothing."""

    def failed(self, error: str) -> None:
        """Nothing."""


_NO_SPAN: Final = _NoSpan()


class NoTracing:
    """Records nothing; headers are sent unchanged."""

    def sending(self, prepared: Prepared, topic: str) -> SendSpan:  # noqa: ARG002 - as its protocol has it
        return _NO_SPAN

    def replaying(self, replay: ReplayRecord, *, run_id: str) -> SendSpan:  # noqa: ARG002
        return _NO_SPAN

    def close(self) -> None:
        """Nothing."""


NO_TRACING = NoTracing()
