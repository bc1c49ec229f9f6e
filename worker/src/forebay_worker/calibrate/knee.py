"""Finds the bend in a backend's throughput, and the settings that follow from it. Pure.

Continuous batching takes `a + b * sequences + c * prompt tokens` seconds for a step (see `pacing.service_model`). So an
answer among n takes a fixed part and n times its own: W(n) = fixed + n * own, a straight line, and by Little's law the
throughput is n / W(n). The line is fitted to the measured steps; the recommendation is a measured value, not a fitted
one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Final

from forebay_schemas.contract.calibration import CalibrationFit, CalibrationStep, Recommendation
from forebay_schemas.contract.tiers import DEFAULT_TIER_TIMES, Tier, TierTimes
from forebay_worker.pacing.service_model import OUTPUT_TOKENS_MIN, OVERHEAD_SHARE

STABLE_SHARE: Final = 0.8
"""Share of the stable throughput at the recommended limit: the rest absorbs bursts, and tokens come faster."""

GAIN_MIN: Final = 0.05
"""Twice the concurrency for a smaller gain in throughput is not worth its latency: the plateau."""

STEPS_MIN: Final = 3
TRIES_MAX: Final = 3
"""Measurements of an unsteady step, each with windows twice as long as the one before."""

REFINE_APART: Final = 0.10
LIMIT_MIN_DEFAULT: Final = 4
PREFILL_SECONDS_DEFAULT: Final = 0.05

GOOD_STATES: Final = frozenset({"stable", "saturated"})


def throughput(step: CalibrationStep) -> float:
    """Requests per second by Little's law, with the step's concurrency in flight all the time. Less noisy than a count
    of the requests that ended."""
    return step.concurrency / step.service_seconds


def fit_line(steps: Sequence[CalibrationStep]) -> CalibrationFit | None:
    """W(n) = fixed + n * own by least squares on relative errors, over the steps that fitted in the engine's batch.

    None with fewer than three such steps, or if the line does not rise.
    """
    used = [step for step in steps if step.state == "stable"]
    if len({step.concurrency for step in used}) < STEPS_MIN:
        return None
    weights = [1 / step.service_seconds**2 for step in used]
    total = sum(weights)
    mean_n = sum(w * step.concurrency for w, step in zip(weights, used, strict=True)) / total
    mean_w = sum(w * step.service_seconds for w, step in zip(weights, used, strict=True)) / total
    above = sum(
        w * (step.concurrency - mean_n) * (step.service_seconds - mean_w) for w, step in zip(weights, used, strict=True)
    )
    below = sum(w * (step.concurrency - mean_n) ** 2 for w, step in zip(weights, used, strict=True))
    own = above / below
    fixed = mean_w - own * mean_n
    if own <= 0 or fixed <= 0:
        return None
    error = max(abs((fixed + own * step.concurrency) / step.service_seconds - 1) for step in used)
    knee = fixed * (1 - OVERHEAD_SHARE) / (OVERHEAD_SHARE * own)
    return CalibrationFit(fixed_seconds=fixed, request_seconds=own, error_ratio=error, knee_requests=knee)


def next_concurrency(steps: Sequence[CalibrationStep], *, concurrency_max: int) -> int | None:
    """The next step up: twice the last; None if that gains nothing more."""
    if not steps:
        return 1
    last = steps[-1]
    if last.state in ("saturated", "sick") or last.concurrency >= concurrency_max:
        return None
    if len(steps) >= STEPS_MIN and throughput(last) < (1 + GAIN_MIN) * throughput(steps[-2]):
        return None
    return min(concurrency_max, 2 * last.concurrency)


def is_plateau(steps: Sequence[CalibrationStep]) -> bool:
    """Whether the steps reached the backend's maximum; ``steps`` in the order of their concurrency."""
    if not steps:
        return False
    last = steps[-1]
    return last.state == "saturated" or (
        len(steps) >= STEPS_MIN and throughput(last) < (1 + GAIN_MIN) * max(map(throughput, steps[:-1]))
    )


def stable_step(steps: Sequence[CalibrationStep]) -> CalibrationStep | None:
    """The steady step with the most throughput; of nearly equal ones the one with the lowest concurrency."""
    good = [step for step in steps if step.state in GOOD_STATES]
    if not good:
        return None
    most = max(map(throughput, good))
    return min((step for step in good if throughput(step) > most / (1 + GAIN_MIN)), key=lambda s: s.concurrency)


def unsettled_note(steps: Sequence[CalibrationStep]) -> str | None:
    """A note on steps with more throughput than the stable one that were not steady, and so do not count."""
    moved = _moved(steps)
    if not moved:
        return None
    most = max(step.requests_per_second for step in moved)
    which = ", ".join(str(step.concurrency) for step in moved)
    return (
        f"Steps that did not hold still do not count ({which} in flight): up to {most:.2f} requests/s was seen; "
        "measure again on a quiet machine or with a longer --window."
    )


def measure_again(steps: Sequence[CalibrationStep], *, tries: Mapping[int, int]) -> int | None:
    """The concurrency of an unsteady step to measure again: a recommendation needs it, or it had more throughput than
    the steady steps. ``tries``: how often each was measured."""
    good = {step.concurrency for step in steps if step.state in GOOD_STATES}
    few = len(good) < STEPS_MIN and all(step.state != "saturated" for step in steps)
    missing = [step for step in steps if step.state == "unstable"] if few else _moved(steps)
    return min((step.concurrency for step in missing if tries[step.concurrency] < TRIES_MAX), default=None)


def _moved(steps: Sequence[CalibrationStep]) -> list[CalibrationStep]:
    """Unsteady steps with more throughput than the stable one."""
    best = stable_step(steps)
    return [
        step
        for step in steps
        if step.state == "unstable" and (best is None or throughput(step) > (1 + GAIN_MIN) * throughput(best))
    ]


def limit_at(steps: Sequence[CalibrationStep], *, share: float = STABLE_SHARE) -> float | None:
    """The concurrency at which the throughput reaches that share of the stable one, interpolated between steps."""
    best = stable_step(steps)
    if best is None:
        return None
    wanted = share * throughput(best)
    before: CalibrationStep | None = None
    for step in _usable(steps):
        if step.concurrency > best.concurrency:
            break
        if throughput(step) >= wanted:
            if before is None:
                return float(step.concurrency)
            part = (wanted - throughput(before)) / (throughput(step) - throughput(before))
            return before.concurrency + part * (step.concurrency - before.concurrency)
        before = step
    return float(best.concurrency)


def limit_for_tokens(steps: Sequence[CalibrationStep], *, tpot_seconds: float) -> float | None:
    """The highest concurrency at which a token takes no longer than this, interpolated; None without tokens."""
    told = sorted(
        ((step.concurrency, step.tpot_seconds) for step in steps if step.tpot_seconds is not None),
        key=lambda pair: pair[0],
    )
    if not told:
        return None
    best = float(told[0][0])
    for (n0, t0), (n1, t1) in itertools.pairwise(told):
        if t1 <= tpot_seconds:
            best = float(n1)
        else:
            return n0 + (n1 - n0) * (tpot_seconds - t0) / (t1 - t0) if t0 <= tpot_seconds < t1 else best
    return best


def refinement(steps: Sequence[CalibrationStep], *, tpot_seconds: float | None) -> int | None:
    """A concurrency to measure as a step of its own: the limit to recommend, unless a measured one is near."""
    limit = _limit(steps, tpot_seconds=tpot_seconds)
    if limit is None:
        return None
    apart = min(abs(limit - step.concurrency) / step.concurrency for step in steps)
    return limit if apart > REFINE_APART else None


def recommend(
    steps: Sequence[CalibrationStep], *, tpot_seconds: float | None, tier_times: TierTimes = DEFAULT_TIER_TIMES
) -> Recommendation | None:
    """The recommended settings; None with fewer than three usable steps, unless the last one exceeded the engine's
    batch. ``tpot_seconds``: the longest time of a token, if the clients require one. ``tier_times``: how long requests
    may wait."""
    good = sorted((step for step in steps if step.state in GOOD_STATES), key=lambda step: step.concurrency)
    limit, best = _limit(steps, tpot_seconds=tpot_seconds), stable_step(steps)
    if limit is None or best is None or (len(good) < STEPS_MIN and good[-1].state != "saturated"):
        return None
    usable = _usable(steps)
    service = _interpolated(usable, limit, [step.service_seconds for step in usable])
    tpots = [(step, step.tpot_seconds) for step in usable if step.tpot_seconds is not None]
    tpot = _interpolated([step for step, _ in tpots], limit, [value for _, value in tpots]) if tpots else None
    outputs = [step.output_tokens for step in good if step.output_tokens is not None]
    target = tpot_seconds
    if target is None and outputs:
        # The worker compares the whole answer divided by its tokens, which includes the prompt's share of the steps.
        target = service / max(sum(outputs) / len(outputs), OUTPUT_TOKENS_MIN)
    per_second = limit / service
    ttft = good[0].ttft_p50_seconds
    return Recommendation(
        stable_concurrency=best.concurrency,
        stable_requests_per_second=throughput(best),
        limit_requests=limit,
        limit_min=min(LIMIT_MIN_DEFAULT, limit),
        limit_start=limit,
        limit_max=max(limit, _at_once(best)),
        requests_per_second=per_second,
        service_seconds=service,
        service_cv=min(good, key=lambda step: abs(step.concurrency - limit)).service_cv,
        tpot_seconds=tpot,
        tpot_target_seconds=None if target is None else rounded_up(target),
        # With fewer seconds than one prompt takes, no two prompts could follow each other without a gap.
        prefill_seconds_max=None if ttft is None else max(PREFILL_SECONDS_DEFAULT, rounded_up(ttft)),
        queue_high_requests=max(1, math.floor(tier_times.wait_seconds(Tier.HIGH) * per_second)),
        queue_high_seconds=tier_times.wait_seconds(Tier.HIGH),
        queue_mid_seconds=tier_times.wait_seconds(Tier.MID),
        queue_mid_requests=max(1, math.floor(tier_times.wait_seconds(Tier.MID) * per_second)),
    )


def _at_once(step: CalibrationStep) -> int:
    """The number of requests that the backend worked on. Those queued inside it could have waited outside, in order."""
    if step.state == "saturated" and step.engine_running:
        return min(step.concurrency, round(step.engine_running))
    return step.concurrency


def rounded_up(value: float) -> float:
    """Rounded up to two digits."""
    if value <= 0:
        return value
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / unit - 1e-9) * unit:.6g}")


def _usable(steps: Sequence[CalibrationStep]) -> list[CalibrationStep]:
    """The usable steps. An unsteady one is still the best estimate for a concurrency between two others."""
    return sorted((step for step in steps if step.state != "sick"), key=lambda step: step.concurrency)


def _limit(steps: Sequence[CalibrationStep], *, tpot_seconds: float | None) -> int | None:
    limit = limit_at(steps)
    if limit is None:
        return None
    if tpot_seconds is not None:
        in_time = limit_for_tokens(steps, tpot_seconds=tpot_seconds)
        limit = limit if in_time is None else min(limit, in_time)
    return max(1, math.ceil(limit - 1e-6))


def _interpolated(steps: Sequence[CalibrationStep], at: float, values: Sequence[float]) -> float:
    points = [(step.concurrency, value) for step, value in zip(steps, values, strict=True)]
    for (n0, v0), (n1, v1) in itertools.pairwise(points):
        if n0 <= at <= n1 and n1 > n0:
            return v0 + (v1 - v0) * (at - n0) / (n1 - n0)
    return points[0][1] if at < points[0][0] else points[-1][1]
