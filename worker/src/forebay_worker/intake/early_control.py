"""Cancels and expedites of requests that an intake has not handed on: unread requests, found by the offset that the
command names, and parked retries. Pure but for its calls to the fetcher; the consumer's thread."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

import msgspec
import structlog

from forebay_schemas.contract.control import Control, ControlAction, ControlOutcome
from forebay_schemas.contract.tiers import Tier
from forebay_worker.intake.fetcher import Fetched
from forebay_worker.intake.parked import Parked
from forebay_worker.partition.assignment import Assignment
from forebay_worker.request.controls import concerns
from forebay_worker.request.work import Record, Work

WANTED_MAX = 20_000
"""Number of remembered places; a forgotten request is found when it is read."""

_PartitionKey = tuple[str, int]

log = structlog.get_logger("forebay.unread")


class ReceivedControl(msgspec.Struct, frozen=True, gc=False):
    """A control as received. ``stamped_ms``: the broker's time on it. ``is_awaited``: a client may wait for the
    answer."""

    control: Control
    stamped_ms: int
    is_awaited: bool


class Fetches(Protocol):
    """As `Fetcher.fetch`."""

    def fetch(self, assignment: Assignment, offset: int, answers: deque[Fetched]) -> None: ...


class EarlyControl:
    """``make_work`` decodes a record. ``may_finish_ahead``: whether a partition's commits have room for offsets that
    finish before they are read. ``answer`` replies to the client."""

    def __init__(
        self,
        *,
        topics: Collection[str],
        fetcher: Fetches,
        make_work: Callable[[Record, Assignment], Work],
        may_finish_ahead: Callable[[_PartitionKey], bool],
        answer: Callable[[ControlAction, str, ControlOutcome], None],
    ) -> None:
        self._topics = frozenset(topics)
        self._fetcher = fetcher
        self._make_work = make_work
        self._may_finish_ahead = may_finish_ahead
        self._answer = answer
        # Both keep the order of their first entries, in a type that finds the first one at once after many deletions.
        self._wanted: OrderedDict[_PartitionKey, OrderedDict[int, str]] = OrderedDict()
        self._wanted_count = 0
        self._asked: set[tuple[Assignment, int]] = set()
        self._fetched: deque[Fetched] = deque()
        self.received: deque[ReceivedControl] = deque(maxlen=WANTED_MAX)
        """Received controls; any thread may add. Those that do not fit are applied when their request is read or
        due."""

    def step(self, assignments: Mapping[_PartitionKey, Assignment], held: Parked, found: list[Work]) -> None:
        """Adds to ``found`` the requests that go to dispatch now, out of turn."""
        if not (self.received or self._wanted or self._fetched):
            return
        if self.received:
            received = [self.received.popleft() for _ in range(len(self.received))]
            found += self._take_parked(held, received)
            self._note_places(received, assignments)
        for fetched in self._take_fetched():
            work = self._work_of(fetched, assignments)
            if work is not None:
                found.append(work)
        for key in self._wanted.keys() & assignments.keys():
            self._ask(key, assignments[key])

    def _take_parked(self, held: Parked, received: list[ReceivedControl]) -> list[Work]:
        if not held:
            return []
        by_id: dict[str, list[ReceivedControl]] = {}
        for each in received:
            by_id.setdefault(each.control.request_id, []).append(each)

        def is_wanted(work: Work) -> bool:
            wishes = by_id.get(work.request_id or "", ())
            return any(concerns(each.control.action, each.stamped_ms, work) for each in wishes)

        return held.take_early(is_wanted)

    def _note_places(self, received: list[ReceivedControl], assignments: Mapping[_PartitionKey, Assignment]) -> None:
        for each in received:
            control = each.control
            if control.topic not in self._topics or (place := control.place) is None:
                continue
            key, offset = place[:2], place[2]
            assignment = assignments.get(key)
            if assignment is not None and each.is_awaited:
                self._answer_at_once(control, assignment, offset)
            self._want(key, offset, control.request_id)

    def _answer_at_once(self, control: Control, assignment: Assignment, offset: int) -> None:
        """Only the owner knows that there is nothing to do."""
        if assignment.opened and assignment.is_finished(offset):
            self._answer(control.action, control.request_id, ControlOutcome.FINISHED)
        elif control.action is ControlAction.EXPEDITE and assignment.tier is Tier.HIGH:
            self._answer(control.action, control.request_id, ControlOutcome.ALREADY_HIGH)

    def _want(self, key: _PartitionKey, offset: int, request_id: str) -> None:
        wanted = self._wanted.setdefault(key, OrderedDict())
        if offset not in wanted:
            self._wanted_count += 1
        wanted[offset] = request_id
        if self._wanted_count > WANTED_MAX:
            oldest = next(iter(self._wanted))
            self._forget(oldest, next(iter(self._wanted[oldest])))

    def _forget(self, key: _PartitionKey, offset: int) -> str | None:
        wanted = self._wanted.get(key)
        if wanted is None or (request_id := wanted.pop(offset, None)) is None:
            return None
        self._wanted_count -= 1
        if not wanted:
            del self._wanted[key]
        return request_id

    def _ask(self, key: _PartitionKey, assignment: Assignment) -> None:
        if not assignment.opened or not self._may_finish_ahead(key):
            return
        for offset in list(self._wanted[key]):
            if not assignment.is_unread(offset):
                self._forget(key, offset)  # its owner applies it
            elif (assignment, offset) not in self._asked and len(self._asked) < WANTED_MAX:
                self._asked.add((assignment, offset))
                self._fetcher.fetch(assignment, offset, self._fetched)

    def _take_fetched(self) -> list[Fetched]:
        taken = []
        while self._fetched:
            fetched = self._fetched.popleft()
            self._asked.discard((fetched.assignment, fetched.offset))
            taken.append(fetched)
        return taken

    def _work_of(self, fetched: Fetched, assignments: Mapping[_PartitionKey, Assignment]) -> Work | None:
        assignment, offset = fetched.assignment, fetched.offset
        key = (assignment.topic, assignment.partition)
        if assignments.get(key) is not assignment:
            return None  # released meanwhile; if it was assigned again, it is fetched again
        request_id = self._forget(key, offset)
        if fetched.record is None or request_id is None or not assignment.is_unread(offset):
            return None  # applied when it is read
        work = self._make_work(fetched.record, assignment)
        if not work.is_read:
            return None  # its schema is not known yet
        if work.request_id != request_id:
            log.warning(
                "another request is at that offset", request_id=request_id, topic=key[0], partition=key[1], at=offset
            )
            return None
        if fetched.begins_at is not None:
            assignment.offsets.begin_at(fetched.begins_at)
        if assignment.offsets.position() is None:
            return None  # no room to commit beyond it, so the next owner would not learn of its end
        assignment.take_unread(offset)
        return work
