"""Requests that need not run again after a crash, because their outcome is on the results topic. Pure, with times
passed in.

The commit tells a partition's new owner from when on there may be outcomes that it does not name. The owner withholds
the requests in doubt until the results were scanned from there to their end.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable
from enum import Enum
from typing import Final

import structlog

from forebay_schemas.contract.tiers import TIERS
from forebay_worker.partition.doubt import Look
from forebay_worker.request.work import Work

MARGIN_MS: Final = 5_000
"""An outcome is written a little before its worker knows of it, and brokers' clocks differ a little."""

SEEN_BYTES_MAX: Final = 64 * 1024 * 1024
_DIGEST_BYTES: Final = 16
_RECENT_MAX: Final = 50_000
"""In a set each takes about 100 bytes, sorted into a block 16."""

_RECENT_BYTES: Final = _RECENT_MAX * 100
_LOG_APPEND_TIME: Final = 2

log = structlog.get_logger("forebay.intake")


class SeenOutcomes:
    """Requests whose outcomes were seen: four million in 64 MiB. One thread adds, any may ask.

    Kept as digests of 16 bytes. Two requests of a scan share one less likely than a bit of memory flips.
    """

    __slots__ = ("_blocks", "_recent", "count")

    def __init__(self) -> None:
        self._recent: set[bytes] = set()
        self._blocks: list[bytes] = []
        self.count = 0

    @property
    def is_full(self) -> bool:
        """Whether no more outcomes may be added."""
        return self.count * _DIGEST_BYTES >= SEEN_BYTES_MAX - _RECENT_BYTES

    def add(self, request_id: str, replay_count: int) -> None:
        """Adds the outcome of a request as it was submitted (0) or as it was replayed for the n-th time."""
        recent = self._recent
        recent.add(_digest(request_id, replay_count))
        self.count += 1
        if len(recent) >= _RECENT_MAX:
            # In this order: a concurrent lookup finds it in one of them.
            self._blocks.append(b"".join(sorted(recent)))
            self._recent = set()

    def has(self, request_id: str, replay_count: int) -> bool:
        """Whether this outcome was added."""
        digest = _digest(request_id, replay_count)
        if digest in self._recent:
            return True
        return any(_is_in(digest, block) for block in self._blocks.copy())


def _digest(request_id: str, replay_count: int) -> bytes:
    return hashlib.blake2b(f"{replay_count}:{request_id}".encode(), digest_size=_DIGEST_BYTES).digest()


def _is_in(digest: bytes, block: bytes) -> bool:
    def at(index: int) -> bytes:
        return block[index * _DIGEST_BYTES : (index + 1) * _DIGEST_BYTES]

    count = len(block) // _DIGEST_BYTES
    index = bisect_left(range(count), digest, key=at)
    return index < count and at(index) == digest


class Finding(Enum):
    """Finding on a request in doubt."""

    RUN = "run"
    WAIT = "wait"
    ENDED = "ended"


class Doubts:
    """Judges the requests of one intake before they are handed on. ``look``: asks for a scan of the results from a time
    on (epoch milliseconds)."""

    def __init__(self, *, look: Callable[[int], Look]) -> None:
        self._look = look
        self.ended = dict.fromkeys(TIERS, 0)
        """Number of requests not run again because their outcome exists."""

    def judge(self, work: Work, *, now: float, now_ms: int) -> Finding:
        """Judges a received request of a partition in doubt."""
        assignment = work.assignment
        doubt = assignment.doubt
        assert doubt is not None
        kind, stamped_ms = work.record.timestamp()
        doubt.used_at = now
        if work.request_id is None or work.is_named_by_key:
            doubt.judged(work.offset)
            return Finding.RUN  # it has no id of its own for an outcome, and cannot be executed
        is_beyond = doubt.below is not None and work.offset >= doubt.below
        if (is_beyond or stamped_ms > doubt.began_ms + MARGIN_MS) and not doubt.has_waiting:
            assignment.doubt = None  # nor can that owner have run any after it
            return Finding.RUN
        enqueued_ms = stamped_ms if kind == _LOG_APPEND_TIME else None
        from_ms = look_from_ms(doubt.since_ms, enqueued_ms=enqueued_ms, now_ms=now_ms)
        # The first request to ask need not be the lowest: cancels and expedites read out of turn.
        if doubt.look is None or from_ms < doubt.look_from_ms:
            doubt.look, doubt.look_from_ms = self._look(from_ms), from_ms
        if not doubt.look.is_over:
            doubt.wait(work.offset)
            return Finding.WAIT
        doubt.judged(work.offset)
        if doubt.look.has(work.request_id, work.history.replay_count):
            self.ended[work.tier] += 1
            return Finding.ENDED
        return Finding.RUN


def look_from_ms(since_ms: int | None, *, enqueued_ms: int | None, now_ms: int) -> int:
    """From when on results must be scanned. ``since_ms``: as in the commit. ``enqueued_ms``: the broker's time of the
    first request in doubt; neither it nor a later one has an earlier outcome.

    A time in the future comes from a wrong clock.
    """
    known = [each for each in (since_ms, enqueued_ms) if each is not None and each <= now_ms + MARGIN_MS]
    return max(0, max(known, default=0) - MARGIN_MS)


def warn_of_missing_commit(work: Work) -> None:
    """Warns that a partition has requests and no commit. ``work``: the first of them."""
    log.warning(
        "a partition that is not empty has no commit; the results are scanned before any of it runs",
        topic=work.assignment.topic,
        partition=work.assignment.partition,
        first_offset=work.offset,
        fix="nothing, if no worker has run here before; else see that offsets.retention.minutes of the brokers covers "
        "the longest time that the pool has no worker, and that nobody deletes its groups",
    )
