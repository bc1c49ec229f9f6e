"""The ledger's judgement of hand-drawn runs: it must find what is lost, repeated without reason, or early."""

from __future__ import annotations

import dataclasses

import pytest

from chaos.drawn import NOTHING, TOPIC, causes_of, execution, letter, life, outcome, record
from chaos.facts import End, Execution, SeenCommit, Trouble, Window
from chaos.ledger import Cause, make_ledger


def test_an_accepted_request_without_an_outcome_is_lost() -> None:
    facts = dataclasses.replace(NOTHING, accepted=frozenset({"a", "b"}))
    assert make_ledger(facts).lost == ("b",)


def test_junk_without_a_dead_letter_is_lost() -> None:
    facts = dataclasses.replace(
        NOTHING, undecodable=frozenset({"junk-1", "junk-2"}), letters=(letter("junk-2", reason="undecodable"),)
    )
    assert make_ledger(facts).lost == ("junk-1",)


def test_a_repetition_for_no_reason_is_unexplained() -> None:
    assert causes_of(executions=(execution("w1", 1_000, 2_000), execution("w2", 3_000, 4_000))) == [Cause.UNEXPLAINED]


def test_a_repetition_on_the_same_worker_is_unexplained() -> None:
    assert causes_of(executions=(execution("w1", 1_000, 2_000), execution("w1", 1_500, 2_500))) == [Cause.UNEXPLAINED]


@pytest.mark.parametrize(
    ("killed_ms", "cause"),
    [
        (1_500, Cause.IN_FLIGHT_AT_KILL),
        (2_900, Cause.SINCE_LAST_COMMIT),
        (9_000, Cause.UNEXPLAINED),  # there was time enough to commit
    ],
)
def test_a_kill_explains_what_ran_or_was_not_committed_then(killed_ms: int, cause: Cause) -> None:
    lives = (life("w1", end=End.KILLED, signalled_ms=killed_ms), life("w2", slot=2))
    executions = (execution("w1", 1_000, 2_000), execution("w2", 20_000, 21_000))
    assert causes_of(lives=lives, executions=executions) == [cause]


@pytest.mark.parametrize(
    ("outcome_ms", "cut_off", "cause"),
    [
        (2_100, False, Cause.UNEXPLAINED),
        (2_100, True, Cause.SINCE_LAST_COMMIT),  # who ran it again could not look
        (2_950, False, Cause.SINCE_LAST_COMMIT),
    ],
)
def test_a_kill_does_not_explain_that_what_has_its_outcome_runs_again(
    outcome_ms: int, cut_off: bool, cause: Cause
) -> None:
    lives = (life("w1", end=End.KILLED, signalled_ms=2_900), life("w2", slot=2))
    windows = (Window(trouble=Trouble.LINK, slots=frozenset({2}), start_ms=9_000, end_ms=19_000),) if cut_off else ()
    executions = (execution("w1", 1_000, 2_000), execution("w2", 20_000, 21_000))
    causes = causes_of(lives=lives, windows=windows, executions=executions, outcomes=(outcome(at_ms=outcome_ms),))
    assert causes == [cause]


def test_nothing_explains_the_repetition_of_what_was_committed() -> None:
    lives = (life("w1", end=End.KILLED, signalled_ms=2_900), life("w2", slot=2))
    executions = (execution("w1", 1_000, 2_000), execution("w2", 20_000, 21_000))
    beyond = {(TOPIC, 0): [SeenCommit(at_ms=2_500, offset=0, finished=((0, 1),))]}
    assert causes_of(lives=lives, executions=executions, commits=beyond) == [Cause.UNEXPLAINED]
    below = {(TOPIC, 0): [SeenCommit(at_ms=2_500, offset=1, finished=())]}
    assert causes_of(lives=lives, executions=executions, commits=below) == [Cause.UNEXPLAINED]


@pytest.mark.parametrize(("seconds", "cause"), [(12, Cause.CUT_OFF), (4, Cause.SINCE_LAST_COMMIT)])
def test_a_worker_that_was_silent_beyond_its_session_was_cut_off(seconds: int, cause: Cause) -> None:
    window = Window(trouble=Trouble.STOPPED, slots=frozenset({1}), start_ms=1_500, end_ms=1_500 + seconds * 1_000)
    executions = (execution("w1", 1_000, 2_000), execution("w2", 14_000, 15_000))
    assert causes_of(windows=(window,), executions=executions) == [cause]


def test_a_worker_that_goes_on_may_not_know_at_once_what_it_lost() -> None:
    window = Window(trouble=Trouble.STOPPED, slots=frozenset({1}), start_ms=1_500, end_ms=13_500)
    executions = (execution("w1", 13_550, 15_000), execution("w2", 14_000, 15_000))
    assert causes_of(windows=(window,), executions=executions) == [Cause.CUT_OFF]


@pytest.mark.parametrize(("started_ms", "cause"), [(13_510, Cause.CUT_OFF), (14_600, Cause.UNEXPLAINED)])
def test_a_worker_that_goes_on_sends_what_it_had_in_hand_and_nothing_else(started_ms: int, cause: Cause) -> None:
    window = Window(trouble=Trouble.STOPPED, slots=frozenset({2}), start_ms=1_500, end_ms=13_500)
    executions = (execution("w1", 11_000, 12_000), execution("w2", started_ms, started_ms + 50))
    assert causes_of(windows=(window,), executions=executions) == [cause]


def test_the_trouble_of_another_slot_explains_nothing() -> None:
    window = Window(trouble=Trouble.STOPPED, slots=frozenset({2}), start_ms=1_500, end_ms=14_000)
    executions = (execution("w1", 1_000, 2_000), execution("w2", 15_000, 16_000))
    assert causes_of(windows=(window,), executions=executions) == [Cause.UNEXPLAINED]


def test_a_commit_may_wait_for_another_member_that_died() -> None:
    lives = (
        life("w1", end=End.KILLED, signalled_ms=9_000),
        life("w2", slot=2),
        life("w3", slot=3, end=End.KILLED, signalled_ms=1_500),
    )
    executions = (execution("w1", 1_000, 2_000), execution("w2", 20_000, 21_000))
    assert causes_of(lives=lives, executions=executions) == [Cause.SINCE_LAST_COMMIT]


@pytest.mark.parametrize(
    "first",
    [
        execution("w1", 1_000, 1_000, outcome="refused", fault="status"),
        execution("w1", 1_000, 1_000, outcome="failed", fault="cut"),
        execution("w1", 1_000, 9_000, outcome="disconnected", fault="hang"),
        execution("w1", 1_000, 2_000, outcome="failed"),
    ],
)
def test_what_the_engine_did_not_run_is_no_execution(first: Execution) -> None:
    assert causes_of(executions=(first, execution("w2", 10_000, 11_000))) == []


def test_a_later_attempt_is_no_repetition() -> None:
    executions = (execution("w1", 1_000, 2_000), execution("w2", 3_000, 4_000, attempt=2))
    assert causes_of(executions=executions, records=(record(), record(attempt=2))) == []


def test_a_retry_before_its_time_is_early() -> None:
    records = (record(), record(attempt=2, due_ms=5_000), record(attempt=3, due_ms=9_000))
    executions = (execution("w1", 4_989, 5_500, attempt=2), execution("w1", 8_990, 9_500, attempt=3))
    facts = dataclasses.replace(NOTHING, records=records, executions=executions)
    assert make_ledger(facts).early == ("a attempt 2 by 11 ms",)


def test_a_request_that_was_submitted_twice_may_run_twice_but_not_three_times() -> None:
    twice = (record(), record(offset=5))
    executions = (execution("w1", 1_000, 2_000), execution("w2", 3_000, 4_000))
    assert causes_of(records=twice, executions=executions) == []
    assert causes_of(records=twice, executions=(*executions, execution("w1", 5_000, 6_000))) == [Cause.UNEXPLAINED]


def test_a_replay_without_an_outcome_of_its_own_is_lost() -> None:
    facts = dataclasses.replace(NOTHING, records=(record(), record(offset=1, replay_count=1)))
    assert make_ledger(facts).lost == ("a replay 1",)
    ended = dataclasses.replace(facts, outcomes=(outcome(), outcome(replay_count=1, status="failed")))
    assert make_ledger(ended).lost == ()
    assert make_ledger(ended).replay_outcomes == {"failed/failed": 1}
    assert make_ledger(ended).doubled_outcomes == 0


def test_a_replay_is_no_repetition_but_may_not_run_twice_itself() -> None:
    records = (record(), record(offset=1, replay_count=1))
    replayed = (execution("w1", 1_000, 2_000), execution("w2", 3_000, 4_000, replay_count=1))
    assert causes_of(records=records, executions=replayed) == []
    again = execution("w1", 5_000, 6_000, replay_count=1)
    assert causes_of(records=records, executions=(*replayed, again)) == [Cause.UNEXPLAINED]


def test_a_copy_and_its_original_may_not_both_run() -> None:
    records = (record(), record(offset=7, due_ms=1_500, is_copy=True))
    assert causes_of(records=records, executions=(execution("w1", 2_000, 3_000),)) == []
    both = (execution("w1", 2_000, 3_000), execution("w2", 3_500, 4_000))
    assert causes_of(records=records, executions=both) == [Cause.UNEXPLAINED]


@pytest.mark.parametrize(
    ("killed_ms", "cause"),
    [
        (1_700, Cause.COPIED_NOT_COMMITTED),
        (9_000, Cause.UNEXPLAINED),  # there was time enough to commit that the original is done
    ],
)
def test_a_kill_between_the_copy_and_the_commit_explains_that_both_ran(killed_ms: int, cause: Cause) -> None:
    records = (record(), record(offset=7, due_ms=1_500, is_copy=True))
    lives = (life("w1"), life("w2", slot=2), life("w3", slot=3, end=End.KILLED, signalled_ms=killed_ms))
    both = (execution("w1", 30_000, 31_000), execution("w2", 40_000, 41_000))
    assert causes_of(records=records, lives=lives, executions=both) == [cause]
