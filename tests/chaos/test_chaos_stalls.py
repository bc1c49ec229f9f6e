"""The ledger's judgement of partitions that stand still."""

from __future__ import annotations

import dataclasses

from chaos.drawn import NOTHING, TOPIC, execution, outcome, record
from chaos.facts import Facts, OwnerChange, Trouble, Window
from chaos.stalls import find_stalls, longest_stillness
from forebay_schemas.contract.tiers import Tier


def test_a_partition_stands_still_while_something_is_due_and_nothing_starts_or_ends() -> None:
    facts = dataclasses.replace(
        NOTHING,
        records=(record("a", due_ms=1_000), record("b", offset=1, due_ms=20_000)),
        outcomes=(outcome("a", 11_000), outcome("b", 26_000)),
        executions=(execution("w1", 4_000, 10_900), execution("w1", 21_000, 26_000, request_id="b")),
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
    facts = dataclasses.replace(NOTHING, outcomes=(), records=(record(due_ms=1_000),))
    assert find_stalls(facts, [], session_ms=10_000)[0].seconds == 99.0


_HELD = dataclasses.replace(
    NOTHING,
    records=(record(due_ms=1_000, tier=Tier.MID, priority=4),),
    outcomes=(outcome(at_ms=51_000),),
    owner_changes=(OwnerChange(at_ms=0, worker="w1", key=(TOPIC, 0), is_gain=True),),
)


def _unexplained_seconds(facts: Facts, down: list[tuple[int, int]] | None = None) -> float:
    stalls = find_stalls(facts, down or [], session_ms=10_000)
    return next(stall.unexplained_seconds for stall in stalls if stall.topic == TOPIC)


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
        record("mid-5", offset=1, due_ms=0, tier=Tier.MID, priority=5),
        record("high-0", offset=2, due_ms=0, tier=Tier.HIGH, priority=0),
        record("mid-4", offset=3, due_ms=0, tier=Tier.MID, priority=4),
    ]
    elsewhere = tuple(dataclasses.replace(record, topic="requests.other") for record in before)

    def ran(*starts: tuple[str, int, str]) -> float:
        executions = tuple(execution(worker, at, at + 10, request_id=of) for worker, at, of in starts)
        return _unexplained_seconds(
            dataclasses.replace(_HELD, records=(*_HELD.records, *elsewhere), executions=executions)
        )

    assert ran(("w1", 5_000, "mid-5"), ("w1", 5_900, "high-0"), ("w1", 6_800, "mid-5")) == 48.2
    assert ran(("w1", 5_000, "mid-5"), ("w1", 7_000, "high-0")) == 50.0  # not one after another
    assert ran(("w2", 5_000, "mid-5"), ("w2", 5_900, "high-0")) == 50.0  # not its owner's
    assert ran(("w1", 5_000, "mid-4"), ("w1", 5_900, "mid-4")) == 50.0  # not before it


def test_stillness_counts_only_while_something_waits() -> None:
    assert longest_stillness(due_ms=[0, 10_000, 10_500], started_ms=[500, 11_000, 12_500]) == 1.5
