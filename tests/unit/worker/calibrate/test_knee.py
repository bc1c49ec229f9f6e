"""The knee of a throughput curve, and the recommendation: curves of known physics, with and without noise."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from forebay_schemas.contract.calibration import VERSION, Calibration, CalibrationStep, StepState, read_calibration
from forebay_schemas.errors import UsageError
from forebay_worker.calibrate.knee import (
    TRIES_MAX,
    fit_line,
    is_plateau,
    limit_at,
    limit_for_tokens,
    measure_again,
    next_concurrency,
    recommend,
    refinement,
    rounded_up,
    stable_step,
    throughput,
    unsettled_note,
)
from forebay_worker.calibrate.report import WIDTH, calibration_text, settings_text
from forebay_worker.settings import WorkerSettings, load_worker_settings

DOUBLING = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def step(
    concurrency: int, service_seconds: float, *, state: StepState = "stable", output_tokens: float | None = 100
) -> CalibrationStep:
    per_second = concurrency / service_seconds
    has_tokens = output_tokens is not None
    return CalibrationStep(
        concurrency=concurrency,
        state=state,
        seconds=10.0,
        requests=120,
        errors=0,
        requests_per_second=per_second,
        service_seconds=service_seconds,
        service_cv=0.1,
        service_p50_seconds=service_seconds,
        service_p95_seconds=service_seconds * 1.1,
        service_p99_seconds=service_seconds * 1.2,
        output_tokens_per_second=None if output_tokens is None else per_second * output_tokens,
        prompt_tokens=1000 if has_tokens else None,
        output_tokens=output_tokens,
        ttft_p50_seconds=0.07 if has_tokens else None,
        ttft_p95_seconds=0.1 if has_tokens else None,
        tpot_seconds=None if output_tokens is None else service_seconds / output_tokens,
        tpot_p95_seconds=None if output_tokens is None else service_seconds / output_tokens,
        engine_running=float(concurrency),
        engine_waiting=0.0,
        kv_used_share=0.1,
        preemptions=0.0,
        gpu_utilisation=None,
        gpu_memory_share=None,
    )


def batching(
    fixed: float, own: float, *, noise: float = 0.0, slots: int = 10_000, seed: int = 1
) -> list[CalibrationStep]:
    """An engine's steps: a line up to its slots, then a queue inside it."""
    chance = random.Random(seed)
    found: list[CalibrationStep] = []
    while (n := next_concurrency(found, concurrency_max=256)) is not None:
        seconds = (fixed + own * min(n, slots)) * max(1.0, n / slots) * chance.uniform(1 - noise, 1 + noise)
        found.append(step(n, seconds, state="saturated" if n > slots else "stable"))
    return found


@pytest.mark.parametrize(
    ("fixed", "own", "noise"),
    [(1.0, 0.08, 0.0), (1.0, 0.08, 0.05), (0.3, 0.05, 0.05), (5.0, 0.02, 0.03), (0.1, 0.1, 0.05)],
)
def test_the_line_that_an_engine_was_made_by_is_found_again(fixed: float, own: float, noise: float) -> None:
    fit = fit_line(batching(fixed, own, noise=noise))
    assert fit is not None
    assert fit.request_seconds == pytest.approx(own, rel=0.02 + 3 * noise)
    assert fit.fixed_seconds == pytest.approx(fixed, rel=0.02 + 3 * noise)
    assert fit.knee_requests == pytest.approx(4 * fixed / own, rel=0.02 + 5 * noise)
    assert fit.error_ratio <= 2.5 * noise + 1e-9


@pytest.mark.parametrize(
    ("fixed", "own", "slots"),
    [
        (1.0, 0.08, 10_000),  # a large engine: the curve flattens out
        (0.5, 0.045, 32),  # it ends with its slots, still rising
        (1.0, 0.0, 8),  # slots that do not slow each other down
        (0.0, 1.0, 1),  # one at a time
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_with_the_limit_the_backend_does_four_fifths_of_its_stable_throughput(
    fixed: float, own: float, slots: int, seed: int
) -> None:
    def true_rate(n: float) -> float:
        return min(n, slots) / (fixed + own * min(n, slots))

    steps = batching(fixed, own, noise=0.03, slots=slots, seed=seed)
    assert is_plateau(steps) or steps[-1].concurrency == 256
    found = recommend(steps, tpot_seconds=None)
    assert found is not None
    best = true_rate(256)
    assert 0.72 * best <= true_rate(found.limit_requests)
    # One fewer would do less than that, give or take the noise and the line drawn between two steps.
    assert found.limit_requests == 1 or true_rate(found.limit_requests - 1) <= 0.88 * best
    assert found.limit_min <= found.limit_start <= found.limit_max


@pytest.mark.parametrize(
    ("service", "states", "wanted"),
    [
        ([], [], 1),
        ([1.0], ["stable"], 2),
        ([1.0, 2.0], ["stable"] * 2, 4),  # no gain yet, but two steps are no curve
        ([1.0, 1.0, 1.0], ["stable"] * 3, 8),
        ([1.0, 1.0, 1.95], ["stable"] * 3, None),  # 4 / 1.95 is only 2.6 % more than 2 / 1
        ([1.0, 1.0, 1.0], ["stable", "stable", "saturated"], None),
        ([1.0], ["sick"], None),
    ],
)
def test_the_load_doubles_until_that_gains_nothing(
    service: list[float], states: list[StepState], wanted: int | None
) -> None:
    steps = [step(n, w, state=s) for n, w, s in zip(DOUBLING, service, states, strict=False)]
    assert next_concurrency(steps, concurrency_max=64) == wanted


def test_the_load_ends_at_the_most_that_is_allowed() -> None:
    steps = [step(n, 1.0) for n in (1, 2, 4, 8)]
    assert next_concurrency(steps, concurrency_max=12) == 12
    assert next_concurrency([*steps, step(12, 1.0)], concurrency_max=12) is None
    assert not is_plateau([*steps, step(12, 1.0)])


def test_steps_that_did_not_hold_still_recommend_nothing() -> None:
    steps = [step(1, 1.0), step(2, 1.0), step(4, 1.0), step(8, 1.0, state="unstable"), step(16, 1.0, state="sick")]
    best = stable_step(steps)
    assert best is not None
    assert best.concurrency == 4
    assert recommend(steps[:2], tpot_seconds=None) is None
    assert recommend([step(n, 1.0, state="unstable") for n in DOUBLING], tpot_seconds=None) is None
    assert limit_at([]) is None


@pytest.mark.parametrize(
    ("states", "says"),
    [
        # 8 in flight do 8/s, 16 do 10.7/s, 32 do 12.8/s.
        ({16: "unstable", 32: "unstable"}, "(16, 32 in flight): up to 12.80 requests/s was seen"),
        ({32: "unstable"}, "(32 in flight): up to 12.80 requests/s was seen"),
        (dict.fromkeys((1, 2, 4, 8, 16, 32), "unstable"), "(1, 2, 4, 8, 16, 32 in flight): up to 12.80 requests/s"),
        ({4: "unstable"}, None),  # others did more
        ({32: "sick"}, None),  # that is told elsewhere
        ({}, None),
    ],
)
def test_throughput_that_did_not_hold_still_is_told_of(states: dict[int, StepState], says: str | None) -> None:
    steps = [step(n, 0.5 + n / 16, state=states.get(n, "stable")) for n in (1, 2, 4, 8, 16, 32)]
    note = unsettled_note(steps)
    if says is None:
        assert note is None
    else:
        assert note is not None
        assert note.startswith("Steps that did not hold still do not count ")
        assert says in note
        assert note.endswith("measure again on a quiet machine or with a longer --window.")


@pytest.mark.parametrize(
    ("states", "tries", "again"),
    [
        ({1: "stable", 2: "unstable", 4: "stable"}, {2: 1}, 2),
        ({1: "unstable", 2: "unstable", 4: "stable"}, {1: 1, 2: 1}, 1),
        ({1: "unstable", 2: "unstable", 4: "stable"}, {1: TRIES_MAX, 2: 1}, 2),
        ({1: "stable", 2: "unstable", 4: "stable"}, {2: TRIES_MAX}, None),
        # Enough is known: only what may be more than the best of them is worth the time.
        ({1: "stable", 2: "stable", 4: "stable", 8: "unstable"}, {8: 1}, 8),
        ({1: "unstable", 2: "stable", 4: "stable", 8: "stable"}, {1: 1}, None),
        ({1: "unstable", 2: "saturated"}, {1: 1}, None),
        ({1: "stable", 2: "stable", 4: "stable"}, {}, None),
        ({}, {}, None),
    ],
)
def test_what_did_not_hold_still_is_measured_again_where_it_is_missing(
    states: dict[int, StepState], tries: dict[int, int], again: int | None
) -> None:
    steps = [step(n, 1.0 + 0.1 * n, state=state) for n, state in states.items()]
    assert measure_again(steps, tries=tries) == again


def test_the_report_says_why_its_rates_are_not_the_table_s() -> None:
    text = calibration_text(calibration(batching(1.0, 0.08)), is_ascii=True)
    assert "the mean time of an answer; the table counts the answers." in text


def test_of_steps_that_do_as_much_the_lowest_counts() -> None:
    best = stable_step([step(8, 1.0), step(16, 1.99), step(32, 3.97)])
    assert best is not None
    assert best.concurrency == 8


def test_a_limit_that_was_not_measured_gets_a_step_of_its_own() -> None:
    steps = batching(1.0, 0.065)
    first = refinement(steps, tpot_seconds=None)
    assert first is not None
    refined = [*steps, step(first, 1.0 + 0.065 * first)]
    assert refinement(refined, tpot_seconds=None) is None
    found = recommend(refined, tpot_seconds=None)
    assert found is not None
    best = max(map(throughput, steps))
    assert found.requests_per_second == pytest.approx(0.8 * best, rel=0.065)


@pytest.mark.parametrize(("tpot", "limit"), [(0.005, 1), (0.02, 12), (0.03, 25), (1.0, 256)])
def test_tokens_that_must_come_faster_lower_the_limit(tpot: float, limit: int) -> None:
    steps = batching(1.0, 0.08)  # a token takes 10 ms and 0.8 ms for each in flight
    at = limit_for_tokens(steps, tpot_seconds=tpot)
    assert at is not None
    assert at == pytest.approx(limit, abs=1)
    found = recommend(steps, tpot_seconds=tpot)
    assert found is not None
    assert found.limit_requests <= max(1, limit + 1)
    assert found.tpot_target_seconds == pytest.approx(tpot)


@pytest.mark.parametrize(("value", "wanted"), [(0.0361, 0.037), (0.036, 0.036), (1.234, 1.3), (0.0, 0.0), (12.0, 12.0)])
def test_targets_are_rounded_up_to_two_digits(value: float, wanted: float) -> None:
    assert rounded_up(value) == pytest.approx(wanted)


def calibration(steps: list[CalibrationStep], *, stopped_by: str | None = None) -> Calibration:
    return Calibration(
        version=VERSION,
        state="complete" if stopped_by is None else "stopped",
        stopped_by=stopped_by,
        backend="http://127.0.0.1:8000",
        model="qwen2.5-72b",
        engine="vllm",
        load="prompts of 1000 tokens, each its own; answers of 100 tokens",
        seconds=100.0,
        steps=tuple(steps),
        fit=fit_line(steps),
        recommended=recommend(steps, tpot_seconds=None),
    )


@pytest.mark.parametrize("is_ascii", [False, True])
@pytest.mark.parametrize(
    "steps",
    [
        batching(1.0, 0.08),
        batching(1000.0, 0.08),
        batching(0.0001, 0.00001),
        [step(1, 1.0), step(2, 1.0, state="sick")],
        [step(n, 1.0, output_tokens=None) for n in (1, 2, 4, 8)],
        [step(1, 1.0)],
        [],
    ],
)
def test_the_report_fits_into_eighty_columns_without_colours(steps: list[CalibrationStep], is_ascii: bool) -> None:
    text = calibration_text(calibration(steps, stopped_by="it got sick"), is_ascii=is_ascii)
    assert "\x1b" not in text
    assert text.isascii() or not is_ascii
    drawn_or_table = [line for line in text.splitlines() if line[:1] in (" ", "+", "|")]
    assert max(map(len, drawn_or_table), default=0) <= WIDTH, text


@pytest.mark.parametrize("output_tokens", [100.0, None])
def test_the_settings_file_is_one_that_run_takes(tmp_path: Path, output_tokens: float | None) -> None:
    steps = [step(n, 1.0 + 0.08 * n, output_tokens=output_tokens) for n in DOUBLING]
    found = calibration(steps)
    file = tmp_path / "worker.toml"
    file.write_text(settings_text(found, WorkerSettings(backend_url="http://127.0.0.1:8000")), encoding="utf-8")
    settings = load_worker_settings(flags={}, config=file)
    assert found.recommended is not None
    assert settings.backend_url == "http://127.0.0.1:8000"
    if output_tokens is None:
        assert (settings.pacing_policy, settings.limit_max) == ("fixed", found.recommended.limit_requests)
    else:
        assert settings.limit_start == found.recommended.limit_requests
        assert settings.tpot_target_seconds == found.recommended.tpot_target_seconds
        assert settings.prefill_seconds_max == found.recommended.prefill_seconds_max


def test_a_password_does_not_go_into_the_settings_file() -> None:
    text = settings_text(calibration(batching(1.0, 0.08)), WorkerSettings(backend_url="http://u:secret@127.0.0.1:8000"))
    assert "secret" not in text


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b"\xff", b'{"version": 1}'])
def test_what_is_no_calibration_is_refused_in_a_line(text: bytes) -> None:
    with pytest.raises(UsageError, match="--calibration: is no calibration"):
        read_calibration(text, field="--calibration")
