"""Runs in virtual time: what the driver, the fronts and the faults promise."""

from __future__ import annotations

import pytest
from benchmarks.pacing.engine import OVERLOADED, Engine, Fault, Ledger, VirtualClock
from benchmarks.pacing.fronts import FifoFront, NoBuffer
from benchmarks.pacing.lanes_front import LanesFront, make_lanes_front
from benchmarks.pacing.scenarios import SLOW, pulse, steady, sustained_per_second
from benchmarks.pacing.scores import score
from benchmarks.pacing.virtual import MakeFront, Run, run
from benchmarks.pacing.workloads import Arrival, alone_seconds, physics, work_seconds

from forebay_sandbox.engine.physics import EnginePhysics
from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_worker.pacing.policies.fixed import FixedLimit
from forebay_worker.pacing.policies.slo_aimd import SloAimd

ENGINE = physics()


def offered(count: int, *, every_seconds: float, deadline_seconds: float = 1000.0) -> list[Arrival]:
    return [
        Arrival(
            at_seconds=number * every_seconds,
            tier=Tier.MID,
            prompt_tokens=1000,
            output_tokens=100,
            deadline_seconds=number * every_seconds + deadline_seconds,
            hint_max_tokens=100,
            biz_type="chat",
            row=number,
        )
        for number in range(count)
    ]


def no_buffer(engine: Engine, ledger: Ledger, _clock: VirtualClock) -> NoBuffer:
    return NoBuffer(engine, ledger)


def fifo(limit_requests: int) -> MakeFront:
    def make(engine: Engine, ledger: Ledger, _clock: VirtualClock) -> FifoFront:
        return FifoFront(
            engine,
            ledger,
            policy=FixedLimit(limit_requests=limit_requests),
            prefill_token_seconds=ENGINE.c_seconds,
        )

    return make


def played(arrivals: list[Arrival], front: MakeFront, *faults: Fault, engine: EnginePhysics = ENGINE) -> Run:
    return run(arrivals, physics=engine, make_front=front, seed=1, faults=faults)


def test_a_request_alone_takes_as_long_as_the_physics_say() -> None:
    requests = offered(1, every_seconds=1.0)
    found = played(requests, no_buffer)
    assert found.ledger.finished_at[0] == pytest.approx(alone_seconds(requests[0], ENGINE))
    assert found.done_work_seconds == pytest.approx(work_seconds(requests[0], ENGINE))


def test_all_that_is_done_in_time_wastes_nothing() -> None:
    found = played(offered(100, every_seconds=0.2), fifo(16))
    scored = score(found, dict.fromkeys(TIERS, 100.0))
    assert (scored.on_time, scored.late, scored.drops) == (100, 0, {})
    assert scored.wasted_seconds == pytest.approx(0.0, abs=1e-6)
    assert scored.ratio == pytest.approx(100 / 300)
    assert scored.quartile_shares == (1.0, 1.0, 1.0, 1.0)


def test_never_more_are_in_flight_than_the_limit_says() -> None:
    found = played(offered(100, every_seconds=0.05), fifo(3))
    assert max(sample.in_flight for sample in found.samples) == 3


def test_what_expires_while_it_waits_is_dropped() -> None:
    found = played(offered(100, every_seconds=0.01, deadline_seconds=5.0), fifo(2))
    assert set(found.ledger.dropped.values()) == {"deadline_passed_waiting"}
    assert len(found.ledger.dropped) + len(found.ledger.finished_at) == 100


def test_without_a_buffer_what_the_engine_refuses_is_lost() -> None:
    found = played(offered(1000, every_seconds=0.001), no_buffer)
    assert found.ledger.dropped
    assert set(found.ledger.dropped.values()) == {f"refused_{OVERLOADED}"}


def test_a_front_that_asks_again_loses_nothing_to_refusals_or_a_restart() -> None:
    faults = (
        Fault(at_seconds=1.0, for_seconds=2.0, refused_share=1.0),
        Fault(at_seconds=4.0, for_seconds=1.0, down=True),
    )
    found = played(offered(100, every_seconds=0.1), fifo(16), *faults)
    assert found.refusals
    assert len(found.ledger.finished_at) == 100


def test_a_slow_engine_does_less_work_until_it_recovers() -> None:
    found = run(steady(ENGINE, seed=1), physics=ENGINE, make_front=fifo(256), seed=1, faults=SLOW)
    during = [sample.work_share for sample in found.samples if 125 < sample.at_seconds < 175]
    after = [sample.work_share for sample in found.samples if 200 < sample.at_seconds < 250]
    assert sum(during) / len(during) == pytest.approx(0.7, abs=0.05)
    assert sum(after) / len(after) == pytest.approx(1.0, abs=0.05)


def test_an_engine_whose_steps_are_slow_by_themselves_is_not_left_empty_while_lower_tiers_wait() -> None:
    """Its token takes 75 ms with one request in flight and with fifty, half as much again as the target: nobody's comes
    sooner for what waits. Three quarters of the limit are enough for all."""
    engine = EnginePhysics(a_seconds=0.075, b_seconds=0.0, c_seconds=0.0)
    per_second = 24 / (20 * engine.a_seconds)
    arrivals = [
        Arrival(
            at_seconds=number / per_second,
            tier=TIERS[number % len(TIERS)],
            prompt_tokens=20,
            output_tokens=20,
            deadline_seconds=number / per_second + 600.0,
            hint_max_tokens=20,
            biz_type="chat",
            row=number,
        )
        for number in range(1000)
    ]

    def dispatch(engine: Engine, ledger: Ledger, clock: VirtualClock) -> LanesFront:
        policy = SloAimd(limit_min=4, limit_start=32, limit_max=32, token_seconds_target=0.05)
        return make_lanes_front(engine, ledger, clock, policy=policy)

    ledger = played(arrivals, dispatch, engine=engine).ledger
    assert len(ledger.finished_at) == len(arrivals)
    longest_wait = dict.fromkeys(TIERS, 0.0)
    for number, arrival in enumerate(arrivals):
        waited = ledger.started_at[number] - arrival.at_seconds
        longest_wait[arrival.tier] = max(longest_wait[arrival.tier], waited)
    assert max(longest_wait.values()) < 1.0, longest_wait


def test_a_run_is_repeated_by_its_seed() -> None:
    requests = offered(200, every_seconds=0.05)
    refusing = Fault(at_seconds=1.0, for_seconds=5.0, refused_share=0.5)
    first, again = (played(requests, fifo(16), refusing).ledger.finished_at for _ in range(2))
    assert first == again


def test_the_pulse_is_over_when_an_ideal_server_has_caught_up() -> None:
    found = pulse(ENGINE, seed=1)
    per_second = sustained_per_second(ENGINE)
    assert found.ideal_seconds == pytest.approx(len(found.offered) / per_second, rel=0.1)
    high = sum(arrival.tier is Tier.HIGH for arrival in found.offered)
    assert high == pytest.approx(len(found.offered) / 4, abs=1)
    in_pulse = sum(60 <= arrival.at_seconds < 120 for arrival in found.offered)
    assert in_pulse == pytest.approx(60 * 4 * per_second / 1.5, rel=0.1)
