"""The policy `slo_aimd` and its signals. Pure."""

from __future__ import annotations

from dataclasses import replace

from forebay_worker.pacing.policies.slo_aimd import SloAimd
from forebay_worker.pacing.policy import Signals
from forebay_worker.signals.readings import EngineReading, GpuReading

TARGET = 0.050
REFUSED = "the backend refused a request as too much for it"
IN_TIME = "100 in flight use the limit, and a token comes in time"
BELOW_KNEE = "100 in flight use the limit, and fewer than 112 would waste the backend's time"


def policy(limit_start: int = 100, *, limit_min: int = 4, limit_max: int = 256) -> SloAimd:
    return SloAimd(limit_min=limit_min, limit_start=limit_start, limit_max=limit_max, token_seconds_target=TARGET)


def signals(now: float = 100.0, *, in_flight: int = 100, **fields: object) -> Signals:
    return replace(Signals(now=now, in_flight=in_flight, waiting=0, token_seconds=0.02), **fields)  # type: ignore[arg-type]


def engine(**fields: float) -> EngineReading:
    return EngineReading(at=100.0, **fields)


def gpu(**fields: float) -> GpuReading:
    return GpuReading(at=100.0, **fields)
