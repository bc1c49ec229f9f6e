"""Spans of what is sent: the object that makes them, and the one that makes none. Never raises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from forebay_schemas.contract.headers import Header
from forebay_schemas.contract.tiers import Tier

if TYPE_CHECKING:
    from forebay_producer.client.prepare import Prepared

SentHeaders = list[tuple[str, str | bytes | None]]
"""As confluent-kafka takes them."""


class ReplayRecord(Protocol):
    """What a span shows of a replayed dead letter: the record that is sent, and why the request died."""

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
        """The headers that it is to be sent with: those given, and the span's own."""
        ...

    def delivered(self, partition: int, offset: int) -> None:
        """The broker has it."""

    def failed(self, error: str) -> None:
        """It has not, or nobody knows: ``error`` is the reason's word."""


class SendTracing(Protocol):
    """Begins a span for each record. From any thread: a span's parent is the caller's own."""

    def sending(self, prepared: Prepared, topic: str) -> SendSpan:
        """A request is submitted, below the span that its traceparent names, else below the caller's."""
        ...

    def replaying(self, replay: ReplayRecord, *, run_id: str) -> SendSpan:
        """A dead letter is replayed, in the trace of the request that it was."""
        ...

    def close(self) -> None:
        """Exports what is left, for a bounded time."""


class _NoSpan:
    def headers(self, given: Sequence[Header]) -> SentHeaders | None:
        return [*given] if given else None

    def delivered(self, partition: int, offset: int) -> None:
        """Nothing."""

    def failed(self, error: str) -> None:
        """Nothing."""


_NO_SPAN: Final = _NoSpan()


class NoTracing:
    """Nothing is recorded, and headers are sent as they are."""

    def sending(self, prepared: Prepared, topic: str) -> SendSpan:  # noqa: ARG002 - as its protocol has it
        return _NO_SPAN

    def replaying(self, replay: ReplayRecord, *, run_id: str) -> SendSpan:  # noqa: ARG002
        return _NO_SPAN

    def close(self) -> None:
        """Nothing."""


NO_TRACING = NoTracing()
