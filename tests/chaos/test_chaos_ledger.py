"""The ledger's judgement of hand-drawn runs: it must find what is lost and what was repeated for no reason. Pure."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from chaos.acts import Ask
from chaos.facts import (
    Asked,
    Discarded,
    End,
    Execution,
    Facts,
    Letter,
    Life,
    Outcome,
    OwnerChange,
    Replayed,
    RequestRecord,
    SeenCommit,
    Trouble,
    Window,
)
from chaos.ledger import Cause, make_ledger
from chaos.ledger_letters import account_letters
from chaos.ledger_orders import Met, OrderAccount, account_orders
from chaos.stalls import find_stalls, longest_stillness
from forebay_schemas.contract.tiers import Tier

_TOPIC = "requests.high"


def _life(worker: str, *, slot: int = 1, end: End = End.RUNNING, signalled_ms: int | None = None) -> Life:
    return Life(worker=worker, slot=slot, started_ms=0, end=end, signalled_ms=signalled_ms)


def _record(request_id: str = "a", *, attempt: int = 1, offset: int = 0, due_ms: int = 0, **more: Any) -> RequestRecord:
    return RequestRecord(
        request_id=request_id,
        attempt=attempt,
        topic=_TOPIC,
        partition=0,
        offset=offset,
        written_ms=due_ms,
        due_ms=due_ms,
        **more,
    )


def _execution(worker: str, started_ms: int, ended_ms: int, **more: Any) -> Execution:
    fields = {"request_id": "a", "attempt": 1, "outcome": "completed", "fault": None, **more}
    return Execution(worker=worker, started_ms=started_ms, ended_ms=ended_ms, **fields)


def _outcome(request_id: str = "a", at_ms: int = 50_000, *, status: str = "completed", **more: Any) -> Outcome:
    return Outcome(request_id=request_id, attempt=1, status=status, reason=status, worker="w1", at_ms=at_ms, **more)


def _letter(key: str = "a", *, offset: int = 0, reason: str = "backend_error", replay_count: int = 0) -> Letter:
    return Letter(partition=0, offset=offset, key=key, reason=reason, replay_count=replay_count, at_ms=0)


_NOTHING = Facts(
    accepted=frozenset({"a"}),
    undecodable=frozenset(),
    records=(_record(),),
    outcomes=(_outcome(),),
    letters=(),
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
        _NOTHING, undecodable=frozenset({"junk-1", "junk-2"}), letters=(_letter("junk-2", reason="undecodable"),)
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
    lives = (_life("w1", end=End.KILLED, signalled_ms=2_900), _life("w2", slot=2))
    windows = (Window(trouble=Trouble.LINK, slots=frozenset({2}), start_ms=9_000, end_ms=19_000),) if cut_off else ()
    executions = (_execution("w1", 1_000, 2_000), _execution("w2", 20_000, 21_000))
    causes = _causes(lives=lives, windows=windows, executions=executions, outcomes=(_outcome(at_ms=outcome_ms),))
    assert causes == [cause]


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


@pytest.mark.parametrize(("started_ms", "cause"), [(13_510, Cause.CUT_OFF), (14_600, Cause.UNEXPLAINED)])
def test_a_worker_that_goes_on_sends_what_it_had_in_hand_and_nothing_else(started_ms: int, cause: Cause) -> None:
    window = Window(trouble=Trouble.STOPPED, slots=frozenset({2}), start_ms=1_500, end_ms=13_500)
    executions = (_execution("w1", 11_000, 12_000), _execution("w2", started_ms, started_ms + 50))
    assert _causes(windows=(window,), executions=executions) == [cause]


def test_the_trouble_of_another_slot_explains_nothing() -> None:
    window = Window(trouble=Trouble.STOPPED, slots=frozenset({2}), start_ms=1_500, end_ms=14_000)
    executions = (_execution("w1", 1_000, 2_000), _execution("w2", 15_000, 16_000))
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
    executions = (_execution("w1", 4_989, 5_500, attempt=2), _execution("w1", 8_990, 9_500, attempt=3))
    facts = dataclasses.replace(_NOTHING, records=records, executions=executions)
    assert make_ledger(facts).early == ("a attempt 2 by 11 ms",)


def test_a_request_that_was_submitted_twice_may_run_twice_but_not_three_times() -> None:
    twice = (_record(), _record(offset=5))
    executions = (_execution("w1", 1_000, 2_000), _execution("w2", 3_000, 4_000))
    assert _causes(records=twice, executions=executions) == []
    assert _causes(records=twice, executions=(*executions, _execution("w1", 5_000, 6_000))) == [Cause.UNEXPLAINED]


def test_a_replay_without_an_outcome_of_its_own_is_lost() -> None:
    facts = dataclasses.replace(_NOTHING, records=(_record(), _record(offset=1, replay_count=1)))
    assert make_ledger(facts).lost == ("a replay 1",)
    ended = dataclasses.replace(facts, outcomes=(_outcome(), _outcome(replay_count=1, status="failed")))
    assert make_ledger(ended).lost == ()
    assert make_ledger(ended).replay_outcomes == {"failed/failed": 1}
    assert make_ledger(ended).doubled_outcomes == 0


def test_a_replay_is_no_repetition_but_may_not_run_twice_itself() -> None:
    records = (_record(), _record(offset=1, replay_count=1))
    replayed = (_execution("w1", 1_000, 2_000), _execution("w2", 3_000, 4_000, replay_count=1))
    assert _causes(records=records, executions=replayed) == []
    again = _execution("w1", 5_000, 6_000, replay_count=1)
    assert _causes(records=records, executions=(*replayed, again)) == [Cause.UNEXPLAINED]


def test_a_copy_and_its_original_may_not_both_run() -> None:
    records = (_record(), _record(offset=7, due_ms=1_500, is_copy=True))
    assert _causes(records=records, executions=(_execution("w1", 2_000, 3_000),)) == []
    both = (_execution("w1", 2_000, 3_000), _execution("w2", 3_500, 4_000))
    assert _causes(records=records, executions=both) == [Cause.UNEXPLAINED]


@pytest.mark.parametrize(
    ("killed_ms", "cause"),
    [
        (1_700, Cause.COPIED_NOT_COMMITTED),
        (9_000, Cause.UNEXPLAINED),  # there was time enough to commit that the original is done
    ],
)
def test_a_kill_between_the_copy_and_the_commit_explains_that_both_ran(killed_ms: int, cause: Cause) -> None:
    records = (_record(), _record(offset=7, due_ms=1_500, is_copy=True))
    lives = (_life("w1"), _life("w2", slot=2), _life("w3", slot=3, end=End.KILLED, signalled_ms=killed_ms))
    both = (_execution("w1", 30_000, 31_000), _execution("w2", 40_000, 41_000))
    assert _causes(records=records, lives=lives, executions=both) == [cause]


def test_a_partition_stands_still_while_something_is_due_and_nothing_starts_or_ends() -> None:
    facts = dataclasses.replace(
        _NOTHING,
        records=(_record("a", due_ms=1_000), _record("b", offset=1, due_ms=20_000)),
        outcomes=(_outcome("a", 11_000), _outcome("b", 26_000)),
        executions=(_execution("w1", 4_000, 10_900), _execution("w1", 21_000, 26_000, request_id="b")),
    )
    stalls = find_stalls(facts, [], session_ms=10_000)
    assert [(stall.start_ms, stall.end_ms) for stall in stalls] == [
        (4_000, 11_000),
        (21_000, 26_000),
        (1_000, 4_000),
        (20_000, 21_000),
    ]
    assert find_stalls(facts, [(5_000, 8_000)], session_ms=10_000)[1].seconds == 4.0


def test_what_never_ends_stands_still_until_the_end() -> None:
    facts = dataclasses.replace(_NOTHING, outcomes=(), records=(_record(due_ms=1_000),))
    assert find_stalls(facts, [], session_ms=10_000)[0].seconds == 99.0


_HELD = dataclasses.replace(
    _NOTHING,
    records=(_record(due_ms=1_000, tier=Tier.MID, priority=4),),
    outcomes=(_outcome(at_ms=51_000),),
    owner_changes=(OwnerChange(at_ms=0, worker="w1", key=(_TOPIC, 0), is_gain=True),),
)


def _unexplained_seconds(facts: Facts, down: list[tuple[int, int]] | None = None) -> float:
    stalls = find_stalls(facts, down or [], session_ms=10_000)
    return next(stall.unexplained_seconds for stall in stalls if stall.topic == _TOPIC)


def test_what_faults_hold_together_is_taken_from_a_stall_once() -> None:
    windows = (
        Window(trouble=Trouble.STOPPED, slots=frozenset({1}), start_ms=2_000, end_ms=6_000),
        Window(trouble=Trouble.LINK, slots=frozenset({1, 2}), start_ms=4_000, end_ms=9_000),
        Window(trouble=Trouble.LINK, slots=frozenset({2}), start_ms=20_000, end_ms=30_000),  # not its owner's
    )
    facts = dataclasses.replace(_HELD, windows=windows)
    assert _unexplained_seconds(facts) == 43.0
    assert _unexplained_seconds(facts, [(8_000, 12_000)]) == 40.0
    assert find_stalls(facts, [(8_000, 12_000)], session_ms=10_000)[0].seconds == 46.0


def test_while_its_owner_runs_what_goes_before_a_partition_does_not_stand_still_by_itself() -> None:
    before = [
        _record("mid-5", offset=1, due_ms=0, tier=Tier.MID, priority=5),
        _record("high-0", offset=2, due_ms=0, tier=Tier.HIGH, priority=0),
        _record("mid-4", offset=3, due_ms=0, tier=Tier.MID, priority=4),
    ]
    elsewhere = tuple(dataclasses.replace(record, topic="requests.other") for record in before)

    def ran(*starts: tuple[str, int, str]) -> float:
        executions = tuple(_execution(worker, at, at + 10, request_id=of) for worker, at, of in starts)
        return _unexplained_seconds(
            dataclasses.replace(_HELD, records=(*_HELD.records, *elsewhere), executions=executions)
        )

    assert ran(("w1", 5_000, "mid-5"), ("w1", 5_900, "high-0"), ("w1", 6_800, "mid-5")) == 48.2
    assert ran(("w1", 5_000, "mid-5"), ("w1", 7_000, "high-0")) == 50.0  # not one after another
    assert ran(("w2", 5_000, "mid-5"), ("w2", 5_900, "high-0")) == 50.0  # not its owner's
    assert ran(("w1", 5_000, "mid-4"), ("w1", 5_900, "mid-4")) == 50.0  # not before it


def test_stillness_counts_only_while_something_waits() -> None:
    assert longest_stillness(due_ms=[0, 10_000, 10_500], started_ms=[500, 11_000, 12_500]) == 1.5


_SENT = _record(offset=5, replay_count=1)
_REPLAYED = Replayed(partition=0, offset=0, turn=("a", 1), topic=_TOPIC, to_partition=0, to_offset=5)
_ONE_REPLAY = dataclasses.replace(_NOTHING, letters=(_letter(),), records=(_record(), _SENT), replayed=(_REPLAYED,))


def test_every_dead_letter_is_open_replayed_or_discarded() -> None:
    letters = (_letter(), _letter("b", offset=1), _letter("junk-1", offset=2), _letter("a", offset=3, replay_count=1))
    facts = dataclasses.replace(_ONE_REPLAY, letters=letters, discarded=(Discarded(partition=0, offset=2),))
    account = account_letters(facts)
    assert (account.letters, account.open, account.replayed, account.discarded) == (4, 2, 1, 1)
    assert (account.replays, account.problems) == (1, ())


def test_two_dead_letters_of_one_turn_are_replayed_by_one_replay() -> None:
    account = account_letters(dataclasses.replace(_ONE_REPLAY, letters=(_letter(), _letter(offset=1))))
    assert (account.replayed, account.problems) == (2, ())


def test_the_copy_and_the_retry_of_a_replay_are_no_second_replay() -> None:
    further = (_record(offset=6, replay_count=1, is_copy=True), _record(offset=7, replay_count=1, attempt=2))
    account = account_letters(dataclasses.replace(_ONE_REPLAY, records=(_SENT, *further)))
    assert (account.sent_twice, account.problems) == ((), ())


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"records": (_SENT, dataclasses.replace(_SENT, offset=6))}, "replay 1 of a was sent 2 times"),
        ({"replayed": ()}, "replay 1 of a is on no record"),
        ({"replayed": (_REPLAYED, _REPLAYED)}, "replay 1 of a is recorded twice"),
        ({"records": (_record(),)}, f"replay 1 of a is not at {_TOPIC}/0:5, where it should be"),
        ({"letters": (_letter("b"),)}, "replay 1 of a is recorded as of 0:0, which is another dead letter"),
        ({"discarded": (Discarded(partition=0, offset=0),)}, "(0, 0) was discarded, and replayed as well"),
        ({"discarded": (Discarded(partition=0, offset=9),)}, "what was discarded is no dead letter: (0, 9)"),
    ],
)
def test_what_must_not_become_of_a_dead_letter_is_found(given: dict[str, Any], problem: str) -> None:
    assert account_letters(dataclasses.replace(_ONE_REPLAY, **given)).problems == (problem,)


def _order(at_ms: int, *, ask: Ask = Ask.CANCEL, answer: str | None = None) -> Asked:
    return Asked(ask=ask, request_id="a", at_ms=at_ms, answer=answer)


@pytest.mark.parametrize(
    ("at_ms", "met"), [(500, Met.WAITING), (1_500, Met.RUNNING), (2_100, Met.WAITING), (3_000, Met.ENDED)]
)
def test_an_order_meets_a_request_that_waits_runs_or_has_ended(at_ms: int, met: Met) -> None:
    facts = dataclasses.replace(
        _NOTHING,
        asked=(_order(at_ms, ask=Ask.EXPEDITE),),
        executions=(_execution("w1", 1_000, 2_000),),
        outcomes=(_outcome(at_ms=2_500),),
    )
    assert account_orders(facts).asked == {Ask.CANCEL: {}, Ask.EXPEDITE: {met: 1}}


def _cancelled(*, started_ms: int, **given: Any) -> OrderAccount:
    """A cancel at 1,000; its outcome at 1,200, if not given."""
    given = {"outcomes": (_outcome(at_ms=1_200, status="cancelled"),), **given}
    executions = (_execution("w1", started_ms, started_ms + 100),)
    return account_orders(dataclasses.replace(_NOTHING, asked=(_order(1_000),), executions=executions, **given))


def test_what_started_before_its_cancel_was_known_is_no_problem() -> None:
    account = _cancelled(started_ms=1_100)
    assert (account.cancelled, account.late_starts, account.problems) == (1, 0, ())


def test_what_starts_after_it_was_cancelled_is_found() -> None:
    assert _cancelled(started_ms=1_400).problems == ("a attempt 1 was started by w1 after it was cancelled",)


def test_a_cancel_that_no_worker_heeds_is_found() -> None:
    completed = (_outcome(at_ms=9_000),)
    assert _cancelled(started_ms=5_000, outcomes=completed).problems == ()
    assert len(_cancelled(started_ms=7_000, outcomes=completed).problems) == 1


def test_a_worker_that_was_cut_off_did_not_know_of_the_order() -> None:
    window = Window(trouble=Trouble.STOPPED, slots=frozenset({1}), start_ms=900, end_ms=1_350)
    account = _cancelled(started_ms=1_400, windows=(window,))
    assert (account.late_starts, account.problems) == (1, ())


def test_what_was_submitted_again_after_its_cancel_may_run() -> None:
    assert _cancelled(started_ms=1_400, records=(_record(), _record(offset=1, due_ms=1_300))).problems == ()


def test_more_copies_than_originals_are_counted() -> None:
    copies = tuple(_record(offset=offset, is_copy=True) for offset in (1, 2))
    account = account_orders(dataclasses.replace(_NOTHING, records=(_record(), *copies)))
    assert (account.expedited, account.copied_twice) == (1, 1)
    submitted_twice = account_orders(dataclasses.replace(_NOTHING, records=(_record(), _record(offset=9), *copies)))
    assert (submitted_twice.expedited, submitted_twice.copied_twice) == (1, 0)


def test_an_expedite_that_a_worker_says_it_did_has_a_copy() -> None:
    told = _order(1_000, ask=Ask.EXPEDITE, answer="expedited")
    facts = dataclasses.replace(_NOTHING, asked=(told,))
    assert account_orders(facts).problems == ("a was expedited, a worker says, and has no copy in the high tier",)
    copied = dataclasses.replace(facts, records=(_record(), _record(offset=1, is_copy=True)))
    assert account_orders(copied).problems == ()


def test_a_cancel_that_a_worker_says_it_did_has_that_outcome() -> None:
    told = _order(1_000, answer="cancelled")
    facts = dataclasses.replace(_NOTHING, asked=(told,))
    assert account_orders(facts).problems == ("a was cancelled, a worker says, and has no such outcome",)
