"""Every execution of every worker: what must be true when one starts. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forebay_schemas.contract.headers import read_history
from forebay_schemas.contract.offsets_metadata import decode_metadata
from forebay_worker.cluster.broker_clock import TOLERATED_MS
from forebay_worker.dispatch.blame import Blame, blame_of, is_at_the_door
from forebay_worker.dispatch.failure_policy import DIFFERENT_MIN, LONE_TRIES_MAX
from forebay_worker.pacing.slots.sharing import SILENT_SECONDS
from forebay_worker.partition.assignment import CONVICTED_CRASHES
from simulation.broker import Key
from simulation.causes import Causes, Owned
from simulation.ledger import Ledger
from simulation.scheduler import Scheduler

if TYPE_CHECKING:
    from forebay_worker.request.work import Failure, Work

Place = tuple[str, int, int]

UNNAMED_KILLS_MAX = 3
"""Upper bound on the workers that die of one request before commits name it: by rebalances without a commit, and in
time."""


@dataclass(slots=True)
class Accepted:
    """The submissions under one id; each has a deadline of its own, by its enqueue time. ``awaited_in``: partitions of
    the results topic; None for the one of the key."""

    deadlines_ms: dict[int, int] = field(default_factory=dict)
    submissions: int = 0
    awaited_in: set[int | None] = field(default_factory=set)
    max_attempts: int | None = None


@dataclass(slots=True, eq=False)
class Execution:
    """``how`` it ended: running (it did not), answered, charged, of_backend, refused, cancelled, or shared: by a status
    that is the backend's state when all get it. ``was_alone``: then, whether fewer than three had got it.
    ``is_superseded``: it was run again, for a reason: what became of it counts no more."""

    place: Place
    request_id: str
    attempt: int
    worker: str
    started: float
    assignment: Any
    owned: Owned
    how: str = "running"
    ended: float = float("inf")
    was_alone: bool = False
    at_the_door: bool = False
    is_superseded: bool = False


class Executions:
    """``attempts_max`` and ``limit``: the workers' settings."""

    def __init__(self, *, scheduler: Scheduler, ledger: Ledger, causes: Causes, attempts_max: int, limit: int) -> None:
        self._scheduler = scheduler
        self._ledger = ledger
        self._attempts_max = attempts_max
        self._limit = limit
        self.causes = causes
        self._by_place: defaultdict[Place, list[Execution]] = defaultdict(list)
        self._last: dict[tuple[str, int], Execution] = {}
        self._running: Counter[str] = Counter()
        self._said_capacity: dict[str, float] = {}
        self._unreachable: set[str] = set()
        self.repeated: set[str] = set()
        """The requests that ran more than once."""
        self._last_answer: dict[str, float] = {}
        self._last_completion: dict[str, float] = {}
        self._last_completion_began: dict[str, float] = {}
        self._failed_since: defaultdict[str, set[str]] = defaultdict(set)
        self._by_attempt: defaultdict[tuple[str, int], list[Execution]] = defaultdict(list)
        self._first_backend_failure: dict[tuple[str, Place], float] = {}
        self._charges: Counter[tuple[str, int]] = Counter()
        self._kills: Counter[Place] = Counter()
        self._unnamed_kills: Counter[Place] = Counter()
        self._executing: defaultdict[str, set[Execution]] = defaultdict(set)
        self._ended_alone: set[Place] = set()
        self.tried_alone: Callable[[str], Place | None] = lambda _: None
        """The place that a worker runs alone, or has just run, or is about to; None for none."""
        self._outcomes_written: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
        self.gave_up_looking: Callable[[str], bool] = lambda _: False
        """Whether a worker could not look through the results to their end."""

    # What happens around executions.

    def outcome_written(self, request_id: str, replay_count: int) -> None:
        """An outcome is on the results topic."""
        self._outcomes_written[request_id, replay_count].append(self._scheduler.now)

    def said_capacity(self, worker: str) -> None:
        """A worker's capacity is on the coordination topic."""
        self._said_capacity[worker] = self._scheduler.now

    def cannot_be_reached(self, worker: str, seconds: float) -> None:
        """A worker was stopped or cut off."""
        self._unreachable.add(worker)
        self.causes.away(worker, seconds)

    def session_ended(self, worker: str, topics: list[str]) -> None:
        """The coordinator of the group that reads ``topics`` gave a worker up."""
        self.causes.session_ended(worker, topics)
        self._note_alone(worker)

    def died(self, worker: str) -> None:
        """A worker is gone, with all that ran in it."""
        self.causes.died(worker)
        self._note_alone(worker)
        self._running[worker] = 0
        self._executing[worker].clear()

    def _note_alone(self, worker: str) -> None:
        """A worker dies, or is given up: what it ran alone may be convicted."""
        place = self.tried_alone(worker)
        if place is None:
            return
        others = [each.request_id for each in self._executing[worker] if each.place != place]
        if others:
            self._ledger.fail(f"{worker} runs {sorted(others)} beside {place}, which is to run alone")
        self._ended_alone.add(place)

    def check_conviction(self, place: Place) -> None:
        """A request is a dead letter because its worker died of it."""
        self._ledger.counts["convictions"] += 1
        if place not in self._ended_alone:
            self._ledger.fail(f"{place} is convicted, but no worker died that ran nothing else")

    def killed_by(self, execution: Execution, metadata: str | None, offset: int) -> None:
        """A request killed its worker. ``metadata``: what is committed of its partition, with ``offset``."""
        decoded = decode_metadata(offset, metadata) if metadata else None
        if decoded is not None and execution.place[2] in {at for at, _ in decoded.running}:
            self._kills[execution.place] += 1
            if self._kills[execution.place] > CONVICTED_CRASHES:
                self._ledger.fail(
                    f"{execution.request_id} killed {self._kills[execution.place]} workers that said they ran it"
                )
        else:
            self._unnamed_kills[execution.place] += 1
            if self._unnamed_kills[execution.place] > UNNAMED_KILLS_MAX:
                self._ledger.fail(
                    f"{execution.request_id} killed {self._unnamed_kills[execution.place]} workers unnoticed"
                )

    def rebalancing(self, worker: str, group: str, kind: str, keys: list[Key]) -> None:
        """A callback is about to be called."""
        self._ledger.counts["rebalances"] += 1
        self._ledger.note(f"{worker}: {group} {kind} {keys}")

    # Executions.

    def started(self, worker: str, work: Work, accepted: Accepted, *, now_ms: int) -> Execution:
        """A worker calls the backend, at ``now_ms`` on its own clock."""
        record = work.record
        place = (record.topic(), record.partition(), record.offset())
        assert work.request is not None
        request_id = work.request.request_id
        now = self._scheduler.now
        self._ledger.note(f"{worker} runs {request_id} at {place}, attempt {work.attempt}")
        self._ledger.counts["executions"] += 1
        history = read_history(record.headers())
        # What a worker knows of the broker's clock grows sharper and, when it is old, blunter again.
        if history.not_before is not None and now_ms < history.not_before - TOLERATED_MS:
            self._ledger.fail(f"{request_id} runs {history.not_before - now_ms} ms before its retry is due")
        if work.attempt > (accepted.max_attempts or self._attempts_max):
            self._ledger.fail(f"attempt {work.attempt} of {request_id}: more than allowed")
        if work.attempt != history.attempt:
            self._ledger.fail(f"{request_id} runs as attempt {work.attempt}, its record says {history.attempt}")
        if accepted.deadlines_ms.get(work.first_enqueued_at) != work.deadline_ms:
            self._ledger.fail(f"the deadline of {request_id} was changed")
        if now_ms >= work.deadline_ms:
            self._ledger.fail(f"{request_id} was started {now_ms - work.deadline_ms} ms after its deadline")
        beside = next((each for each in self._executing[worker] if each.request_id == request_id), None)
        if beside is not None:
            self._ledger.fail(f"{worker} runs {request_id} at {place}, and runs it at {beside.place} already")
        self._running[worker] += 1
        if self._running[worker] > self._limit:
            self._ledger.fail(f"{worker} runs {self._running[worker]} requests, its limit is {self._limit}")
        self._check_sharing()
        owned = self.causes.latest(worker, place[:2])
        for earlier in self._by_place[place]:
            cause = self._cause_of_repetition(earlier, owned, work, accepted.submissions)
            if cause is not None:
                self._ledger.causes[cause] += 1
                self._ledger.note(f"{request_id} at {place} runs again: {cause}")
                self.repeated.add(request_id)
                earlier.is_superseded = not self.causes.is_past(owned)
        if work.crashes > (losses := self.causes.losses_before(owned, place)):
            self._ledger.fail(f"{worker} counts {work.crashes} crashes of {request_id} at {place}, and {losses} were")
        execution = Execution(place, request_id, work.attempt, worker, now, work.assignment, owned)
        self._by_place[place].append(execution)
        self._executing[worker].add(execution)
        self._last[request_id, work.attempt] = execution
        self._by_attempt[request_id, work.attempt].append(execution)
        return execution

    def _check_sharing(self) -> None:
        """All workers together have no more in flight than the backend's limit, at any moment. Not counted is what runs
        on in a worker that nobody has heard for so long that it starts nothing more: its share is the others'."""
        heard_since = self._scheduler.now - SILENT_SECONDS
        counted = {
            worker: running
            for worker, running in self._running.items()
            if running and worker not in self._unreachable and self._said_capacity.get(worker, -1.0) >= heard_since
        }
        if sum(counted.values()) > self._limit:
            self._ledger.fail(f"the backend's limit is {self._limit}, and {counted} are in flight")
        if len(counted) > 1:
            self._ledger.counts["shared_backends"] += 1

    def _cause_of_repetition(self, earlier: Execution, owned: Owned, work: Work, submissions: int) -> str | None:
        """The cause for which a record runs again that ran before; fails when nothing explains it. None: it is no
        repetition."""
        if earlier.how in ("cancelled", "of_backend", "refused", "shared"):
            return None
        worker, at = owned.worker, earlier.place[2]
        if at < owned.offset or any(first <= at < first + length for first, length in owned.metadata.finished):
            self._ledger.fail(
                f"{worker} runs {earlier.request_id} at {earlier.place}, which its own start said was finished"
            )
        written = self._outcomes_written[earlier.request_id, work.history.replay_count]
        # One that was submitted twice has two records: what had not ended by then is not what the outcome is of.
        of_this_since = earlier.ended if submissions > 1 else earlier.started
        if any(of_this_since <= at < owned.since for at in written) and not self.gave_up_looking(worker):
            self._ledger.fail(
                f"{worker} runs {earlier.request_id} at {earlier.place}, which it has owned since {owned.since:.3f}; "
                f"its outcome was written at {written}"
            )
        if earlier.assignment is work.assignment:
            self._ledger.fail(f"{worker} runs {earlier.request_id} at {earlier.place} twice")
        if earlier.is_superseded:
            return None
        cause = self.causes.explain(earlier, owned)
        if cause is None:
            self._ledger.fail(
                f"{worker} runs {earlier.request_id} at {earlier.place}, which {earlier.worker} ran from "
                f"{earlier.started:.3f} to {earlier.ended:.3f} ({earlier.how}): nothing explains it"
            )
        return cause

    def _end(self, execution: Execution, how: str) -> None:
        execution.how = how
        execution.ended = self._scheduler.now
        self._running[execution.worker] -= 1
        self._executing[execution.worker].discard(execution)
        self._ledger.note(f"{execution.worker}: {execution.request_id} {how}")

    def cancelled(self, execution: Execution) -> None:
        """Given up by the worker: at its deadline, or to give it back."""
        self._end(execution, "cancelled")

    def answered(self, execution: Execution) -> None:
        """The backend served it."""
        worker = execution.worker
        self._last_answer[worker] = self._last_completion[worker] = self._scheduler.now
        began = self._last_completion_began.get(worker, 0.0)
        self._last_completion_began[worker] = max(began, execution.started)
        self._failed_since[worker].clear()
        self._end(execution, "answered")

    def failed(self, execution: Execution, failure: Failure) -> None:
        """The backend did not."""
        if failure.of_backend:
            self._first_backend_failure.setdefault((execution.worker, execution.place), self._scheduler.now)
            self._end(execution, "of_backend" if failure.reached else "refused")
        elif blame_of(failure) is Blame.SHARED:
            failed = self._failed_since[execution.worker]
            failed.add(execution.request_id)
            execution.was_alone = len(failed) < DIFFERENT_MIN
            execution.at_the_door = is_at_the_door(failure)
            self._ledger.counts["failed_by_shared_blame"] += 1
            self._end(execution, "shared")
        else:
            self._last_answer[execution.worker] = self._scheduler.now
            self._end(execution, "charged")

    def workers_of(self, request_id: str) -> set[str]:
        """Workers that executed a request."""
        return {one.worker for one in self._of_request(request_id)}

    def ran_on_unheard(self, request_id: str) -> bool:
        """Whether others may have ended a request that still ran, because they received nothing of it."""
        return any(map(self.causes.ran_on_unheard, self._of_request(request_id)))

    def _of_request(self, request_id: str) -> list[Execution]:
        return [one for (ran, _), all_of in self._by_attempt.items() if ran == request_id for one in all_of]

    def known_to_fail(self, request_id: str) -> None:
        """A request was charged and not retried, as that would have been too late: it is no sign of the backend's state
        any more."""
        for failed in self._failed_since.values():
            failed.discard(request_id)

    def check_charge(self, request_id: str, attempt: int, *, worker: str | None = None) -> None:
        """An attempt counts; it must not if the backend alone was to blame. ``worker``: who says so, if known."""
        all_of = self._by_attempt[request_id, attempt]
        shared = [one for one in all_of if one.how == "shared"]
        charged = {one.place for one in all_of if one.how == "charged"}
        self._charges[request_id, attempt] += 1
        rightly = [one for one in shared if self._is_rightly_charged(one, shared)]
        if shared and not charged and not rightly:
            self._ledger.fail(f"{request_id} is charged for what the backend answers to all")
        if rightly and len(charged) < self._charges[request_id, attempt]:
            # One that was submitted twice has two records, and each is charged for itself. Which of two is meant is
            # not known where both may be.
            places = {one.place for one in rightly if worker in (None, one.worker)}
            for one in shared:
                if {one.place} == places:
                    one.how = "charged"
                # Known to fail by itself, it is no sign of the backend's state.
                self._failed_since[one.worker].discard(request_id)
            return
        last = self._last.get((request_id, attempt))
        if last is None:
            self._ledger.fail(f"attempt {attempt} of {request_id} is charged but never ran")
        elif last.how == "refused":
            self._ledger.fail(f"{request_id} is charged for a refused connection")
        elif last.how == "of_backend":
            failed = self._first_backend_failure[last.worker, last.place]
            if self._last_answer.get(last.worker, -1.0) < failed:
                self._ledger.fail(f"{request_id} is charged while the backend served nobody")

    def _is_rightly_charged(self, execution: Execution, shared: list[Execution]) -> bool:
        """Whether its worker had an answer to another request that reveals this failure, or nothing to compare it
        with."""
        worker = execution.worker
        if execution.at_the_door:
            was_answered = self._last_completion_began.get(worker, -1.0) >= execution.started
        else:
            was_answered = self._last_completion.get(worker, -1.0) >= execution.ended
        tries = sum(one.worker == worker and one.assignment is execution.assignment for one in shared)
        return was_answered or (execution.was_alone and tries > LONE_TRIES_MAX)
