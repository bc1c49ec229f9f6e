"""Hand-over, the old owner's side: says on the coordination topic what became of the requests that run on here after
their partition was let go of. The event loop's thread uses it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from forebay_schemas.contract.coordination import RENEW_SECONDS, Notice, NoticeKind
from forebay_worker.intake.partitions import HandedOver


@dataclass(slots=True)
class _Open:
    """One partition that was let go of; ``running`` are the offsets that nothing was said of yet."""

    over: HandedOver
    running: set[int] = field(default_factory=set)


class HandOvers:
    """Follows every partition that was let go of until nothing of it runs here any more.

    ``send`` produces a notice. Times are monotonic seconds.
    """

    def __init__(self, *, worker_id: str, send: Callable[[Notice], None]) -> None:
        self._worker_id = worker_id
        self._send = send
        self._open: list[_Open] = []
        self._renew_at = 0.0
        self.given_count = 0
        """How many requests ran on here, in all, when their partitions were let go of."""

    @property
    def running_count(self) -> int:
        """How many requests run here for partitions of others."""
        return sum(len(each.running) for each in self._open)

    def add(self, over: HandedOver) -> None:
        """A partition was let go of while requests of it run; that they do was said when it was let go of."""
        self._open.append(_Open(over, set(over.running)))
        self.given_count += len(over.running)

    def step(self, now: float) -> None:
        """Says what ended since the last time, and, every few seconds, what still runs."""
        renew = now >= self._renew_at
        if renew:
            self._renew_at = now + RENEW_SECONDS
        for each in self._open:
            self._report_ended(each)
            if renew and each.running:
                self._say(each.over, NoticeKind.RUNNING, sorted(each.running))
        self._open = [each for each in self._open if each.running]

    def _report_ended(self, each: _Open) -> None:
        assignment = each.over.assignment
        finished = []
        while assignment.done:
            offset = assignment.done.popleft()
            assignment.claims.release(offset)
            finished.append(offset)
        if finished:
            each.running.difference_update(finished)
            self._say(each.over, NoticeKind.FINISHED, finished)
        given_back = sorted(each.running.difference(assignment.claims.running()))
        if given_back:
            each.running.difference_update(given_back)
            self._say(each.over, NoticeKind.RELEASED, given_back)

    def _say(self, over: HandedOver, kind: NoticeKind, offsets: list[int]) -> None:
        assignment = over.assignment
        self._send(
            Notice(
                kind=kind,
                worker=self._worker_id,
                topic=assignment.topic,
                partition=assignment.partition,
                offsets=offsets,
            )
        )
