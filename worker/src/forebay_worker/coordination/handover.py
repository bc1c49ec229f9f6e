"""Hand-over, the old owner's side: publishes on the coordination topic the ends of requests that still run here after
their partition was released, until each notice is durable. The event loop's thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import structlog

from forebay_schemas.contract.coordination import RENEW_SECONDS, Notice, NoticeKind
from forebay_worker.intake.last_words import HandedOver

AGAIN_SECONDS = 0.5
"""After a failed delivery: well within the rest of a lease."""

PUBLISH_SECONDS_MAX = 600.0
"""As far back as a new worker reads the coordination topic: older notices are of no use."""

log = structlog.get_logger("forebay.hand_over")

Send = Callable[[Notice, Callable[[bool], None]], None]


@dataclass(slots=True)
class _Open:
    """A released partition. ``running``: offsets whose end is unknown. ``ended``: offsets whose end must be published.
    ``telling``: number of notices in flight."""

    over: HandedOver
    running: set[int] = field(default_factory=set)
    ended: dict[NoticeKind, list[int]] = field(default_factory=dict)
    telling: int = 0
    publish_at: float = 0.0
    publish_until: float | None = None


class HandOvers:
    """Follows every released partition until the end of each of its requests here is published.

    ``send`` produces a notice and calls back with whether it is durable. Times are monotonic seconds.
    """

    def __init__(self, *, worker_id: str, send: Send) -> None:
        self._worker_id = worker_id
        self._send = send
        self._open: list[_Open] = []
        self._renew_at = 0.0
        self.given_count = 0
        """Total number of requests that still ran here when their partitions were released."""

    @property
    def running_count(self) -> int:
        """Number of requests that run here for other workers' partitions."""
        return sum(len(each.running) for each in self._open)

    @property
    def is_all_published(self) -> bool:
        """Whether the end of each ended request is durable on the coordination topic."""
        return not any(each.ended or each.telling for each in self._open)

    def add(self, over: HandedOver) -> None:
        """Registers a revoked partition that still has running requests. Its release has published them."""
        self._open.append(_Open(over, set(over.running)))
        self.given_count += len(over.running)

    def step(self, now: float) -> None:
        """Publishes new ends and, every few seconds, the offsets that still run."""
        renew = now >= self._renew_at
        if renew:
            self._renew_at = now + RENEW_SECONDS
        for each in self._open:
            self._note_ended(each)
            self._publish_ended(each, now)
            if renew and each.running:
                # The next round repeats it, so a failed delivery loses nothing.
                self._publish(each.over, NoticeKind.RUNNING, sorted(each.running), lambda _: None)
        self._open = [each for each in self._open if each.running or each.ended or each.telling]

    def _note_ended(self, each: _Open) -> None:
        assignment = each.over.assignment
        finished = []
        while assignment.done:
            offset = assignment.done.popleft()
            assignment.claims.release(offset)
            finished.append(offset)
        each.running.difference_update(finished)
        given_back = sorted(each.running.difference(assignment.claims.running()))
        each.running.difference_update(given_back)
        for kind, offsets in ((NoticeKind.FINISHED, finished), (NoticeKind.RELEASED, given_back)):
            if offsets:
                each.ended.setdefault(kind, []).extend(offsets)

    def _publish_ended(self, each: _Open, now: float) -> None:
        if not each.ended or now < each.publish_at:
            return
        if each.publish_until is None:
            each.publish_until = now + PUBLISH_SECONDS_MAX
        ended, each.ended = each.ended, {}
        if now >= each.publish_until:
            log.error(
                "hand-over given up; requests may run again",
                topic=each.over.assignment.topic,
                partition=each.over.assignment.partition,
                offsets={kind.value: len(offsets) for kind, offsets in ended.items()},
            )
            return
        for kind, offsets in ended.items():
            each.telling += 1
            self._publish(each.over, kind, offsets, partial(self._on_published, each, kind, offsets, now))

    def _on_published(
        self, each: _Open, kind: NoticeKind, offsets: list[int], sent_at: float, is_durable: bool
    ) -> None:
        each.telling -= 1
        if not is_durable:
            each.publish_at = sent_at + AGAIN_SECONDS
            each.ended.setdefault(kind, []).extend(offsets)
        elif not each.ended and not each.telling:
            each.publish_until = None

    def _publish(
        self, over: HandedOver, kind: NoticeKind, offsets: list[int], on_delivery: Callable[[bool], None]
    ) -> None:
        assignment = over.assignment
        notice = Notice(
            kind=kind,
            worker=self._worker_id,
            topic=assignment.topic,
            partition=assignment.partition,
            offsets=offsets,
            topic_id=assignment.topic_id,
        )
        self._send(notice, on_delivery)
