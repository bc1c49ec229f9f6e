"""The verdict of the pacing benchmark: means, the JSON that is scripted against, and which promises are broken."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.pacing.__main__ import main
from benchmarks.pacing.contestants import OURS, front_of, names
from benchmarks.pacing.report import Average, Findings
from benchmarks.pacing.scenarios import FaultScore, PulseScore
from benchmarks.pacing.scores import Score
from benchmarks.pacing.workloads import Hint, physics

from forebay_schemas.contract.tiers import Tier


def scored(*, on_time: int = 85, tier: Tier = Tier.HIGH) -> Score:
    return Score(
        offered=200,
        on_time=on_time,
        ratio=on_time / 100,
        tier_ratios={tier: on_time / 100},
        tier_shares={tier: on_time / 200},
        quartile_shares=(0.4, 0.4, 0.4, 0.4),
        drops={"deadline_passed_waiting": 20},
        late=200 - on_time - 20,
        lateness_p50_seconds=1.0,
        lateness_p95_seconds=2.0,
        wasted_seconds=3.0,
        idle_waiting_share=0.01,
        limit_changes=7,
        refusals=0,
        preemptions=0,
    )


GOOD_PULSE = PulseScore(high_wait_p95_seconds=0.8, lost=0, time_ratio=1.05, idle_waiting_share=0.01)
GOOD_FAULT = FaultScore(
    on_time_share=0.9,
    lost_to_refusals=0,
    work_before=0.9,
    work_during=0.9,
    work_after=0.9,
    recovered_seconds=2.0,
    swing_during=0.05,
    swing_after=0.05,
)


def findings(
    *,
    ours: int = 85,
    other: int = 60,
    workload: str = "code",
    pulse: PulseScore = GOOD_PULSE,
    fault: FaultScore = GOOD_FAULT,
) -> Findings:
    return Findings(
        workloads={
            (workload, Hint.NOISY): {
                "gradient2+lanes": Average.of([scored(on_time=other)]),
                OURS: Average.of([scored(on_time=ours), scored(on_time=ours - 2)]),
            }
        },
        pulses={OURS: pulse},
        faults={OURS: {"refusals": fault, "slow": fault, "restart": fault}},
    )


@pytest.mark.parametrize(
    ("found", "broken"),
    [
        (findings(), []),
        (findings(ours=79), ["code/noisy: ratio is 0.780, promised is at least 0.80"]),
        (findings(other=84), ["code/noisy: ratio is 0.840, gradient2+lanes has 0.840"]),
        (findings(ours=79, workload="mixed"), ["mixed/noisy: ratio of high is 0.780, promised is at least 0.80"]),
        (findings(pulse=replace(GOOD_PULSE, lost=1)), ["pulse: requests lost is 1.000, promised is at most 0.00"]),
        (
            findings(fault=replace(GOOD_FAULT, recovered_seconds=11.0)),
            ["restart: seconds to full rate is 11.000, promised is at most 10.00"],
        ),
    ],
)
def test_each_broken_promise_is_named(found: Findings, broken: list[str]) -> None:
    assert found.broken_promises() == broken


def test_the_json_has_the_names_that_scripts_use() -> None:
    entry = findings().as_json()["workloads"]["code/noisy"][OURS]
    assert (entry["ratio"], entry["spread"], entry["tiers"]) == (0.84, 0.02, {"high": 0.84})


def test_every_contestant_has_a_front() -> None:
    assert len(set(names())) == len(names())
    for name in names():
        assert callable(front_of(name, physics()))


def test_a_bench_of_one_ends_with_one_json_line_and_says_what_is_broken(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["--seeds", "1", "--workload", "code", "--contestant", "no_buffer"])
    written = capsys.readouterr()
    assert status == 1
    assert written.out.count("\n") == 1
    assert f"BROKEN: code/cap: {OURS} was not run" in written.err
