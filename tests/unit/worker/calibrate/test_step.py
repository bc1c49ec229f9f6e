"""One step of a calibration: when it has measured enough, and when it spares a sick backend."""

from __future__ import annotations

import random

import pytest

from forebay_worker.calibrate.health import IN_A_ROW, SILENT_SECONDS, Health
from forebay_worker.calibrate.samples import WINDOWS_MAX, Ended, Phase, StepMeter, Trouble, quantile
from forebay_worker.signals.readings import EngineReading, GpuReading


def answer(at: float, seconds: float = 1.0, *, tokens: int = 11) -> Ended:
    return Ended(
        started=at - seconds,
        first_token_at=at - seconds + 0.1 * seconds,
        ended=at,
        chunks=tokens,
        prompt_tokens=100,
        output_tokens=tokens,
    )


def metered(meter: StepMeter, seconds: list[float], *, in_flight: int) -> float:
    """Feeds answers of these lengths, from this many clients one after the other. Returns the time at the end."""
    now, chunks = 0.0, 0
    for one in seconds:
        now += one / in_flight
        chunks += 11
        meter.add(answer(now, one), chunks_total=chunks)
        if meter.phase is Phase.DONE:
            break
    return now


def test_a_step_that_holds_still_is_over_after_three_windows() -> None:
    meter = StepMeter(concurrency=4, window_seconds=1.0)
    now = metered(meter, [1.0] * 1000, in_flight=4)
    assert meter.is_stable
    assert now == pytest.approx(1.0 + 3 * 7 / 4)  # the warm-up, and three windows of seven answers
    step = meter.result(sick=False)
    assert step is not None
    assert (step.state, step.requests) == ("stable", 21)
    assert step.requests_per_second == pytest.approx(4.0)
    assert step.output_tokens_per_second == pytest.approx(44.0)
    assert step.ttft_p50_seconds == pytest.approx(0.1)
    assert step.tpot_seconds == pytest.approx(0.09)
    assert step.service_p95_seconds is not None
    assert step.service_p99_seconds is None, "21 requests have no P99"


def test_a_step_that_gets_slower_and_slower_is_not_stable() -> None:
    meter = StepMeter(concurrency=4, window_seconds=1.0)
    metered(meter, [1.03**number for number in range(1000)], in_flight=4)
    assert meter.phase is Phase.DONE
    step = meter.result(sick=False)
    assert step is not None
    assert step.state == "unstable"
    assert step.requests == WINDOWS_MAX * 7


@pytest.mark.parametrize("seed", range(5))
def test_lengths_of_chance_are_no_change(seed: int) -> None:
    chance = random.Random(seed)
    meter = StepMeter(concurrency=8, window_seconds=1.0)
    metered(meter, [chance.expovariate(1.0) + 0.1 for _ in range(5000)], in_flight=8)
    assert meter.is_stable


def test_an_engine_that_queues_makes_the_step_saturated() -> None:
    meter = StepMeter(concurrency=4, window_seconds=1.0)
    for number in range(40):
        meter.add(answer(number / 4), chunks_total=0)
        meter.look(engine=EngineReading(at=number, running_requests=3, waiting_requests=1), gpu=GpuReading(at=number))
    step = meter.result(sick=False)
    assert step is not None
    assert step.state == "saturated"
    assert step.engine_waiting == 1


def test_a_step_without_an_answer_has_no_figures() -> None:
    meter = StepMeter(concurrency=4, window_seconds=1.0)
    meter.close(now=5.0, chunks_total=0)
    assert meter.result(sick=True) is None


@pytest.mark.parametrize(("share", "value"), [(0.5, 5), (0.95, 10), (0.01, 1), (1.0, 10)])
def test_a_quantile_is_the_smallest_value_that_so_many_do_not_exceed(share: float, value: float) -> None:
    assert quantile([float(number) for number in range(1, 11)], share) == value


# --- when it lets go


def failure(trouble: Trouble, at: float = 1.0) -> Ended:
    return Ended(started=at - 1, ended=at, trouble=trouble, error=f"it {trouble.value}")


@pytest.mark.parametrize(
    ("troubles", "cause"),
    [
        ([Trouble.UNREACHED] * 3, "takes no connections"),
        ([Trouble.TIMED_OUT] * 2, "2 requests timed out"),
        ([Trouble.REFUSED] * IN_A_ROW, "5 requests failed in a row, the last one: it refused"),
        ([Trouble.FAILED, None, None, None] * 10, "requests failed, the last one"),
        ([Trouble.BROKEN_OFF, *[None] * 30], None),
        ([*[None] * 18, Trouble.FAILED] * 10, None),
    ],
)
def test_a_sick_backend_is_let_go(troubles: list[Trouble | None], cause: str | None) -> None:
    health = Health(now=0.0)
    found = None
    for trouble in troubles:
        found = found or health.ended(answer(1.0) if trouble is None else failure(trouble))
    assert (found is None) == (cause is None)
    assert cause is None or cause in str(found)


def test_an_engine_that_preempts_or_is_full_is_let_go() -> None:
    full, preempting = Health(now=0.0), Health(now=0.0)
    looks = [
        (
            full.look(at, engine=EngineReading(at=at, kv_used_share=0.97), in_flight=5),
            preempting.look(at, engine=EngineReading(at=at, preemptions_total=100 + at), in_flight=5),
        )
        for at in (1.0, 2.0, 3.0, 4.0)
    ]
    assert looks[0] == (None, None)
    assert looks[1] == ("the KV cache is 97% full", None)
    assert looks[2][1] is None
    assert "preempted 3 requests" in str(looks[3][1])


def test_a_backend_that_falls_silent_is_let_go() -> None:
    health = Health(now=0.0)
    health.received(10.0)
    assert health.look(10.0 + SILENT_SECONDS, engine=None, in_flight=3) is None
    assert "not a token came" in str(health.look(10.1 + SILENT_SECONDS, engine=None, in_flight=3))
    idle = Health(now=0.0)
    assert idle.look(1000.0, engine=None, in_flight=0) is None
