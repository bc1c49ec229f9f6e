"""The ledger's judgement of hand-drawn runs: it must find what is lost and what was repeated for no reason. Pure."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from chaos.facts import End, Execution, Facts, Life, Outcome, RequestRecord, SeenCommit, Trouble, Window
from chaos.ledger import Cause, make_ledger
from chaos.stalls import find_stalls, longest_stillness

_TOPIC = "requests.high"


def _life(worker: str, *, slot: int = 1, end: End = End.RUNNING, signalled_ms: int | None = None) -> Life:
    return Life(worker=worker, slot=slot, started_ms=0, end=end, signalled_ms=signalled_ms)


def _record(request_id: str = "a", *, attempt: int = 1, offset: int = 0, due_ms: int = 0) -> RequestRecord:
    return RequestRecord(
        request_id=request_id,
        attempt=attempt,
        topic=_TOPIC,
        partition=0,
        offset=offset,
        written_ms=due_ms,
        due_ms=due_ms,
    )


def _execution(worker: str, started_ms: int, ended_ms: int, **more: Any) -> Execution:
    fields = {"request_id": "a", "attempt": 1, "outcome": "completed", "fault": None, **more}
    return Execution(worker=worker, started_ms=started_ms, ended_ms=ended_ms, **fields)


def _outcome(request_id: str = "a", at_ms: int = 50_000) -> Outcome:
    return Outcome(request_id=request_id, attempt=1, status="completed", reason="completed", worker="w1", at_ms=at_ms)


_NOTHING = Facts(
    accepted=frozenset({"a"}),
    undecodable=frozenset(),
    records=(_record(),),
    outcomes=(_outcome(),),
    dead_letter_keys=frozenset(),
    executions=(),
    lives=(_life("w1"), _life("w2", slot=2)),
    windows=(),
    commits={},
    end_ms=100_000,
)


def _causes(**given: Any) -> list[Cause]:
    return [each.cause for each in make_ledger(dataclasses.replace(_NOTHING, **given)).repetitions]


def test_an_accepted_request_without_an_outcome_is_lost() -> None:
    facts = dataclasses.replace(_NOTHING, accepted=frozenset({"a", "b"}))
    assert make_ledger(facts).lost == ("b",)


def test_junk_without_a_dead_letter_is_lost() -> None:
    facts = dataclasses.replace(
        _NOTHING, undecodable=frozenset({"junk-1", "junk-2"}), dead_letter_keys=frozenset({"junk-2"})
    )
    assert make_ledger(facts).lost == ("junk-1",)


def test_a_repetition_for_no_reason_is_unexplained() -> None:
    assert _causes(executions=(_execution("w1", 1_000, 2_000), _execution("w2", 3_000, 4_000))) == [Cause.UNEXPLAINED]


def test_a_repetition_on_the_same_worker_is_unexplained() -> None:
    assert _causes(executions=(_execution("w1", 1_000, 2_000), _execution("w1", 1_500, 2_500))) == [Cause.UNEXPLAINED]


@pytest.mark.parametrize(
    ("killed_ms", "cause"),
    [
        (1_500, Cause.IN_FLIGHT_AT_KILL),
        (2_900, Cause.SINCE_LAST_COMMIT),
        (9_000, Cause.UNEXPLAINED),  # there was time enough to commit
    ],
)
def test_a_kill_explains_what_ran_or_was_not_committed_then(killed_ms: int, cause: Cause) -> None:
    lives = (_life("w1", end=End.KILLED, signalled_ms=killed_ms), _life("w2", slot=2))
    executions = (_execution("w1", 1_000, 2_000), _execution("w2", 20_000, 21_000))
    assert _causes(lives=lives, executions=executions) == [cause]


def test_nothing_explains_the_repetition_of_what_was_committed() -> None:
    lives = (_life("w1", end=End.KILLED, signalled_ms=2_900), _life("w2", slot=2))
    executions = (_execution("w1", 1_000, 2_000), _execution("w2", 20_000, 21_000))
    beyond = {(_TOPIC, 0): [SeenCommit(at_ms=2_500, offset=0, finished=((0, 1),))]}
    assert _causes(lives=lives, executions=executions, commits=beyond) == [Cause.UNEXPLAINED]
    below = {(_TOPIC, 0): [SeenCommit(at_ms=2_500, offset=1, finished=())]}
    assert _causes(lives=lives, executions=executions, commits=below) == [Cause.UNEXPLAINED]


@pytest.mark.parametrize(("seconds", "cause"), [(12, Cause.CUT_OFF), (4, Cause.SINCE_LAST_COMMIT)])
def test_a_worker_that_was_silent_beyond_its_session_was_cut_off(seconds: int, cause: Cause) -> None:
    window = Window(trouble=Trouble.STOPPED, slots=frozenset({1}), start_ms=1_500, end_ms=1_500 + seconds * 1_000)
    executions = (_execution("w1", 1_000, 2_000), _execution("w2", 14_000, 15_000))
    assert _causes(windows=(window,), executions=executions) == [cause]


def test_a_worker_that_goes_on_may_not_know_at_once_what_it_lost() -> None:
    window = Window(trouble=Trouble.STOPPED, slots=frozenset({1}), start_ms=1_500, end_ms=13_500)
    executions = (_execution("w1", 13_550, 15_000), _execution("w2", 14_000, 15_000))
    assert _causes(windows=(window,), executions=executions) == [Cause.CUT_OFF]


def test_the_trouble_of_another_slot_explains_nothing() -> None:
    window = Window(trouble=Trouble.STOPPED, slots=frozenset({2}), start_ms=1_500, end_ms=14_000)
    executions = (_execution("w1", 1_000, 2_000), _execution("w2", 14_000, 15_000))
    assert _causes(windows=(window,), executions=executions) == [Cause.UNEXPLAINED]


def test_a_commit_may_wait_for_another_member_that_died() -> None:
    lives = (
        _life("w1", end=End.KILLED, signalled_ms=9_000),
        _life("w2", slot=2),
        _life("w3", slot=3, end=End.KILLED, signalled_ms=1_500),
    )
    executions = (_execution("w1", 1_000, 2_000), _execution("w2", 20_000, 21_000))
    assert _causes(lives=lives, executions=executions) == [Cause.SINCE_LAST_COMMIT]


@pytest.mark.parametrize(
    "first",
    [
        _execution("w1", 1_000, 1_000, outcome="refused", fault="status"),
        _execution("w1", 1_000, 1_000, outcome="failed", fault="cut"),
        _execution("w1", 1_000, 9_000, outcome="disconnected", fault="hang"),
        _execution("w1", 1_000, 2_000, outcome="failed"),
    ],
)
def test_what_the_engine_did_not_run_is_no_execution(first: Execution) -> None:
    assert _causes(executions=(first, _execution("w2", 10_000, 11_000))) == []


def test_a_later_attempt_is_no_repetition() -> None:
    executions = (_execution("w1", 1_000, 2_000), _execution("w2", 3_000, 4_000, attempt=2))
    assert _causes(executions=executions, records=(_record(), _record(attempt=2))) == []


def test_a_retry_before_its_time_is_early() -> None:
    records = (_record(), _record(attempt=2, due_ms=5_000), _record(attempt=3, due_ms=9_000))
    executions = (_execution("w1", 4_999, 5_500, attempt=2), _execution("w1", 9_000, 9_500, attempt=3))
    facts = dataclasses.replace(_NOTHING, records=records, executions=executions)
    assert make_ledger(facts).early == ("a attempt 2 by 1 ms",)


def test_a_request_that_was_submitted_twice_may_run_twice_but_not_three_times() -> None:
    twice = (_record(), _record(offset=5))
    executions = (_execution("w1", 1_000, 2_000), _execution("w2", 3_000, 4_000))
    assert _causes(records=twice, executions=executions) == []
    assert _causes(records=twice, executions=(*executions, _execution("w1", 5_000, 6_000))) == [Cause.UNEXPLAINED]


def test_a_partition_stands_still_while_something_is_due_and_nothing_starts_or_ends() -> None:
    facts = dataclasses.replace(
        _NOTHING,
        records=(_record("a", due_ms=1_000), _record("b", offset=1, due_ms=20_000)),
        outcomes=(_outcome("a", 11_000), _outcome("b", 26_000)),
        executions=(_execution("w1", 4_000, 10_900), _execution("w1", 21_000, 26_000, request_id="b")),
    )
    stalls = find_stalls(facts, [])
    assert [(stall.start_ms, stall.end_ms) for stall in stalls] == [
        (4_000, 11_000),
        (21_000, 26_000),
        (1_000, 4_000),
        (20_000, 21_000),
    ]
    assert find_stalls(facts, [(5_000, 8_000)])[1].seconds == 4.0


def test_what_never_ends_stands_still_until_the_end() -> None:
    facts = dataclasses.replace(_NOTHING, outcomes=(), records=(_record(due_ms=1_000),))
    assert find_stalls(facts, [])[0].seconds == 99.0


def test_stillness_counts_only_while_something_waits() -> None:
    assert longest_stillness(due_ms=[0, 10_000, 10_500], started_ms=[500, 11_000, 12_500]) == 1.5
