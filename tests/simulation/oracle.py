"""What must be true at every step of a history, and the ledger of what happened. Sees all logs, commits and executions.

A broken promise raises `Violation`. Pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from forebay_schemas.coordination import LEASE_SECONDS, NoticeKind, decode_notice
from forebay_schemas.envelope import JsonCodec, deadline_ms
from forebay_schemas.errors import EnvelopeError
from forebay_schemas.headers import DLT_ORIGINAL_OFFSET, DLT_ORIGINAL_PARTITION, DLT_ORIGINAL_TOPIC, read_history
from forebay_schemas.offsets_metadata import decode_metadata
from forebay_schemas.reasons import REASONS_BY_CODE, Status
from forebay_schemas.results import Result
from forebay_schemas.tiers import Tier
from forebay_schemas.topics import Pool
from simulation.scheduler import WALL_START_MS, Scheduler

if TYPE_CHECKING:
    from forebay_worker.work import Failure, Work
    from simulation.broker import LogRecord

Key = tuple[str, int]
Place = tuple[str, int, int]

_result_decoder = msgspec.json.Decoder(Result)


class Violation(AssertionError):
    """A promise is broken."""


@dataclass(slots=True, eq=False)
class Execution:
    """``how`` it ended: running (it did not), answered, charged, of_backend, cancelled."""

    place: Place
    request_id: str
    attempt: int
    worker: str
    started: float
    assignment: Any
    how: str = "running"
    ended: float = float("inf")


@dataclass(slots=True)
class _Accepted:
    """What was submitted under one id; each submission has a deadline of its own."""

    deadlines_ms: dict[int, int] = field(default_factory=dict)
    submissions: int = 0
    max_attempts: int | None = None


@dataclass(slots=True)
class _Partition:
    """``checked``: everything below is finished."""

    records: list[LogRecord] = field(default_factory=list)
    checked: int = 0
    finished_ahead: set[int] = field(default_factory=set)
    committed: int = 0


@dataclass(slots=True)
class _HandOver:
    """What the coordination topic says of one offset that runs on at a former owner."""

    last_said: float
    silence: float = 0.0


class Oracle:
    """``attempts_max`` and ``limit`` are the workers' settings."""

    def __init__(
        self, *, scheduler: Scheduler, pool: Pool, tiers: list[Tier], attempts_max: int, limit: int, events_max: int | None
    ) -> None:
        self._scheduler = scheduler
        self._pool = pool
        self._attempts_max = attempts_max
        self._limit = limit
        self._codec = JsonCodec()
        self._tier_of = {pool.requests(tier): tier for tier in tiers}
        self._retry_tier = {pool.retry(tier, delay): tier for tier in tiers for delay in (1, 5, 30)}
        self.events: deque[tuple[float, str]] = deque(maxlen=events_max)
        self.accepted: dict[str, _Accepted] = {}
        self.terminals: dict[str, list[Result]] = {}
        self.dead_ids: set[str] = set()
        self._dead_places: set[Place] = set()
        self._attempts: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._partitions: defaultdict[Key, _Partition] = defaultdict(_Partition)
        self._removed: set[Place] = set()
        self._removed_ids: set[str] = set()
        self._waiting_ids: set[str] = set()
        self._waiting_places: set[Place] = set()
        self._executions: defaultdict[Place, list[Execution]] = defaultdict(list)
        self._last_execution: dict[tuple[str, int], Execution] = {}
        self._running: Counter[str] = Counter()
        self._dead_workers: dict[str, float] = {}
        self._sessions_ended: dict[str, float] = {}
        self._last_commits_refused: set[tuple[str, Key]] = set()
        self._told: dict[tuple[str, Key], tuple[int, str]] = {}
        self._told_at: dict[tuple[str, Key], float] = {}
        self._hand_overs: dict[Place, _HandOver] = {}
        self._last_answer: dict[str, float] = {}
        self._first_backend_failure: dict[tuple[str, Place], float] = {}
        self._written_twice: Counter[str] = Counter()
        self.causes: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()

    def note(self, text: str) -> None:
        """Remembers an event, to be shown when the history fails."""
        self.events.append((self._scheduler.now, text))

    def fail(self, text: str) -> None:
        """A promise is broken: the history ends here, whoever catches this."""
        violation = Violation(text)
        if self._scheduler.broken is None:
            self._scheduler.broken = violation
        raise violation

    # The logs.

    def appended(self, record: LogRecord) -> None:
        """Every record that any log takes."""
        topic = record.topic_name
        if topic in self._tier_of:
            self._appended_request(record)
        elif topic in self._retry_tier:
            self._appended_retry(record)
        elif topic == self._pool.results:
            self._appended_result(record)
        elif topic == self._pool.dead_letter:
            self._appended_dead_letter(record)
        elif topic == self._pool.coordination:
            self._appended_notice(record)

    def _appended_request(self, record: LogRecord) -> None:
        self._partitions[record.topic_name, record.partition_number].records.append(record)
        try:
            request = self._codec.decode(record.value_bytes)
        except EnvelopeError as error:
            self._waiting_places.add(record.place)
            record.request_id = None
            self.note(f"submitted {record.place}: undecodable ({error.request_id})")
            return
        record.request_id = request.request_id
        accepted = self.accepted.setdefault(request.request_id, _Accepted())
        accepted.submissions += 1
        accepted.max_attempts = request.max_attempts
        tier = self._tier_of[record.topic_name]
        first = record.timestamp_ms
        accepted.deadlines_ms[first] = deadline_ms(request, tier=tier, first_enqueued_at=first)
        self._attempts[request.request_id][1] += 1
        if request.request_id not in self.terminals:
            self._waiting_ids.add(request.request_id)
        self.note(f"submitted {request.request_id} at {record.place}")

    def _appended_retry(self, record: LogRecord) -> None:
        self._partitions[record.topic_name, record.partition_number].records.append(record)
        try:
            request_id = self._codec.decode(record.value_bytes).request_id
        except EnvelopeError:
            self.fail(f"an undecodable record was sent to {record.topic_name}")
            return
        record.request_id = request_id
        history = read_history(record.header_list)
        record.attempt = history.attempt
        accepted = self.accepted.get(request_id)
        if accepted is None:
            self.fail(f"a retry of {request_id}, which nobody submitted")
            return
        self.note(f"retry {history.attempt} of {request_id} at {record.place}")
        if history.first_enqueued_at not in accepted.deadlines_ms:
            self.fail(f"a retry of {request_id} changed its first enqueue time, and with it its deadline")
        if not self._attempts[request_id][history.attempt - 1]:
            self.fail(f"retry {history.attempt} of {request_id} without an attempt {history.attempt - 1} before it")
        if history.attempt > (accepted.max_attempts or self._attempts_max):
            self.fail(f"attempt {history.attempt} of {request_id}: more than allowed")
        self._check_charge(request_id, history.attempt - 1)
        self._attempts[request_id][history.attempt] += 1
        self.counts["retries"] += 1

    def _check_charge(self, request_id: str, attempt: int) -> None:
        """An attempt counts; it must not if the backend alone was to blame."""
        last = self._last_execution.get((request_id, attempt))
        if last is None:
            self.fail(f"attempt {attempt} of {request_id} is charged but never ran")
        elif last.how == "refused":
            self.fail(f"{request_id} is charged for a refused connection")
        elif last.how == "of_backend":
            failed = self._first_backend_failure[last.worker, last.place]
            if self._last_answer.get(last.worker, -1.0) < failed:
                self.fail(f"{request_id} is charged while the backend served nobody")

    def _appended_result(self, record: LogRecord) -> None:
        assert record.value_bytes is not None
        result = _result_decoder.decode(record.value_bytes)
        request_id = result.request_id
        if request_id not in self.accepted and not request_id.startswith("undecodable"):
            self.fail(f"a result of {request_id}, which nobody submitted")
        if (record.key_bytes or b"").decode() != request_id:
            self.fail(f"the result of {request_id} has the key {record.key_bytes!r}")
        self.terminals.setdefault(request_id, []).append(result)
        self._waiting_ids.discard(request_id)
        self.counts["outcomes"] += 1
        self.note(f"{request_id} is {result.reason}, says {result.worker}")

    def _appended_dead_letter(self, record: LogRecord) -> None:
        headers = dict(record.header_list or ())
        place = (
            (headers[DLT_ORIGINAL_TOPIC] or b"").decode(),
            int(headers[DLT_ORIGINAL_PARTITION] or b""),
            int(headers[DLT_ORIGINAL_OFFSET] or b""),
        )
        self._dead_places.add(place)
        self._waiting_places.discard(place)
        try:
            self.dead_ids.add(self._codec.decode(record.value_bytes).request_id)
        except EnvelopeError:
            pass
        self.counts["dead_letters"] += 1
        self.note(f"dead letter of {place}")

    def _appended_notice(self, record: LogRecord) -> None:
        notice = decode_notice(record.value_bytes or b"")
        assert notice is not None
        now = self._scheduler.now
        self.note(f"{notice.worker} says {notice.kind} of {notice.topic}/{notice.partition}: {notice.offsets}")
        for offset in notice.offsets:
            said = self._hand_overs.setdefault((notice.topic, notice.partition, offset), _HandOver(now))
            said.silence = max(said.silence, now - said.last_said)
            said.last_said = now if notice.kind is NoticeKind.RUNNING else float("inf")

    def written_but_reported_failed(self, record: LogRecord) -> None:
        """The producer was told that a record it wrote is not there: it will come again."""
        self._written_twice[(record.key_bytes or b"").decode(errors="replace")] += 1

    def removed(self, record: LogRecord) -> None:
        """Retention took a record away; nobody can be asked for it any more."""
        self._removed.add(record.place)
        self._waiting_places.discard(record.place)
        if record.request_id is not None:
            self._removed_ids.add(record.request_id)

    # Commits.

    def is_finished(self, record: LogRecord) -> bool:
        """Whether the logs hold what became of a record."""
        request_id = record.request_id
        if record.place in self._removed:
            return True
        if request_id is None:
            return record.place in self._dead_places
        results = self.terminals.get(request_id)
        if results is not None:
            needs_letter = results[0].status in (Status.FAILED, Status.REJECTED)
            return not needs_letter or request_id in self.dead_ids
        return any(attempt > record.attempt for attempt, number in self._attempts[request_id].items() if number)

    def committed(self, group: str, key: Key, offset: int, metadata: str, worker: str) -> None:
        """The coordinator took a commit."""
        partition = self._partitions[key]
        self.counts["commits"] += 1
        if offset < partition.committed:
            self.fail(f"{worker} committed {offset} of {key} after {partition.committed}")
        partition.committed = offset
        decoded = decode_metadata(offset, metadata)
        if decoded is None:
            self.fail(f"{worker} committed metadata of {key} that cannot be read")
            return
        self.note(f"{worker} committed {key} {offset} {decoded if metadata else ''}")
        records = partition.records
        while partition.checked < len(records) and records[partition.checked].offset_number < offset:
            record = records[partition.checked]
            if record.offset_number not in partition.finished_ahead and not self.is_finished(record):
                self.fail(f"{worker} committed {key} {offset}, but {record.request_id} at {record.place} is not finished")
            partition.finished_ahead.discard(record.offset_number)
            partition.checked += 1
        if not decoded.finished:
            return
        ahead = partition.finished_ahead
        named = {at for first, length in decoded.finished for at in range(first, first + length)}
        for record in records[partition.checked :]:
            at = record.offset_number
            if at in named and at not in ahead:
                if not self.is_finished(record):
                    self.fail(f"{worker} named {record.request_id} at {record.place} as finished, which it is not")
                ahead.add(at)

    def told_committed(self, worker: str, key: Key, offset: int, metadata: str) -> None:
        """A worker was told what is committed of a partition that it now owns."""
        self._told[worker, key] = (offset, metadata)
        self._told_at[worker, key] = self._scheduler.now

    def last_commit_failed(self, worker: str, keys: list[Key]) -> None:
        """A commit that a worker waited for was refused or not answered."""
        self._last_commits_refused.update((worker, key) for key in keys)

    # Workers and executions.

    def session_ended(self, worker: str) -> None:
        """The coordinator gave a worker up."""
        self._sessions_ended[worker] = self._scheduler.now

    def died(self, worker: str) -> None:
        """A worker is gone, with all that ran in it."""
        self._dead_workers[worker] = self._scheduler.now
        self._running[worker] = 0

    def left(self, worker: str) -> None:
        """A worker has drained and exited; what it gave back is not running any more."""
        self.note(f"{worker} exits")

    def rebalancing(self, worker: str, group: str, kind: str, keys: list[Key]) -> None:
        """A callback is about to be called."""
        self.counts["rebalances"] += 1
        self.note(f"{worker}: {group} {kind} {keys}")

    def started(self, worker: str, work: Work) -> Execution:
        """A worker calls the backend."""
        record = work.record
        place = (record.topic(), record.partition(), record.offset())
        assert work.request is not None
        request_id = work.request.request_id
        now, now_ms = self._scheduler.now, WALL_START_MS + int(self._scheduler.now * 1000)
        self.note(f"{worker} runs {request_id} at {place}, attempt {work.attempt}")
        self.counts["executions"] += 1
        history = read_history(record.headers())
        if history.not_before is not None and now_ms < history.not_before:
            self.fail(f"{request_id} runs {history.not_before - now_ms} ms before its retry is due")
        accepted = self.accepted[request_id]
        if work.attempt > (accepted.max_attempts or self._attempts_max):
            self.fail(f"attempt {work.attempt} of {request_id}: more than allowed")
        if work.attempt != history.attempt:
            self.fail(f"{request_id} runs as attempt {work.attempt}, its record says {history.attempt}")
        if accepted.deadlines_ms.get(work.first_enqueued_at) != work.deadline_ms:
            self.fail(f"the deadline of {request_id} was changed")
        if now_ms >= work.deadline_ms:
            self.fail(f"{request_id} was started {now_ms - work.deadline_ms} ms after its deadline")
        self._running[worker] += 1
        if self._running[worker] > self._limit:
            self.fail(f"{worker} runs {self._running[worker]} requests, its limit is {self._limit}")
        for earlier in self._executions[place]:
            cause = self._cause_of_repetition(earlier, worker, work)
            if cause is not None:
                self.causes[cause] += 1
                self.note(f"{request_id} at {place} runs again: {cause}")
        execution = Execution(place, request_id, work.attempt, worker, now, work.assignment)
        self._executions[place].append(execution)
        self._last_execution[request_id, work.attempt] = execution
        return execution

    def _cause_of_repetition(self, earlier: Execution, worker: str, work: Work) -> str | None:
        """Why a record that ran before runs again; fails when nothing explains it. None: it is no repetition."""
        if earlier.how in ("cancelled", "of_backend", "refused"):
            return None
        key = earlier.place[:2]
        offset, metadata = self._told.get((worker, key), (-1, ""))
        decoded = decode_metadata(offset, metadata) if offset >= 0 else None
        at = earlier.place[2]
        if at < offset or (decoded and any(first <= at < first + length for first, length in decoded.finished)):
            self.fail(f"{worker} runs {earlier.request_id} at {earlier.place}, which its own start said was finished")
        if earlier.assignment is work.assignment:
            self.fail(f"{worker} runs {earlier.request_id} at {earlier.place} twice")
        died = self._dead_workers.get(earlier.worker)
        if died is not None:
            return "in_flight_at_kill" if earlier.ended >= died else "since_last_commit"
        if self._sessions_ended.get(earlier.worker, -1.0) >= earlier.started or earlier.assignment.lost:
            return "stopped_or_cut_off"
        if self._sessions_ended.get(worker, -1.0) >= self._told_at.get((worker, key), 0.0):
            # It does not know yet that it lost the partition.
            return "stopped_or_cut_off"
        said = self._hand_overs.get(earlier.place)
        now = self._scheduler.now
        if said is not None and max(said.silence, now - said.last_said) >= LEASE_SECONDS - 0.5:
            return "lease_ended"
        if (earlier.worker, key) in self._last_commits_refused:
            return "last_commit_refused"
        self.fail(
            f"{worker} runs {earlier.request_id} at {earlier.place}, which {earlier.worker} ran from "
            f"{earlier.started:.3f} to {earlier.ended:.3f} ({earlier.how}): nothing explains it"
        )
        return None

    def _end(self, execution: Execution, how: str) -> None:
        execution.how = how
        execution.ended = self._scheduler.now
        self._running[execution.worker] -= 1
        self.note(f"{execution.worker}: {execution.request_id} {how}")

    def cancelled(self, execution: Execution) -> None:
        """Given up by the worker: at its deadline, or to give it back."""
        self._end(execution, "cancelled")

    def answered(self, execution: Execution) -> None:
        """The backend served it."""
        self._last_answer[execution.worker] = self._scheduler.now
        self._end(execution, "answered")

    def failed(self, execution: Execution, failure: Failure) -> None:
        """The backend did not."""
        if failure.of_backend:
            self._first_backend_failure.setdefault((execution.worker, execution.place), self._scheduler.now)
            self._end(execution, "of_backend" if failure.reached else "refused")
        else:
            self._last_answer[execution.worker] = self._scheduler.now
            self._end(execution, "charged")

    # The end.

    def unfinished(self) -> str | None:
        """What has not ended yet; None when everything has."""
        waiting = self._waiting_ids - self._removed_ids
        if waiting:
            return f"{len(waiting)} requests have no outcome: {sorted(waiting)[:5]}"
        if self._waiting_places:
            return f"{len(self._waiting_places)} undecodable records are no dead letters: {min(self._waiting_places)}"
        for key, partition in self._partitions.items():
            last = partition.records[-1] if partition.records else None
            if last is not None and partition.committed <= last.offset_number and last.place not in self._removed:
                return f"{key} is committed up to {partition.committed}, its last record is {last.offset_number}"
        return None

    def check_end(self) -> None:
        """What can only be said when everything has ended."""
        for request_id, results in self.terminals.items():
            status = results[0].status
            if status in (Status.FAILED, Status.REJECTED) and request_id not in self.dead_ids:
                if not request_id.startswith("undecodable"):
                    self.fail(f"{request_id} {status} without a dead letter")
            if REASONS_BY_CODE[results[0].reason].status is not status:
                self.fail(f"{request_id} has status {status} and reason {results[0].reason}")
            extra = len(results) - 1
            if extra:
                self.counts["extra_outcomes"] += extra
                accepted = self.accepted.get(request_id)
                is_explained = (
                    bool(self._dead_workers or self._sessions_ended or self._last_commits_refused or self.causes)
                    or self._written_twice[request_id] > 0
                    or (accepted is not None and accepted.submissions > 1)
                )
                if not is_explained:
                    self.fail(f"{request_id} has {len(results)} outcomes, and nothing explains it")
