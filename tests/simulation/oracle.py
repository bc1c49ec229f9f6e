"""What must be true at every step of a history. Sees all that is written and committed; knows who may still owe what.

Pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec

from forebay_schemas.contract.control import ControlAction, decode_control
from forebay_schemas.contract.coordination import decode_capacity, decode_notice
from forebay_schemas.contract.envelope import JsonCodec, deadline_ms
from forebay_schemas.contract.headers import (
    DLT_ORIGINAL_OFFSET,
    DLT_ORIGINAL_PARTITION,
    DLT_ORIGINAL_TOPIC,
    EXPEDITED_FROM,
    REASON,
    Header,
    read_history,
)
from forebay_schemas.contract.reasons import REASONS_BY_CODE, Reason, Status
from forebay_schemas.contract.reply import read_reply
from forebay_schemas.contract.results import Result
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.contract.topics import Pool
from forebay_schemas.errors import EnvelopeError
from simulation.commit_checks import CommitChecks
from simulation.executions import Accepted, Execution, Executions
from simulation.ledger import Ledger
from simulation.replies import ResultPlaces
from simulation.scheduler import WALL_START_MS

if TYPE_CHECKING:
    from forebay_worker.request.work import Work
    from simulation.broker import LogRecord

Place = tuple[str, int, int]

_EXPIRED_EARLY = frozenset({Reason.RETRY_TOO_LATE.code, Reason.DEADLINE_UNREACHABLE.code})
_CHARGES = frozenset({Reason.BACKEND_ERROR.code, Reason.BACKEND_REJECTED.code})
"""Ends by a status that may be the backend's state."""

_result_decoder = msgspec.json.Decoder(Result)


class Oracle:
    """``attempts_max`` is the workers' setting."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        executions: Executions,
        pool: Pool,
        tiers: list[Tier],
        attempts_max: int,
        places: ResultPlaces,
    ) -> None:
        self.ledger = ledger
        self.executions = executions
        self._pool = pool
        self._attempts_max = attempts_max
        self._places = places
        self._codec = JsonCodec()
        self._tier_of = {pool.requests(tier): tier for tier in tiers}
        self._retry_tier = {pool.retry(tier, delay): tier for tier in tiers for delay in (1, 5, 30)}
        self.accepted: dict[str, Accepted] = {}
        self.terminals: dict[str, list[Result]] = {}
        self.dead_ids: set[str] = set()
        self.controls: defaultdict[str, list[tuple[ControlAction, int]]] = defaultdict(list)
        self._moved: set[Place] = set()
        self._moved_twice: set[str] = set()
        self._moves: defaultdict[str, list[tuple[str, Place, float]]] = defaultdict(list)
        """Attempts to expedite a request: worker, place, time."""
        self._carried: defaultdict[str, dict[Place, int]] = defaultdict(dict)
        """Records with which a request goes on, a retry or one in the high tier, and their attempts."""
        self._dead_places: set[Place] = set()
        self._attempts: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self.commits = CommitChecks(ledger=ledger, executions=executions, is_finished=self.is_finished)
        self._removed: set[Place] = set()
        self._removed_ids: set[str] = set()
        self._waiting_ids: set[str] = set()
        self._undecodable: dict[Place, str] = {}
        """Undecodable records by place, with the id under which each is answered: its own, else its key."""
        self._waiting_places: set[Place] = set()
        self._written_twice: Counter[str] = Counter()

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
        elif topic == self._pool.control:
            self._appended_control(record)

    def _appended_request(self, record: LogRecord) -> None:
        self.commits.appended(record)
        self.executions.causes.appended(record.place)
        try:
            request = self._codec.decode(record.value_bytes)
        except EnvelopeError as error:
            self._waiting_places.add(record.place)
            record.request_id = None
            answered_under = error.request_id or (record.key_bytes or b"").decode()
            if answered_under:
                self._undecodable[record.place] = answered_under
                self._waiting_ids.add(answered_under)
            self.ledger.note(f"submitted {record.place}: undecodable ({answered_under or None})")
            return
        record.request_id = request.request_id
        if (moved_from := dict(record.header_list or ()).get(EXPEDITED_FROM)) is not None:
            self._appended_copy(record, request.request_id, moved_from.decode())
            return
        accepted = self.accepted.setdefault(request.request_id, Accepted())
        accepted.submissions += 1
        if accepted.submissions > 1:
            self.ledger.counts["copies"] += 1
        reply = read_reply(request.reply)
        accepted.awaited_in.add(None if reply is None else reply.partition)
        accepted.max_attempts = request.max_attempts
        tier = self._tier_of[record.topic_name]
        first = record.timestamp_ms
        accepted.deadlines_ms[first] = deadline_ms(request, tier=tier, first_enqueued_at=first)
        self._attempts[request.request_id][1] += 1
        if request.request_id not in self.terminals:
            self._waiting_ids.add(request.request_id)
        self.ledger.note(f"submitted {request.request_id} at {record.place}")

    def _appended_copy(self, record: LogRecord, request_id: str, moved_from: str) -> None:
        place = _place(moved_from)
        self.ledger.note(f"{request_id} was expedited from {place} to {record.place}")
        self.ledger.counts["expedited"] += 1
        if not any(action is ControlAction.EXPEDITE for action, _ in self.controls[request_id]):
            self.ledger.fail(f"{request_id} was expedited, which nobody asked for")
        history = read_history(record.header_list)
        record.attempt = history.attempt
        if history.first_enqueued_at not in self.accepted[request_id].deadlines_ms:
            self.ledger.fail(f"{request_id} was expedited with another first enqueue time")
        if place in self._moved and not self._may_come_twice(request_id, place):
            self.ledger.fail(f"{request_id} was expedited twice from {place}, and nothing explains it")
        if place in self._moved:
            self._moved_twice.add(request_id)
        self._moved.add(place)
        self._carried[request_id][record.place] = history.attempt
        self._attempts[request_id][history.attempt] += 1

    def _may_come_twice(self, request_id: str, place: Place) -> bool:
        causes = self.executions.causes
        return causes.anything_happened or causes.was_cut(place) or self._written_twice[request_id] > 0

    def _appended_control(self, record: LogRecord) -> None:
        control = decode_control(record.value_bytes)
        assert control is not None
        self.controls[control.request_id].append((control.action, record.timestamp_ms))
        self.ledger.counts["controls"] += 1
        self.ledger.note(f"{control.action} of {control.request_id} at {control.place} is asked for")

    def _appended_retry(self, record: LogRecord) -> None:
        self.commits.appended(record)
        self.executions.causes.appended(record.place)
        try:
            request_id = self._codec.decode(record.value_bytes).request_id
        except EnvelopeError:
            self.ledger.fail(f"an undecodable record was sent to {record.topic_name}")
            return
        record.request_id = request_id
        history = read_history(record.header_list)
        record.attempt = history.attempt
        accepted = self.accepted.get(request_id)
        if accepted is None:
            self.ledger.fail(f"a retry of {request_id}, which nobody submitted")
            return
        self.ledger.note(f"retry {history.attempt} of {request_id} at {record.place}")
        if history.first_enqueued_at not in accepted.deadlines_ms:
            self.ledger.fail(f"a retry of {request_id} changed its first enqueue time, and with it its deadline")
        if not self._attempts[request_id][history.attempt - 1]:
            self.ledger.fail(
                f"retry {history.attempt} of {request_id} without an attempt {history.attempt - 1} before it"
            )
        if history.attempt > (accepted.max_attempts or self._attempts_max):
            self.ledger.fail(f"attempt {history.attempt} of {request_id}: more than allowed")
        self.executions.check_charge(request_id, history.attempt - 1)
        self._carried[request_id][record.place] = history.attempt
        self._attempts[request_id][history.attempt] += 1
        self.ledger.counts["retries"] += 1

    def _appended_result(self, record: LogRecord) -> None:
        assert record.value_bytes is not None
        result = _result_decoder.decode(record.value_bytes)
        request_id = result.request_id
        if request_id not in self.accepted and request_id not in self._undecodable.values():
            self.ledger.fail(f"a result of {request_id}, which nobody submitted")
        if (record.key_bytes or b"").decode() != request_id:
            self.ledger.fail(f"the result of {request_id} has the key {record.key_bytes!r}")
        if (accepted := self.accepted.get(request_id)) is not None and request_id not in self._undecodable.values():
            is_explained = self._written_twice[request_id] > 0 or request_id in self._moved_twice
            now = self.executions.causes.now
            self._places.check(record, result, accepted, now=now, is_explained=is_explained)
        if result.status is Status.EXPIRED and result.reason not in _EXPIRED_EARLY:
            left_ms = min(self.accepted[request_id].deadlines_ms.values()) - record.timestamp_ms
            if left_ms > 0:
                self.ledger.fail(f"{request_id} has expired {left_ms} ms early")
        if result.status is Status.CANCELLED:
            self.ledger.counts["cancelled"] += 1
            if not any(action is ControlAction.CANCEL for action, _ in self.controls[request_id]):
                self.ledger.fail(f"{request_id} was cancelled, which nobody asked for")
        if result.reason in _CHARGES and result.attempt is not None:
            self.executions.check_charge(request_id, result.attempt, worker=result.worker)
        if result.reason == Reason.RETRY_TOO_LATE.code:
            self.executions.known_to_fail(request_id)
        self.terminals.setdefault(request_id, []).append(result)
        self.executions.outcome_written(request_id, result.replay_count)
        self._waiting_ids.discard(request_id)
        self.ledger.counts["outcomes"] += 1
        self.ledger.note(f"{request_id} is {result.reason}, says {result.worker}")

    def _appended_dead_letter(self, record: LogRecord) -> None:
        headers = dict(record.header_list or ())
        place = (
            (headers[DLT_ORIGINAL_TOPIC] or b"").decode(),
            int(headers[DLT_ORIGINAL_PARTITION] or b""),
            int(headers[DLT_ORIGINAL_OFFSET] or b""),
        )
        if headers[REASON] == Reason.WORKER_CRASHED.code.encode():
            self.executions.check_conviction(place)
        self._dead_places.add(place)
        self._waiting_places.discard(place)
        with suppress(EnvelopeError):
            self.dead_ids.add(self._codec.decode(record.value_bytes).request_id)
        self.ledger.counts["dead_letters"] += 1
        self.ledger.note(f"dead letter of {place}")

    def _appended_notice(self, record: LogRecord) -> None:
        capacity = decode_capacity(record.value_bytes)
        if capacity is not None:
            self.executions.said_capacity(capacity.worker)
        notice = decode_notice(record.value_bytes or b"")
        if notice is None:
            return  # a capacity, or a clock probe
        self.ledger.note(f"{notice.worker} says {notice.kind} of {notice.topic}/{notice.partition}: {notice.offsets}")
        self.executions.causes.said(notice)

    def written_but_reported_failed(self, record: LogRecord) -> None:
        """The producer got an error for a record that it wrote: it will come again."""
        self._written_twice[(record.key_bytes or b"").decode(errors="replace")] += 1

    def produced(self, worker: str, topic: str, value: bytes | None, headers: list[Header] | None) -> None:
        """A worker has given its producer a record, which may come to nothing."""
        if topic == self._pool.coordination and (notice := decode_notice(value or b"")) is not None:
            self.executions.causes.tried_to_say(notice)
        moved_from = dict(headers or ()).get(EXPEDITED_FROM)
        if topic in self._tier_of and moved_from is not None:
            move = (worker, _place(moved_from.decode()), self.executions.causes.now)
            self._moves[self._codec.decode(value).request_id].append(move)

    def started(self, worker: str, work: Work, *, now_ms: int) -> Execution:
        """A worker calls the backend, at ``now_ms`` on its own clock."""
        assert work.request is not None
        request_id, record = work.request.request_id, work.record
        place = (record.topic(), record.partition(), record.offset())
        if place in self._moved and not self._may_come_twice(request_id, place):
            self.ledger.fail(f"{worker} runs {request_id} at {place}, from where it was expedited")
        self._check_cancel(worker, work)
        return self.executions.started(worker, work, self.accepted[work.request.request_id], now_ms=now_ms)

    def _check_cancel(self, worker: str, work: Work) -> None:
        """Fails when an owner runs a request that was cancelled before it took the partition over: it reads that far
        first."""
        assert work.request is not None
        topic, partition = work.record.topic(), work.record.partition()
        owned = self.executions.causes.latest(worker, (topic, partition))
        owned_ms = WALL_START_MS + int(owned.since * 1000)
        for action, at_ms in self.controls[work.request.request_id]:
            if action is not ControlAction.CANCEL or not work.record.timestamp()[1] <= at_ms < owned_ms:
                continue
            if not self.executions.causes.was_deaf(owned):
                self.ledger.fail(
                    f"{worker} runs {work.request.request_id}, which was cancelled before it owned {topic}/{partition}"
                )

    def removed(self, record: LogRecord) -> None:
        """Retention took a record away; nobody can be asked for it any more."""
        self._removed.add(record.place)
        self._waiting_places.discard(record.place)
        request_id = record.request_id or self._undecodable.get(record.place)
        if request_id is not None:
            self._removed_ids.add(request_id)

    # Commits.

    def is_finished(self, record: LogRecord) -> bool:
        """Whether the logs hold a record's outcome."""
        request_id = record.request_id
        if record.place in self._removed or record.place in self._moved:
            return True
        if request_id is None:
            return record.place in self._dead_places
        if any(attempt > record.attempt for attempt, number in self._attempts[request_id].items() if number):
            return True
        # A copy is superseded by the record with which the first one goes on, tried more often or not.
        is_copied = self.accepted[request_id].submissions > 1
        is_carried = any(
            (attempt >= record.attempt or is_copied) and place != record.place
            for place, attempt in self._carried[request_id].items()
        )
        if is_carried:
            return True
        # A worker may die between the result and the dead letter, and the next one end the request otherwise.
        results = self.terminals.get(request_id, [])
        if any(not _needs_letter(result) for result in results):
            return True
        # The first record of a request still owes the letter when a second one is skipped, as its outcome is known.
        is_kept = request_id in self.dead_ids or self.accepted[request_id].submissions > 1
        return bool(results) and is_kept

    def _was_moved_unknown_to_others(self, request_id: str) -> bool:
        """Whether it was expedited by a worker that took this knowledge with it: the next owner found it in its old
        place, and there is a copy as well."""
        causes = self.executions.causes
        return any(
            causes.may_have_forgotten(worker) and causes.was_found_unfinished(place, after=at)
            for worker, place, at in self._moves[request_id]
        )

    def _places_of(self, request_id: str) -> list[Place]:
        return [
            each.place
            for each in self.commits.records()
            if (each.request_id or self._undecodable.get(each.place)) == request_id
        ]

    def waiting_ids(self) -> list[str]:
        """The requests that have no outcome yet, in a certain order."""
        return sorted(self._waiting_ids)

    # The end.

    def unfinished(self) -> str | None:
        """Something that has not ended yet, in words; None when everything has."""
        waiting = self._waiting_ids - self._removed_ids
        if waiting:
            return f"{len(waiting)} requests have no outcome: {sorted(waiting)[:5]}"
        if self._waiting_places:
            return f"{len(self._waiting_places)} undecodable records are no dead letters: {min(self._waiting_places)}"
        return self.commits.uncommitted(but=self._removed)

    def check_end(self) -> None:
        """Checks that need everything to have ended."""
        for request_id, results in self.terminals.items():
            status = results[0].status
            is_kept = request_id in self.dead_ids or request_id in self._undecodable.values()
            if all(map(_needs_letter, results)) and not is_kept:
                self.ledger.fail(f"{request_id} {status} without a dead letter")
            if REASONS_BY_CODE[results[0].reason].status is not status:
                self.ledger.fail(f"{request_id} has status {status} and reason {results[0].reason}")
            extra = len(results) - 1
            if extra:
                self.ledger.counts["extra_outcomes"] += extra
                accepted = self.accepted.get(request_id)
                workers = {result.worker or "" for result in results} | self.executions.workers_of(request_id)
                is_explained = (
                    request_id in self.executions.repeated
                    or request_id in self._moved_twice
                    or any(map(self.executions.causes.was_cut, self._places_of(request_id)))
                    or any(map(self.executions.causes.may_have_forgotten, workers))
                    or self.executions.ran_on_unheard(request_id)
                    or self._was_moved_unknown_to_others(request_id)
                    or self._written_twice[request_id] > 0
                    or (accepted is not None and accepted.submissions > 1)
                )
                if not is_explained:
                    self.ledger.fail(f"{request_id} has {len(results)} outcomes, and nothing explains it")


def _place(text: str) -> Place:
    topic, partition, offset = text.rsplit(":", 2)
    return topic, int(partition), int(offset)


def _needs_letter(result: Result) -> bool:
    is_answer = result.reason == Reason.BACKEND_REJECTED.code and result.http_status == HTTPStatus.BAD_REQUEST
    if is_answer and result.reply is not None:
        return False
    return result.status in (Status.FAILED, Status.REJECTED)
