"""One request on its way through the worker, and the small values its stages hand to each other. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from forebay_schemas.envelope import Request
from forebay_schemas.errors import EnvelopeError
from forebay_schemas.headers import Header, History, record_headers
from forebay_schemas.reasons import Reason
from forebay_schemas.tiers import Tier
from forebay_worker.offsets import Claims, PartitionOffsets


class Record(Protocol):
    """A record as confluent-kafka's Message gives it; the simulated broker gives the same."""

    def topic(self) -> Any: ...
    def partition(self) -> Any: ...
    def offset(self) -> Any: ...
    def key(self) -> Any: ...
    def value(self) -> Any: ...
    def headers(self) -> Any: ...
    def set_headers(self, value: Any, /) -> Any: ...
    def timestamp(self) -> Any: ...
    def error(self) -> Any: ...


class Assignment:
    """One partition for as long as this worker owns it. A later assignment of the same partition is another object.

    ``offsets`` belongs to the consumer's thread. ``claims`` is shared, and closed when the partition is given up.
    ``done`` takes finished offsets from the event loop's thread to the consumer's.
    """

    __slots__ = ("claims", "done", "epoch", "offsets", "partition", "tier", "topic")

    def __init__(self, *, topic: str, partition: int, tier: Tier, epoch: int, offsets: PartitionOffsets) -> None:
        self.topic = topic
        self.partition = partition
        self.tier = tier
        self.epoch = epoch
        self.offsets = offsets
        self.claims = Claims()
        self.done: deque[int] = deque()


class Work(msgspec.Struct, gc=False):
    """A record that the worker owns until its outcome is durable.

    ``request`` is None when the record could not be decoded: then ``problem`` says why. Times: ``first_enqueued_at``
    and ``deadline_ms`` in epoch milliseconds, ``started`` and ``failed_at`` in monotonic seconds of the last execution.
    ``awaiting``: records of its outcome that are not yet delivered.
    """

    record: Record
    assignment: Assignment
    offset: int
    size_bytes: int
    history: History
    first_enqueued_at: int
    request: Request | None = None
    problem: EnvelopeError | None = None
    priority: int = 0
    deadline_ms: int = 0
    started: float = 0.0
    failed_at: float = 0.0
    failures_among_answers: int = 0
    awaiting: int = 0

    @property
    def tier(self) -> Tier:
        return self.assignment.tier

    @property
    def request_id(self) -> str | None:
        if self.request is not None:
            return self.request.request_id
        return self.problem.request_id if self.problem is not None else None

    def headers(self) -> list[Header]:
        """The record's headers as they came."""
        return record_headers(self.record)


class Answer(msgspec.Struct, frozen=True, gc=False):
    """What the backend gave: ``body`` is JSON, as bytes in ``msgspec.Raw`` or as objects."""

    body: Any
    prompt_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an execution failed. ``error`` is for people. ``retry_after_seconds``: the backend's own wish.

    ``of_backend``: the failure speaks of the backend's state; whether it counts against the request is the breaker's
    to say.
    """

    reason: Reason
    error: str
    of_backend: bool = False
    retry_after_seconds: float | None = None
