"""What workers tell each other on the coordination topic. Pure.

A notice speaks of offsets of a partition that its worker has let go of, but whose requests it still runs or ran. A
capacity says what a worker does and may do at its backend. A clock probe is neither.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

import msgspec

from forebay_schemas.tiers import Tier

LEASE_SECONDS = 10.0
"""A new owner withholds what it was handed over for so long after it last heard that it still runs."""

RENEW_SECONDS = 3.0
"""How often a worker says what it still runs."""

CAPACITY_SECONDS = 1.0
"""How often a worker says its capacity; more often while shares change hands."""

GONE_SECONDS = 15.0
"""A worker whose capacity was not heard for so long is gone, and its share is the others'."""


class NoticeKind(StrEnum):
    """What became of the offsets."""

    RUNNING = "running"
    """Still being executed: the lease begins anew."""

    FINISHED = "finished"
    """Their outcomes are durable: the new owner must not run them."""

    RELEASED = "released"
    """Given back without an outcome: the new owner runs them now."""

    LAST_COMMIT = "last_commit"
    """The commit that the broker refused while its worker let go of the partition; it holds all the same."""


LASTING_KINDS = frozenset({NoticeKind.FINISHED, NoticeKind.RELEASED})
"""What stays true; the others mean something for the length of a lease."""


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """One record of the coordination topic, keyed by the worker's id.

    ``offsets`` for the first three kinds; ``committed`` and ``metadata``, as in a commit, for the last.
    """

    kind: NoticeKind
    worker: str
    topic: str
    partition: int
    offsets: list[int] = []
    committed: int | None = None
    metadata: str | None = None


_Count = Annotated[int, msgspec.Meta(ge=0)]
_Amount = Annotated[float, msgspec.Meta(ge=0)]


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
    ``incarnation``: epoch milliseconds of its process's start, so that two processes of one id are two. ``sequence``
    counts that process's records up.
    """

    worker: str
    backend: str
    limit_requests: _Amount
    share_requests: _Count
    in_flight: _Count
    wanted: dict[Tier, _Count]
    ended_per_second: _Amount
    service_seconds: _Amount | None
    draining: bool
    claim_requests: _Count = 0
    dropped_total: _Count = 0
    cuts_total: _Count = 0
    fitted_seconds: tuple[_Amount, _Amount, _Amount] | None = None
    incarnation: _Count = 0
    sequence: _Count = 0
    kind: Literal["capacity"] = "capacity"


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Notice)
_capacity_decoder = msgspec.json.Decoder(Capacity)


def encode_notice(notice: Notice) -> bytes:
    """The record value."""
    return _encoder.encode(notice)


def encode_clock_probe(worker: str) -> bytes:
    """The value of a record that says nothing: the broker's stamp on it is all that its sender wants to know."""
    return _encoder.encode({"kind": "clock", "worker": worker})


def decode_notice(value: bytes) -> Notice | None:
    """The notice in a record value; None for what is none: other kinds of records may come to share the topic."""
    try:
        return _decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def encode_capacity(capacity: Capacity) -> bytes:
    """The record value."""
    return _encoder.encode(capacity)


def decode_capacity(value: bytes | None) -> Capacity | None:
    """The capacity in a record of the coordination topic; None for the other records there."""
    if value is None or b'"capacity"' not in value:
        return None
    try:
        return _capacity_decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
