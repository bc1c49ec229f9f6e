"""Judgement of a pacing run in real time."""

from __future__ import annotations

import pytest
from benchmarks.pacing.workloads import Arrival
from benchmarks.pacing_live.drive import Look, Record
from benchmarks.pacing_live.judge import broken_promises, figures_of, recovery_of, time_ratio

from forebay_sandbox.engine.physics import EnginePhysics
from forebay_schemas.contract.reasons import Status
from forebay_schemas.contract.results import Result
from forebay_schemas.contract.tiers import Tier


def arrival(at: float, *, tier: Tier = Tier.HIGH, allowed: float = 5.0) -> Arrival:
    return Arrival(
        at_seconds=at,
        tier=tier,
        prompt_tokens=100,
        output_tokens=10,
        deadline_seconds=at + allowed,
        hint_max_tokens=10,
        biz_type="chat",
        row=0,
    )


def result(number: int, status: Status = Status.COMPLETED, *, queue: float = 0.1) -> Result:
    return Result(request_id=str(number), status=status, reason=status, queue_seconds=queue, finished_at=0)


def look(at: float, *, waiting: int = 1, limit: int = 10, engine: tuple[float, float, float] | None) -> Look:
    return Look(at_seconds=at, waiting=waiting, running=1, limits=(limit,), limited_by=(None,), engine=engine)


def test_late_is_not_on_time_and_what_has_no_result_is_lost() -> None:
    record = Record(offered=[arrival(0.0), arrival(1.0), arrival(2.0, tier=Tier.LOW)])
    record.accepted = {0: 0.0, 1: 1.0, 2: 2.0}
    record.results = {0: result(0), 1: result(1, queue=2.0)}
    record.finished_seconds = {0: 4.9, 1: 6.1}
    figures = figures_of(record, workers=1)
    assert figures.on_time_share == pytest.approx(1 / 3)
    assert figures.lost == 1
    assert figures.high_wait_p95_seconds == 2.0
    assert time_ratio(record, 6.1) == 1.0


def test_an_engine_that_stands_still_while_something_waits_is_idle() -> None:
    record = Record(offered=[arrival(0.0)])
    record.looks = [
        look(0.0, engine=(0.0, 0.0, 0.0)),
        look(1.0, engine=(0.5, 0.0, 0.0)),
        look(2.0, waiting=0, engine=(0.5, 0.0, 0.0)),
        look(3.0, engine=None),
        look(4.0, engine=(0.1, 0.0, 0.0)),
        look(5.0, engine=(1.1, 0.0, 0.0)),
    ]
    assert figures_of(record, workers=1).idle_waiting_share == pytest.approx(0.25)


def test_recovery_counts_from_the_faults_end_and_the_limits_swing_once_settled() -> None:
    engine = EnginePhysics()
    record = Record(offered=[arrival(0.0)])
    rate = [1000.0] * 40 + [0.0] * 10 + [500.0] * 3 + [1000.0] * 47
    prompt = 0.0
    for second, tokens in enumerate(rate):
        record.looks.append(look(float(second), limit=12 if second == 80 else 10, engine=(second, prompt, 0.0)))
        prompt += tokens
    found = recovery_of(record, begins=40.0, ends=50.0, until=99.0, engine=engine)
    assert found.work_before == pytest.approx(0.06)
    assert found.recovered_seconds == pytest.approx(4.0, abs=1.0)
    assert found.swing_after == pytest.approx(0.2)


def test_each_broken_promise_is_a_sentence() -> None:
    kept = {"offered": 2, "accepted": 2, "lost": 0, "ended": {"completed": 2}, "on_time_share": 1.0}
    pulse = kept | {"time_ratio": 1.05, "high_wait_p95_seconds": 0.2, "idle_waiting_share": 0.0}
    assert broken_promises({"pulse": pulse, "code": kept | {"virtual_on_time_share": 1.0}}) == []
    broken = pulse | {
        "lost": 1,
        "time_ratio": 1.2,
        "high_wait_p95_seconds": 1.5,
        "idle_waiting_share": 0.1,
        "ended": {"completed": 1, "shed_overload": 1},
    }
    assert len(broken_promises({"pulse": broken})) == 5
    slow = kept | {"recovered_seconds": 12.0, "swing_during": 0.2, "swing_after": 0.0}
    assert len(broken_promises({"slow": slow})) == 2
