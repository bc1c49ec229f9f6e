"""What workers tell each other on the coordination topic. Pure.

A notice speaks of offsets of a partition that its worker has let go of, but whose requests it still runs or ran. A
clock probe is no notice.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

LEASE_SECONDS = 10.0
"""A new owner withholds what it was handed over for so long after it last heard that it still runs."""

RENEW_SECONDS = 3.0
"""How often a worker says what it still runs."""


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


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Notice)


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
