"""The step after a failed execution: a retry after a delay, the dead letters, or the end of its time. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from forebay_schemas.contract.topics import RETRY_DELAYS_SECONDS
from forebay_worker.request.work import Retry


class Next(Enum):
    """The three ways on."""

    RETRY = "retry"
    DEAD_LETTER = "dead_letter"
    EXPIRE = "expire"


class RetryStatuses:
    """HTTP statuses after which the same request may succeed later: single ones, and classes, ``5xx``."""

    def __init__(self, listed: Iterable[int | str]) -> None:
        given = list(listed)
        self._statuses = frozenset(status for status in given if isinstance(status, int))
        self._classes = frozenset(int(name[0]) for name in given if isinstance(name, str))

    def retry_for(self, *statuses: int) -> Retry:
        """Allowed if one of ``statuses`` is listed: a response's status, and the one that it counts as."""
        listed = any(status in self._statuses or status // 100 in self._classes for status in statuses)
        return Retry.ALLOWED if listed else Retry.FORBIDDEN


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """``delay_seconds``: one of `RETRY_DELAYS_SECONDS`, for a retry."""

    next: Next
    delay_seconds: int = 0


def plan_after_failure(
    *,
    attempt: int,
    attempts_max: int,
    may_retry: bool,
    retry_after_seconds: float | None,
    now_ms: int,
    deadline_ms: int,
) -> Plan:
    """Decides what to do after execution ``attempt`` (1 for the first) failed at ``now_ms``.

    The delay grows with the attempts: 1 s, 5 s, then always 30 s; the backend's own wish moves it to the next longer
    one. A retry that could not start before the deadline ends the request at once.
    """
    if not may_retry or attempt >= attempts_max:
        return Plan(next=Next.DEAD_LETTER)
    longest = len(RETRY_DELAYS_SECONDS) - 1
    step = min(attempt - 1, longest)
    while step < longest and retry_after_seconds is not None and RETRY_DELAYS_SECONDS[step] < retry_after_seconds:
        step += 1
    delay = RETRY_DELAYS_SECONDS[step]
    if now_ms + delay * 1000 >= deadline_ms:
        return Plan(next=Next.EXPIRE)
    return Plan(next=Next.RETRY, delay_seconds=delay)
