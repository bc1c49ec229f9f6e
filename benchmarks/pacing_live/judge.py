"""Figures of a run in real time, and the promises that they break. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import mean, median
from typing import Any

from benchmarks.pacing.scenarios import SETTLE_SECONDS, WORKS_AGAIN_SHARE, Recovery
from benchmarks.pacing.scores import percentile
from benchmarks.pacing_live.drive import Look, Record
from forebay_sandbox.engine.physics import EnginePhysics
from forebay_schemas.contract.reasons import Status
from forebay_schemas.contract.tiers import Tier

HIGH_WAIT_P95_SECONDS_MAX = 1.0
TIME_RATIO_MAX = 1.1
IDLE_WAITING_SHARE_MAX = 0.05
RECOVERY_SECONDS_MAX = 10.0
SWING_MAX = 0.1
ON_TIME_OF_VIRTUAL_MIN = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of any run. Shares are of the offered requests."""

    workers: int
    offered: int
    accepted: int
    on_time_share: float
    ended: dict[str, int]
    """By reason."""
    lost: int
    second_results: int
    high_wait_p95_seconds: float
    """From the broker to the engine, of high requests that were started."""
    idle_waiting_share: float
    """Share in which the engine did nothing, of the time in which requests waited."""

    def as_json(self) -> dict[str, Any]:
        return rounded(asdict(self))


def figures_of(record: Record, *, workers: int) -> Figures:
    on_time = sum(
        result.status is Status.COMPLETED and record.finished_seconds[number] <= record.offered[number].deadline_seconds
        for number, result in record.results.items()
    )
    waits = sorted(
        result.queue_seconds
        for number, result in record.results.items()
        if record.offered[number].tier is Tier.HIGH and result.queue_seconds is not None
    )
    return Figures(
        workers=workers,
        offered=len(record.offered),
        accepted=len(record.accepted),
        on_time_share=on_time / len(record.offered),
        ended=dict(sorted(Counter(result.reason for result in record.results.values()).items())),
        lost=len(record.accepted.keys() - record.results.keys()),
        second_results=record.second_results,
        high_wait_p95_seconds=percentile(waits, 95),
        idle_waiting_share=_idle_waiting_share(record.looks),
    )


def _idle_waiting_share(looks: Sequence[Look]) -> float:
    waited = idle = 0.0
    for before, after in pairwise(looks):
        if before.engine is None or after.engine is None or not (before.waiting and after.waiting):
            continue
        seconds, busy = after.at_seconds - before.at_seconds, after.engine[0] - before.engine[0]
        if busy < 0:
            continue  # another engine, started anew
        waited += seconds
        idle += seconds - busy
    return max(0.0, idle / waited) if waited else 0.0


def time_ratio(record: Record, ideal_seconds: float) -> float:
    """Time until all was done, over an ideal server's time."""
    return max(record.finished_seconds.values(), default=0.0) / ideal_seconds


def recovery_of(record: Record, *, begins: float, ends: float, until: float, engine: EnginePhysics) -> Recovery:
    """A fault from ``begins`` to ``ends`` of a load that lasts ``until``."""
    rates = _work_shares(record.looks, engine)

    def work(since: float, to: float) -> float:
        found = [share for at, share in rates if since < at <= to]
        return mean(found) if found else 0.0

    before = work(begins - 20, begins)
    recovered = until - ends
    for at, _ in rates:
        if ends <= at <= until - 3 and work(at - 0.01, at + 3) >= WORKS_AGAIN_SHARE * before:
            recovered = at - ends
            break
    return Recovery(
        work_before=before,
        work_during=work(begins + SETTLE_SECONDS / 3, ends),
        work_after=work(ends + SETTLE_SECONDS, until),
        recovered_seconds=recovered,
        swing_during=_swing(record.looks, begins + SETTLE_SECONDS, ends),
        swing_after=_swing(record.looks, ends + SETTLE_SECONDS, until),
    )


def _work_shares(looks: Sequence[Look], engine: EnginePhysics) -> list[tuple[float, float]]:
    found = []
    for before, after in pairwise(looks):
        if before.engine is None or after.engine is None or after.engine[0] < before.engine[0]:
            continue
        prompt, output = after.engine[1] - before.engine[1], after.engine[2] - before.engine[2]
        work = engine.c_seconds * prompt + output * (engine.b_seconds + engine.a_seconds / engine.max_num_seqs)
        found.append((after.at_seconds, work / (after.at_seconds - before.at_seconds)))
    return found


def _swing(looks: Sequence[Look], since: float, until: float) -> float:
    limits = [sum(look.limits) for look in looks if since <= look.at_seconds <= until and look.limits]
    if not limits or not (middle := median(limits)):
        return 0.0
    return max(abs(limit - middle) for limit in limits) / middle


def broken_promises(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """``found``: each scenario's figures, as in the JSON. A sentence for each promise that was not kept."""
    return [f"{name}: {sentence}" for name, figures in found.items() for sentence in _broken(figures)]


def _broken(figures: Mapping[str, Any]) -> Iterable[str]:
    if figures["lost"] or figures["accepted"] < figures["offered"]:
        yield f"{figures['lost']} lost, {figures['offered'] - figures['accepted']} not accepted"
    if "time_ratio" in figures:
        not_completed = {reason: count for reason, count in figures["ended"].items() if reason != "completed"}
        if not_completed:
            yield f"not all was completed: {not_completed}"
        if figures["high_wait_p95_seconds"] > HIGH_WAIT_P95_SECONDS_MAX:
            yield f"high waits {figures['high_wait_p95_seconds']} s at P95"
        if figures["time_ratio"] > TIME_RATIO_MAX:
            yield f"done after {figures['time_ratio']} of the ideal time"
        if figures["idle_waiting_share"] > IDLE_WAITING_SHARE_MAX:
            yield f"the engine idles {figures['idle_waiting_share']:.1%} of the time in which requests wait"
    virtual = figures.get("virtual_on_time_share")
    if virtual is not None and figures["on_time_share"] < ON_TIME_OF_VIRTUAL_MIN * virtual:
        yield f"on time {figures['on_time_share']}, in virtual time {virtual}"
    if "recovered_seconds" in figures and figures["recovered_seconds"] > RECOVERY_SECONDS_MAX:
        yield f"full rate again after {figures['recovered_seconds']} s"
    if max(figures.get("swing_during", 0.0), figures.get("swing_after", 0.0)) > SWING_MAX:
        yield f"the limit swings by {figures['swing_during']:.0%} during the fault, {figures['swing_after']:.0%} after"


def rounded(document: dict[str, Any]) -> dict[str, Any]:
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in document.items()}
