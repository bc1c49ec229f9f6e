"""The gate over the engine's counters, also when others use the engine too."""

from __future__ import annotations

import random

import pytest

from forebay_worker.pacing.gate import Gate
from forebay_worker.pacing.policies.slo_aimd import SloAimd
from forebay_worker.pacing.slots.sharing import Others
from forebay_worker.request.work import Work
from simulated.gate import EngineCounters, GateStage, run_seconds, work_of
from simulated.ports import NOW_MS


def test_the_engines_counters_teach_the_model() -> None:
    stage, engine, chance = GateStage(), EngineCounters(), random.Random(1)
    stage.start(20)
    for _ in range(300):
        if chance.random() < 0.5 and len(stage.running) < 120:
            stage.start(5)
        elif len(stage.running) > 10:
            stage.end(succeeded=False)
        engine.second(len(stage.running), prompt_rate=chance.uniform(0, 8000))
        stage.step(engine.reading(stage.now + 1.0, len(stage.running)))
    model = stage.gate.model
    assert model.is_metered
    assert model.step_seconds == pytest.approx(0.010, rel=0.10)
    assert model.sequence_seconds == pytest.approx(0.0002, rel=0.10)
    assert model.prompt_token_seconds == pytest.approx(0.00006, rel=0.05)


@pytest.mark.parametrize(
    ("case", "fields"),
    [
        ("started anew: its counters are lower", {"prompt_tokens_total": 0.0, "output_tokens_total": 0.0}),
        ("one of them started anew", {"output_tokens_total": 10.0}),
        ("a counter that jumped", {"output_tokens_total": 1e12}),
    ],
)
def test_a_second_across_a_restart_is_skipped(case: str, fields: dict[str, float | None]) -> None:
    stage, engine = GateStage(), EngineCounters()
    stage.start(40)
    run_seconds(stage, engine, 30)
    model = stage.gate.model
    before = (model.step_seconds, model.sequence_seconds, model.prompt_token_seconds, model.token_seconds)
    stage.step(engine.reading(stage.now + 1.0, 40, **fields))
    assert (model.step_seconds, model.sequence_seconds, model.prompt_token_seconds, model.token_seconds) == before, case
    assert model.is_metered, case


@pytest.mark.parametrize(
    ("case", "fields"),
    [
        ("no page", None),
        ("no output tokens on it", {"output_tokens_total": None}),
        ("no prompt tokens on it", {"prompt_tokens_total": None}),
        ("idle when it was read", {"running_requests": 0.0}),
    ],
)
def test_when_the_counters_say_nothing_answers_count_again(case: str, fields: dict[str, float | None] | None) -> None:
    stage, engine = GateStage(), EngineCounters()
    stage.start(40)
    run_seconds(stage, engine, 30)
    felt = stage.gate.model.token_seconds
    assert felt is not None
    engine.second(40)
    stage.step(None if fields is None else engine.reading(stage.now + 1.0, 40, **fields))
    assert not stage.gate.model.is_metered, case
    stage.end(output_tokens=100)
    assert stage.gate.model.token_seconds != felt, case
    run_seconds(stage, engine, 2)
    assert stage.gate.model.is_metered, f"{case}: and then it told again"


def test_a_reading_that_was_seen_before_changes_nothing() -> None:
    stage, engine = GateStage(), EngineCounters()
    stage.start(40)
    run_seconds(stage, engine, 30)
    felt, at = stage.gate.model.token_seconds, stage.now
    for _ in range(3):
        stage.step(engine.reading(at, 40))
    assert stage.gate.model.token_seconds == felt
    assert stage.gate.model.is_metered


def test_a_second_in_which_nothing_ran_for_a_while_is_not_taken_for_slow() -> None:
    """A burst that ends and another that begins: the engine was busy at both looks, and idle between."""
    stage, engine = GateStage(), EngineCounters()
    stage.start(10)
    run_seconds(stage, engine, 30)
    felt = stage.gate.model.token_seconds
    for _ in range(20):
        while stage.running:
            stage.end(succeeded=False)
        stage.now += 0.8
        stage.start(10)
        engine.output_tokens += 150.0
        stage.step(engine.reading(stage.now + 0.2, 10), seconds=0.2)
    assert stage.gate.model.token_seconds == felt


# Others on the same engine


def test_what_others_have_in_flight_is_what_the_engine_has_beyond_our_own() -> None:
    stage, engine = GateStage(), EngineCounters(others=60)
    stage.start(20)
    run_seconds(stage, engine, 20)
    assert stage.gate.others_requests == pytest.approx(60, rel=0.01)


def test_a_reading_of_a_second_ago_does_not_take_our_own_for_others() -> None:
    stage, engine = GateStage(), EngineCounters()
    stage.start(50)
    run_seconds(stage, engine, 10)
    old = engine.reading(stage.now, 50)
    for _ in range(45):
        stage.end(succeeded=False)
    stage.step(old)
    assert stage.gate.others_requests == 0.0
    stage.step(engine.reading(stage.now, 50))
    assert stage.gate.others_requests == 0.0


@pytest.mark.parametrize(
    ("case", "own", "others", "share"),
    [
        ("alone: all of it", 40, 0, 1.0),
        ("two that ask alike, and fill it: half each", 100, 100, 0.5),
        ("one that asks three times as much as the other", 150, 50, 0.75),
        ("idle beside one who fills it: nothing to give", 0, 200, 0.0),
    ],
)
def test_the_knee_is_the_engines_and_a_worker_gets_its_part(case: str, own: int, others: int, share: float) -> None:
    stage, engine = GateStage(), EngineCounters(others=others)
    stage.start(own)
    signals = run_seconds(stage, engine, 60)
    whole = stage.gate.model.knee_requests(prompt_tokens=1000, output_tokens=100)
    assert whole < 100
    assert signals.knee_requests == pytest.approx(share * whole, rel=0.02, abs=0.1), case


def test_below_the_knee_a_worker_may_take_what_the_others_leave() -> None:
    stage, engine = GateStage(), EngineCounters(others=20)
    stage.start(5)
    signals = run_seconds(stage, engine, 60)
    whole = stage.gate.model.knee_requests(prompt_tokens=1000, output_tokens=100)
    assert signals.knee_requests == pytest.approx(whole - 20, rel=0.02)


@pytest.mark.parametrize(
    ("case", "own_tokens", "tokens_of_all", "taken_in_share"),
    [
        ("as many prompts of others wait as of ours, and half of what the engine takes in is theirs", 500, 976, 0.51),
        ("but they hold back too: one long prompt of ours is not counted for each of theirs", 400_000, 401_000, 1.0),
    ],
)
def test_prompts_of_others_are_waited_for_too(
    case: str, own_tokens: int, tokens_of_all: int, taken_in_share: float
) -> None:
    stage = GateStage()
    stage.start(20, work_of(prompt_tokens=1))
    run_seconds(stage, EngineCounters(others=20), 30)
    before = stage.gate.prefill_tokens(stage.now)
    stage.start(work=work_of(prompt_tokens=own_tokens))
    assert stage.gate.prefill_tokens_of_all(stage.now) == pytest.approx(tokens_of_all, rel=0.05), case
    assert before == pytest.approx(0.0, abs=25)
    seconds = 100 * stage.gate.prefill_seconds(stage.now) / stage.gate.prefill_tokens_of_all(stage.now)
    stage.now += seconds
    left = stage.gate.prefill_tokens(stage.now)
    assert own_tokens - left == pytest.approx(100 * taken_in_share, rel=0.1, abs=25), case


def test_a_worker_with_one_long_prompt_keeps_its_part_of_the_knee_while_requests_wait() -> None:
    stage = GateStage()
    stage.start(1, work_of(prompt_tokens=400_000))
    run_seconds(stage, EngineCounters(others=69), 30)
    knees = []
    for waiting in (0, 300):
        stage.gate.step(
            stage.now, NOW_MS, in_flight=1, waiting=waiting, dropped=0, engine=stage.gate._last_reading, gpu=None
        )
        knees.append(stage.gate.knee_requests)
    assert knees[1] > 5 * knees[0]


@pytest.mark.parametrize(
    ("case", "target_seconds", "own", "others", "is_slow_by_load"),
    [
        ("a step of its own is over the target, and little runs", 0.008, 4, 0, False),
        ("what runs makes a third of each step", 0.008, 30, 0, True),
        ("this worker's few among many of others", 0.008, 4, 60, True),
        ("over no target", 0.1, 30, 0, False),
    ],
)
def test_tokens_are_slow_by_load_when_with_fewer_in_flight_they_would_come_notably_sooner(
    case: str, target_seconds: float, own: int, others: int, is_slow_by_load: bool
) -> None:
    stage, engine = GateStage(), EngineCounters(others=others)
    stage.gate.policy = SloAimd(limit_min=1, limit_start=64, limit_max=64, token_seconds_target=target_seconds)
    stage.gate.shares(
        share_requests=64, others=Others(workers=1, in_flight=others), common_limit=None, silent_seconds=None
    )
    stage.start(own)
    for _ in range(60):
        engine.second(own, prompt_rate=0.0)
        stage.now += 1.0
        stage.gate.step(
            stage.now, NOW_MS, in_flight=own, waiting=0, dropped=0, engine=engine.reading(stage.now, own), gpu=None
        )
    assert stage.gate.is_slow_by_load is is_slow_by_load, case


def test_two_workers_of_one_engine_settle_at_its_knee_together() -> None:
    """Neither knows of the other, each has plenty to do, and the target alone would let neither grow."""
    gates = [
        Gate(
            policy=SloAimd(limit_min=4, limit_start=start, limit_max=256, token_seconds_target=0.012),
            prefill_seconds_max=None,
        )
        for start in (32, 120)
    ]
    engine = EngineCounters()
    works: list[list[Work]] = [[], []]
    for now in range(1, 400):
        for gate, running in zip(gates, works, strict=True):
            while len(running) < gate.limit_requests:
                running.append(work_of(500, 400))
                gate.started(running[-1], float(now))
            while len(running) > gate.limit_requests:
                gate.ended(
                    running.pop(), float(now), in_flight=1, prompt_tokens=None, output_tokens=None, succeeded=False
                )
        total = sum(map(len, works))
        engine.second(total)
        reading = engine.reading(float(now), total)
        for gate, running in zip(gates, works, strict=True):
            gate.step(now + 0.01, NOW_MS, in_flight=len(running), waiting=9, dropped=1, engine=reading, gpu=None)
    knee = gates[0].model.knee_requests(prompt_tokens=1000, output_tokens=100)
    assert sum(gate.limit_requests for gate in gates) == pytest.approx(knee, rel=0.15)
