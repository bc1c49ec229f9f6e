"""What workers tell each other on the coordination topic. Pure.

A notice speaks of offsets of a partition that its worker has let go of, but whose requests it still runs or ran. A
capacity says what a worker does and may do at its backend. A clock probe is neither.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

import msgspec

from forebay_schemas.contract.tiers import TTL_MS_MAX, Tier, TierTimes, tier_times

LEASE_SECONDS = 10.0
"""Lease of a hand-over: how long the new owner withholds requests after the last notice that they run."""

RENEW_SECONDS = 3.0
"""Interval of notices about running requests."""

CAPACITY_SECONDS = 1.0
"""Interval of capacities; shorter while shares change hands."""

GONE_SECONDS = 15.0
"""A worker without a capacity for this long is gone, and its share is free."""


REQUESTS_MAX = 100_000
"""As many as any limit may be (`FOREBAY_LIMIT_MAX`); of what waits no more is said either."""

SERVICE_SECONDS_MIN = 1e-4
SECONDS_MAX = 604_800.0
"""A week. What is said of durations lies between; that of a request above the first."""

PER_SECOND_MAX = 1e6
BACKEND_CHARS_MAX = 2048

_Id = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{1,200}\Z")]
_Topic = Annotated[str, msgspec.Meta(min_length=1, max_length=249)]
_Partition = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_TopicId = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Offsets = Annotated[list[_Offset], msgspec.Meta(max_length=REQUESTS_MAX)]


class NoticeKind(StrEnum):
    """The state of the offsets."""

    RUNNING = "running"
    """Still running: renews the lease."""

    FINISHED = "finished"
    """Their outcomes are durable: the new owner must not run them."""

    RELEASED = "released"
    """Returned without an outcome: the new owner may run them now."""

    LAST_COMMIT = "last_commit"
    """A commit that the broker refused while the partition was revoked; it is valid all the same."""


LASTING_KINDS = frozenset({NoticeKind.FINISHED, NoticeKind.RELEASED, NoticeKind.LAST_COMMIT})
"""What stays true; that something runs means something for the length of a lease. A last commit says whose it was, so
that it does not speak of what a later owner did."""


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """One record of the coordination topic, keyed by the worker's id.

    ``offsets`` for the first three kinds; ``committed`` and ``metadata``, as in a commit, for the last. ``topic_id``:
    as in a commit; of a topic that was made anew since, the notice says nothing.
    """

    kind: NoticeKind
    worker: _Id
    topic: _Topic
    partition: _Partition
    offsets: _Offsets = []
    committed: _Offset | None = None
    metadata: str | None = None
    topic_id: _TopicId | None = None


_Requests = Annotated[int, msgspec.Meta(ge=0, le=REQUESTS_MAX)]
_Limit = Annotated[float, msgspec.Meta(ge=0, le=REQUESTS_MAX)]
_Counter = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
_PerSecond = Annotated[float, msgspec.Meta(ge=0, le=PER_SECOND_MAX)]
_ServiceSeconds = Annotated[float, msgspec.Meta(ge=SERVICE_SECONDS_MIN, le=SECONDS_MAX)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=SECONDS_MAX)]
_Milliseconds = Annotated[int, msgspec.Meta(ge=1, le=TTL_MS_MAX)]


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker does and may do at its backend; about once a second, keyed by the worker's id.

    ``backend``: host, port and path of its URL, or ``handler/`` and the worker's id, since a handler is shared with
    nobody. ``limit_requests``: what its policy finds for all workers on the backend together; it has a fraction.
    ``share_requests``: what it may have in flight itself. ``claim_requests``: what it asks for; what is above its share
    becomes its own as far as the others leave it, when this record is read. ``in_flight``: what it has now, may be
    more than a share that was lowered. ``wanted``: of each tier, what runs and what waits to run.
    ``ended_per_second`` and ``service_seconds`` (None before the first answer) are means of the last seconds.
    ``dropped_total``: given up for their deadlines. ``cuts_total``: how often the backend itself made it cut its limit.
    ``fitted_seconds``: what it has learnt that a step of the engine takes, a sequence in it, and a prompt token in it;
    None before the first answer.
    ``tier_ttl_ms`` and ``tier_wait_ms``: the deadlines it gives to requests that name none, and the waits it tolerates;
    a worker of a version that does not say them has the defaults.
    ``incarnation``: epoch milliseconds of its process's start, so that two processes of one id are two. ``sequence``
    counts that process's records up. A record of which any figure is out of its bounds is none.
    ``load``: see `worker_load`.
    """

    worker: _Id
    backend: Annotated[str, msgspec.Meta(min_length=1, max_length=BACKEND_CHARS_MAX)]
    limit_requests: _Limit
    share_requests: _Requests
    in_flight: _Requests
    wanted: dict[Tier, _Requests]
    ended_per_second: _PerSecond
    service_seconds: _ServiceSeconds | None
    draining: bool
    claim_requests: _Requests = 0
    dropped_total: _Counter = 0
    cuts_total: _Counter = 0
    fitted_seconds: tuple[_Seconds, _Seconds, _Seconds] | None = None
    tier_ttl_ms: dict[Tier, _Milliseconds] = {}
    tier_wait_ms: dict[Tier, _Milliseconds] = {}
    incarnation: _Counter = 0
    sequence: _Counter = 0
    load: msgspec.Raw = msgspec.Raw(b"null")
    kind: Literal["capacity"] = "capacity"

    @property
    def times(self) -> TierTimes:
        """The worker's deadlines and waits, by tier."""
        return tier_times(self.tier_ttl_ms, self.tier_wait_ms)


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Notice)
_capacity_decoder = msgspec.json.Decoder(Capacity)


def encode_notice(notice: Notice) -> bytes:
    """The record value."""
    return _encoder.encode(notice)


def encode_clock_probe(worker: str) -> bytes:
    """A record without content: its sender only needs the broker's timestamp."""
    return _encoder.encode({"kind": "clock", "worker": worker})


def decode_notice(value: bytes) -> Notice | None:
    """Decodes a notice; None for other records, as the topic may carry more kinds."""
    try:
        return _decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def encode_capacity(capacity: Capacity) -> bytes:
    """The record value."""
    return _encoder.encode(capacity)


def decode_capacity(value: bytes | None) -> Capacity | None:
    """Decodes a capacity; None for other records, and for one with an invalid figure."""
    if value is None or b'"capacity"' not in value:
        return None
    try:
        return _capacity_decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
