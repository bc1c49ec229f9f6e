"""One request on its way through the worker, and the small values its stages hand to each other. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from forebay_schemas.contract import headers
from forebay_schemas.contract.envelope import Request
from forebay_schemas.contract.headers import TRACEPARENT, History
from forebay_schemas.contract.reasons import Reason
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.errors import EnvelopeError
from forebay_worker.partition.assignment import Assignment
from forebay_worker.request.prediction import Prediction


class Record(headers.Record, Protocol):
    """A record as confluent-kafka's Message gives it; the simulated broker gives the same."""

    def topic(self) -> Any: ...
    def error(self) -> Any: ...


class Traced(Protocol):
    """What tracing keeps of a request."""

    @property
    def headers(self) -> Mapping[str, str]:
        """What tells whoever works on it now which span that is for."""
        ...


class Failures(msgspec.Struct, gc=False):
    """A request's failures in this worker that did not count as attempts. The failure policy alone writes them.

    - ``last_at``: monotonic seconds of the last one.
    - ``among_answers``: failures after other requests had been answered.
    - ``lone_tries``: further executions with no other request to compare with.
    """

    last_at: float
    among_answers: int = 0
    lone_tries: int = 0


class StreamSink(Protocol):
    """Takes the events of one execution's streamed answer as they come. Never raises, never waits."""

    usage_added: bool
    """Whether the backend was asked for a usage that the payload does not ask for: it is left out."""

    def add(self, name: bytes, data: bytes, choices: Any, rest: Any, has_text: bool) -> None:
        """An event that is a part of the answer: its name, its data as JSON, the ``choices`` in that (None without)
        and the ``rest`` of it, decoded; ``has_text``: whether text has come by now."""
        ...


class Work(msgspec.Struct, gc=False):
    """A record that the worker owns until its outcome is durable. One stage writes each group of fields.

    The intake:

    - ``request``: None for a record that could not be decoded; then ``problem`` says why. While both are None, the
      record's schema is not known yet.
    - ``first_enqueued_at``, ``deadline_ms``: epoch milliseconds.
    - ``crashes``: workers that died while running it.
    - ``is_named_by_key``: its own id cannot be used; its key stands for it, which others may share.

    Arrival in a lane:

    - ``prompt_tokens``, ``output_tokens``: predicted. ``output_tokens_min``: predicted with luck.
    - ``cost_seconds``: predicted engine time; 0 when unknown. ``arrived``: monotonic seconds.
    - ``estimated_wait_seconds``: the wait estimated on arrival; below 0 when none was.

    Dispatch:

    - ``started``: monotonic seconds of the last execution. ``predicted_seconds``: its predicted length; 0 when unknown.
    - ``executions``: executions in this worker. ``failures``: those that did not count; None without any.

    The reporter:

    - ``outcome``: why it ended; None until then, and for a request that goes on in another topic.
    - ``awaiting``: records of its outcome that are not delivered yet.

    ``stream`` belongs to streaming: where the events of the present execution go; None for a request that nobody
    follows. ``trace`` belongs to tracing; None without it.
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
    failures: Failures | None = None
    outcome: Reason | None = None
    awaiting: int = 0
    crashes: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    output_tokens_min: int = 0
    cost_seconds: float = 0.0
    arrived: float = 0.0
    estimated_wait_seconds: float = -1.0
    predicted_seconds: float = 0.0
    prediction: Prediction | None = None
    executions: int = 0
    is_named_by_key: bool = False
    stream: StreamSink | None = None
    trace: Traced | None = None

    @property
    def is_read(self) -> bool:
        """Whether it is known what the record says, or that it says nothing."""
        return self.request is not None or self.problem is not None

    @property
    def tier(self) -> Tier:
        return self.assignment.tier

    @property
    def attempt(self) -> int:
        """The number of this execution among those that count: 1 for the first."""
        return self.history.attempt

    @property
    def failed_at(self) -> float:
        """Monotonic seconds of the last failure that did not count; 0 without one."""
        return 0.0 if self.failures is None else self.failures.last_at

    @property
    def traceparent(self) -> str | None:
        """Which trace it belongs to: by the present span, else as its record came with it."""
        return self.history.traceparent if self.trace is None else self.trace.headers[TRACEPARENT]

    @property
    def trace_headers(self) -> Mapping[str, str]:
        """The same for whoever is asked to work on it."""
        if self.trace is not None:
            return self.trace.headers
        return {} if self.history.traceparent is None else {TRACEPARENT: self.history.traceparent}

    @property
    def request_id(self) -> str | None:
        if self.request is not None:
            return self.request.request_id
        return self.problem.request_id if self.problem is not None else None


def comes_again(work: Work) -> bool:
    """Whether it is read once more, since its topic was made anew at about the time when it was written."""
    void_from_ms = work.assignment.void_from_ms
    return void_from_ms < math.inf and bool(work.record.timestamp()[1] >= void_from_ms)


class Answer(msgspec.Struct, frozen=True, gc=False):
    """What the backend gave: ``body`` is JSON, as bytes in ``msgspec.Raw`` or as objects.

    ``content_chunks``: of a stream, the chunks that carried text. ``first_token_seconds``: from the start of the
    execution to the first of them. ``usage_added``: whether the tokens were counted because Forebay asked for it.
    """

    body: Any
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    content_chunks: int | None = None
    first_token_seconds: float | None = None
    usage_added: bool = False

    @property
    def output_tokens_seen(self) -> int | None:
        """For who learns from it: the tokens that the backend counted, else the chunks that stand for them."""
        return self.output_tokens if self.output_tokens is not None else (self.content_chunks or None)


class FailureScope(StrEnum):
    """What a failure is about. Whether one of the backend counts against its request is the breaker's decision."""

    REQUEST = "request"
    """The request, as far as one failure alone can show."""
    BACKEND = "backend"
    """The backend's state: it broke off, or says that it cannot serve."""
    OVERLOAD = "overload"
    """The backend refused the request because it has too much to do."""
    CONNECTION = "connection"
    """No connection: no byte of the request can have reached the backend."""


class Retry(StrEnum):
    """Whether the same request may succeed later."""

    BY_REASON = "by_reason"
    """As the reason says."""
    ALLOWED = "allowed"
    FORBIDDEN = "forbidden"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an execution failed. ``error`` is for people. ``http_status``: the one that the answer counts as, if there
    was one. ``retry_after_seconds``: the wait that the backend asked for. ``given_status``, ``error_body``: the own
    status and body (JSON) of an answer that is an error; None where there is none."""

    reason: Reason
    error: str
    scope: FailureScope = FailureScope.REQUEST
    retry: Retry = Retry.BY_REASON
    http_status: int | None = None
    retry_after_seconds: float | None = None
    given_status: int | None = None
    error_body: msgspec.Raw | None = None

    @property
    def of_backend(self) -> bool:
        """Whether it is about the backend's state."""
        return self.scope is not FailureScope.REQUEST

    @property
    def reached(self) -> bool:
        """Whether the backend can have received any of the request."""
        return self.scope is not FailureScope.CONNECTION

    @property
    def may_retry(self) -> bool:
        """Whether another execution may succeed."""
        return self.reason.retryable if self.retry is Retry.BY_REASON else self.retry is Retry.ALLOWED
