"""Faults that workers like this one have had, put back into the real code: the simulation must find each of them.

Each bug replaces methods or names of the worker while a history runs. A check that finds none of these checks nothing.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from forebay_schemas.contract.coordination import NoticeKind
from forebay_schemas.contract.headers import ATTEMPT, EXPEDITED_TIER, FIRST_ENQUEUED_AT
from forebay_schemas.contract.offsets_metadata import NOTHING
from forebay_worker.cluster.broker_clock import BrokerClock
from forebay_worker.coordination import follower as coordination
from forebay_worker.dispatch import arrivals
from forebay_worker.dispatch.blame import Blame
from forebay_worker.dispatch.charging import Charging
from forebay_worker.dispatch.dispatcher import Dispatcher
from forebay_worker.dispatch.failure_policy import FailurePolicy
from forebay_worker.dispatch.suspects import Suspects
from forebay_worker.intake import intake, settled
from forebay_worker.intake import partitions as ownership
from forebay_worker.intake.commits import Commits
from forebay_worker.intake.partitions import Ownership
from forebay_worker.intake.settled import SeenOutcomes
from forebay_worker.outcome import records as dead_letters
from forebay_worker.outcome import reporter as outcome
from forebay_worker.outcome.delivery import Delivery
from forebay_worker.outcome.reporter import Reporter
from forebay_worker.pacing.gate import Gate
from forebay_worker.pacing.limitation import Limitation
from forebay_worker.partition.assignment import Assignment, Verdict
from forebay_worker.partition.claims import SUSPECT_CRASHES
from forebay_worker.partition.offsets import PartitionOffsets
from forebay_worker.partition.quiet import Quiet
from simulation import copy_bugs  # noqa: F401 - adds its own
from simulation.bug import BUGS, bug, bug_named
from simulation.process import Patch

__all__ = ["BUGS", "bug_named"]


@bug("commit-past-unfinished", "the commit follows the highest finished offset, as if those below were gaps")
def _commit_past_unfinished() -> list[Patch]:
    def finish(self: PartitionOffsets, offset: int) -> None:
        while self._pending and self._pending[0] <= offset:
            self._pending.popleft()

    return [(PartitionOffsets, "finish", finish)]


@bug("finished-before-delivery", "an offset is finished when its result is produced, not when it is delivered")
def _finished_before_delivery() -> list[Patch]:
    real = Reporter.completed

    def completed(self: Reporter, work: Any, answer: Any, *, service_seconds: float) -> None:
        real(self, work, answer, service_seconds=service_seconds)
        work.assignment.done.append(work.offset)

    return [(Reporter, "completed", completed)]


@bug("no-seek-back", "after an exception from the client nothing is sought back")
def _no_seek_back() -> list[Patch]:
    return [(Ownership, "seek_back", lambda *_args: None)]


@bug("lost-partitions-kept", "partitions that were lost are run and committed on")
def _lost_partitions_kept() -> list[Patch]:
    return [(Ownership, "_on_lost", lambda *_args: None)]


@bug("withheld-run-at-once", "the new owner runs what a former owner still runs")
def _withheld_run_at_once() -> list[Patch]:
    real = Assignment.receive

    def receive(self: Assignment, offset: int) -> Verdict:
        verdict = real(self, offset)
        return Verdict.RUN if verdict is Verdict.WITHHOLD else verdict

    return [(Assignment, "receive", receive)]


@bug("finished-forgotten-at-revocation", "what finished just before a revocation is not drained")
def _finished_forgotten_at_revocation() -> list[Patch]:
    real = Ownership._revoke

    def revoke(self: Ownership, keys: list[Any], *, lost: bool) -> None:
        for assignment in self.assignments.values():
            assignment.done.clear()
        real(self, keys, lost=lost)

    return [(Ownership, "_revoke", revoke)]


@bug("retry-without-delay", "a retry runs as soon as it is read")
def _retry_without_delay() -> list[Patch]:
    return [(intake, "wait_seconds_of", lambda _work, **_more: 0.0)]


def _without_header(name: str, value: bytes | None) -> list[Patch]:
    real = dead_letters.retry_record

    def retry_record(*args: Any, **more: Any) -> Any:
        record = real(*args, **more)
        record.headers[:] = [header for header in record.headers if header[0] != name]
        if value is not None:
            record.headers.append((name, value))
        return record

    return [(outcome, "retry_record", retry_record)]


@bug("attempts-start-anew", "the attempt is not counted on from one hop to the next")
def _attempts_start_anew() -> list[Patch]:
    return _without_header(ATTEMPT, b"1")


@bug("deadline-starts-anew", "a retry forgets when its request was first enqueued")
def _deadline_starts_anew() -> list[Patch]:
    return _without_header(FIRST_ENQUEUED_AT, None)


@bug("own-clock", "deadlines go by a worker's own clock, however wrong")
def _own_clock() -> list[Patch]:
    return [(BrokerClock, "_choose", lambda _: None)]


@bug("breaker-charges", "a request is charged for a backend that serves nobody")
def _breaker_charges() -> list[Patch]:
    def backend_failed(self: Charging, work: Any, failure: Any, now: float) -> None:
        self.charge(work, failure, now)

    return [(Charging, "backend_failed", backend_failed)]


@bug("errors-to-all-charge", "a request is charged for an error that all get")
def _errors_to_all_charge() -> list[Patch]:
    def blame(_self: FailurePolicy, failure: Any) -> Blame:
        return Blame.BACKEND if failure.of_backend else Blame.REQUEST

    return [(FailurePolicy, "blame", blame)]


@bug("slots-leak-at-rebalance", "a slot is not freed when its partition has gone")
def _slots_leak_at_rebalance() -> list[Patch]:
    real = Dispatcher._end

    def end(self: Dispatcher, work: Any, answer: Any) -> float:
        now = real(self, work, answer)
        if not work.assignment.claims.is_open:
            self.running[id(work)] = work
        return now

    return [(Dispatcher, "_end", end)]


@bug("credit-leaks", "what ends without being run never gives its credit back")
def _credit_leaks() -> list[Patch]:
    real = Dispatcher.accept

    def accept(self: Dispatcher, batch: list[Any]) -> None:
        credit = batch[0].assignment.credit
        before = credit._received_records
        real(self, batch)
        if any(work.request is None or work.deadline_ms <= self._clock.wall_ms() for work in batch):
            credit._received_records = before

    return [(Dispatcher, "accept", accept)]


@bug("metadata-ignored", "what the commit says beyond its offset is not read")
def _metadata_ignored() -> list[Patch]:
    return [(ownership, "decode_metadata", lambda *_args: NOTHING)]


@bug("finished-notice-ignored", "the new owner does not heed that a request ended elsewhere")
def _finished_notice_ignored() -> list[Patch]:
    real = Assignment.apply

    def apply(self: Assignment, notice: Any, now: float) -> None:
        if notice.kind is not NoticeKind.FINISHED:
            real(self, notice, now)

    return [(Assignment, "apply", apply)]


@bug("dead-letter-left-out", "a request that failed for good is not kept")
def _dead_letter_left_out() -> list[Patch]:
    real = Reporter._end

    def end(
        self: Reporter, work: Any, reason: Any, error: str, service_seconds: Any, *, dead: bool, **more: Any
    ) -> None:
        real(self, work, reason, error, service_seconds, dead=dead and work.request is None, **more)

    return [(Reporter, "_end", end)]


@bug("failed-produce-skipped", "an outcome that could not be delivered counts as delivered")
def _failed_produce_skipped() -> list[Patch]:
    def later(self: Delivery, work: Any, record: Any, _error: Any) -> None:
        self._uncount(record.value)
        work.assignment.done.append(work.offset)

    return [(Delivery, "_later", later)]


@bug("shares-ignored", "each worker takes the backend's limit for its own")
def _shares_ignored() -> list[Patch]:
    return [(Gate, "share_requests", property(lambda self: self.policy.limit_requests))]


@bug("limit-ignored", "more requests are in flight than the limit says")
def _limit_ignored() -> list[Patch]:
    real = Dispatcher.limited_by

    def limited_by(self: Dispatcher, now: float) -> Limitation | None:
        limitation = real(self, now)
        return None if limitation is not None and limitation.signal == "limit" else limitation

    return [(Dispatcher, "limited_by", limited_by)]


@bug("memory-ignored", "requests in flight take more memory than they may")
def _memory_ignored() -> list[Patch]:
    real = Gate.blocked_by

    def blocked_by(self: Gate, now: float, in_flight: int, memory_bytes: int) -> Limitation | None:
        del memory_bytes
        return real(self, now, in_flight, 0)

    return [(Gate, "blocked_by", blocked_by)]


@bug("crashes-not-counted", "a request that kills its worker is run for ever")
def _crashes_not_counted() -> list[Patch]:
    return [(arrivals, "CONVICTED_CRASHES", 1_000_000)]


@bug("suspects-beside-others", "a suspect runs beside others, and others start beside it")
def _suspects_run_beside_others() -> list[Patch]:
    return [(Suspects, "excludes_others", property(lambda _: False))]


@bug("decoded-beside-suspects", "records are decoded beside a suspect")
def _intakes_decode_beside_suspects() -> list[Patch]:
    return [(Quiet, "may_read", lambda *_: True), (Quiet, "is_quiet", property(lambda _: True))]


@bug("convicted-in-company", "who ran at two crashes is convicted, whoever ran beside it")
def _convicted_after_two_crashes() -> list[Patch]:
    return [(arrivals, "CONVICTED_CRASHES", SUSPECT_CRASHES)]


@bug("full-commit-paused-for-ever", "a partition taken over with a full commit is not read any more")
def _full_commit_paused_for_ever() -> list[Patch]:
    def is_stretched(self: Ownership, key: Any, _assignment: Assignment) -> bool:
        return self.commits.metadata_bytes(key) >= self._bounds.metadata_bytes_nearly_full

    return [(Ownership, "_is_stretched", is_stretched)]


@bug("expedited-before-copied", "an offset is finished before its copy lies in high")
def _expedited_before_copied() -> list[Patch]:
    real = Reporter.expedite

    def expedite(self: Reporter, work: Any) -> None:
        real(self, work)
        work.assignment.done.append(work.offset)

    return [(Reporter, "expedite", expedite)]


@bug("results-not-looked-through", "what has its outcome runs again after a crash")
def _results_not_looked_through() -> list[Patch]:
    return [(SeenOutcomes, "has", lambda *_args: False)]


@bug("look-from-now-on", "outcomes from before the assignment are not looked at")
def _look_from_now_on() -> list[Patch]:
    return [(settled, "look_from_ms", lambda *_args, now_ms, **_more: now_ms)]


@bug("letter-after-its-result", "a result is written before its dead letter is durable")
def _letter_after_its_result() -> list[Patch]:
    real = Delivery.produce

    def produce(self: Delivery, work: Any, record: Any) -> None:
        if record.result is not None:
            self.produce_result(work, (work.request_id or "").encode(), record.result)
            record = dataclasses.replace(record, result=None)
        real(self, work, record)

    return [(Delivery, "produce", produce)]


@bug("taken-received-again", "what was handed on unread is handed on again when read")
def _taken_received_again() -> list[Patch]:
    return [(Assignment, "take_unread", lambda *_args: None)]


@bug("expedited-with-the-high-deadline", "an expedited request gets the default deadline of the high tier")
def _expedited_with_the_high_deadline() -> list[Patch]:
    real = dead_letters.expedited_record

    def expedited_record(*args: Any, **more: Any) -> Any:
        record = real(*args, **more)
        record.headers[:] = [header for header in record.headers if header[0] != EXPEDITED_TIER]
        return record

    return [(outcome, "expedited_record", expedited_record)]


@bug("cancelled-while-running-unreported", "what is cancelled while it runs has no outcome")
def _cancelled_while_running_unreported() -> list[Patch]:
    real = Dispatcher.gave_up

    def gave_up(self: Dispatcher, work: Any, *, deadline_passed: bool) -> None:
        real(self, work, deadline_passed=deadline_passed and not self._desk.is_cancelled(work))

    return [(Dispatcher, "gave_up", gave_up)]


@bug("barrier-waits-for-nothing", "a partition is opened before what its former owner said was heard")
def _barrier_waits_for_nothing() -> list[Patch]:
    return [(coordination.Coordination, "_has_reached", lambda *_args: True)]


@bug("last-commit-ignored", "the new owner does not heed a last commit that the broker refused")
def _last_commit_ignored() -> list[Patch]:
    return [(Assignment, "_apply_commit", lambda *_args: None)]


@bug("last-commit-never-said", "a last commit that the broker refuses is not said to the next owner")
def _last_commit_never_said() -> list[Patch]:
    real = Commits.commit_last

    def commit_last(self: Commits, *args: Any) -> Any:
        return None if real(self, *args) is None else {}

    return [(Commits, "commit_last", commit_last)]


@bug("any-answer-confirms", "the answer to a commit taken as lost confirms the one that was sent after it")
def _any_answer_confirms() -> list[Patch]:
    return [(Commits, "_answers", lambda _self, _partition, sent: sent is not None)]
