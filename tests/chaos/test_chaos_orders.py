"""The ledger's judgement of replays, discards, cancels and expedites."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from chaos.acts import Ask
from chaos.drawn import NOTHING, TOPIC, execution, letter, outcome, record
from chaos.facts import Asked, Discarded, Replayed, Trouble, Window
from chaos.ledger_letters import account_letters
from chaos.ledger_orders import Met, OrderAccount, account_orders

_SENT = record(offset=5, replay_count=1)
_REPLAYED = Replayed(partition=0, offset=0, turn=("a", 1), topic=TOPIC, to_partition=0, to_offset=5)
_ONE_REPLAY = dataclasses.replace(NOTHING, letters=(letter(),), records=(record(), _SENT), replayed=(_REPLAYED,))


def test_every_dead_letter_is_open_replayed_or_discarded() -> None:
    letters = (letter(), letter("b", offset=1), letter("junk-1", offset=2), letter("a", offset=3, replay_count=1))
    facts = dataclasses.replace(_ONE_REPLAY, letters=letters, discarded=(Discarded(partition=0, offset=2),))
    account = account_letters(facts)
    assert (account.letters, account.open, account.replayed, account.discarded) == (4, 2, 1, 1)
    assert (account.replays, account.problems) == (1, ())


def test_two_dead_letters_of_one_turn_are_replayed_by_one_replay() -> None:
    account = account_letters(dataclasses.replace(_ONE_REPLAY, letters=(letter(), letter(offset=1))))
    assert (account.replayed, account.problems) == (2, ())


def test_the_copy_and_the_retry_of_a_replay_are_no_second_replay() -> None:
    further = (record(offset=6, replay_count=1, is_copy=True), record(offset=7, replay_count=1, attempt=2))
    account = account_letters(dataclasses.replace(_ONE_REPLAY, records=(_SENT, *further)))
    assert (account.sent_twice, account.problems) == ((), ())


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"records": (_SENT, dataclasses.replace(_SENT, offset=6))}, "replay 1 of a was sent 2 times"),
        ({"replayed": ()}, "replay 1 of a is on no record"),
        ({"replayed": (_REPLAYED, _REPLAYED)}, "replay 1 of a is recorded twice"),
        ({"records": (record(),)}, f"replay 1 of a is not at {TOPIC}/0:5, where it should be"),
        ({"letters": (letter("b"),)}, "replay 1 of a is recorded as of 0:0, which is another dead letter"),
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
        NOTHING,
        asked=(_order(at_ms, ask=Ask.EXPEDITE),),
        executions=(execution("w1", 1_000, 2_000),),
        outcomes=(outcome(at_ms=2_500),),
    )
    assert account_orders(facts).asked == {Ask.CANCEL: {}, Ask.EXPEDITE: {met: 1}}


def _cancelled(*, started_ms: int, **given: Any) -> OrderAccount:
    """A cancel at 1,000; its outcome at 1,200, if not given."""
    given = {"outcomes": (outcome(at_ms=1_200, status="cancelled"),), **given}
    executions = (execution("w1", started_ms, started_ms + 100),)
    return account_orders(dataclasses.replace(NOTHING, asked=(_order(1_000),), executions=executions, **given))


def test_what_started_before_its_cancel_was_known_is_no_problem() -> None:
    account = _cancelled(started_ms=1_100)
    assert (account.cancelled, account.late_starts, account.problems) == (1, 0, ())


def test_what_starts_after_it_was_cancelled_is_found() -> None:
    assert _cancelled(started_ms=1_400).problems == ("a attempt 1 was started by w1 after it was cancelled",)


def test_a_cancel_that_no_worker_heeds_is_found() -> None:
    completed = (outcome(at_ms=9_000),)
    assert _cancelled(started_ms=5_000, outcomes=completed).problems == ()
    assert len(_cancelled(started_ms=7_000, outcomes=completed).problems) == 1


def test_a_worker_that_was_cut_off_did_not_know_of_the_order() -> None:
    window = Window(trouble=Trouble.STOPPED, slots=frozenset({1}), start_ms=900, end_ms=1_350)
    account = _cancelled(started_ms=1_400, windows=(window,))
    assert (account.late_starts, account.problems) == (1, ())


def test_what_was_submitted_again_after_its_cancel_may_run() -> None:
    assert _cancelled(started_ms=1_400, records=(record(), record(offset=1, due_ms=1_300))).problems == ()


def test_more_copies_than_originals_are_counted() -> None:
    copies = tuple(record(offset=offset, is_copy=True) for offset in (1, 2))
    account = account_orders(dataclasses.replace(NOTHING, records=(record(), *copies)))
    assert (account.expedited, account.copied_twice) == (1, 1)
    submitted_twice = account_orders(dataclasses.replace(NOTHING, records=(record(), record(offset=9), *copies)))
    assert (submitted_twice.expedited, submitted_twice.copied_twice) == (1, 0)


def test_an_expedite_that_a_worker_says_it_did_has_a_copy() -> None:
    told = _order(1_000, ask=Ask.EXPEDITE, answer="expedited")
    facts = dataclasses.replace(NOTHING, asked=(told,))
    assert account_orders(facts).problems == ("a was expedited, a worker says, and has no copy in the high tier",)
    copied = dataclasses.replace(facts, records=(record(), record(offset=1, is_copy=True)))
    assert account_orders(copied).problems == ()


def test_a_cancel_that_a_worker_says_it_did_has_that_outcome() -> None:
    told = _order(1_000, answer="cancelled")
    facts = dataclasses.replace(NOTHING, asked=(told,))
    assert account_orders(facts).problems == ("a was cancelled, a worker says, and has no such outcome",)
