"""The horizontal pod autoscaler's formulas, with what KEDA hands it. Pure; time is passed in.

From kubernetes/pkg/controller/podautoscaler (replica_calculator.go, horizontal.go): a metric of type Value multiplies
the ready pods, one of type AverageValue divides by the target; neither changes anything within the tolerance; of
several metrics the highest answer counts.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

VALUES: Final = Path(__file__).parents[2] / "helm" / "forebay" / "values.yaml"
SYNC_SECONDS: Final = 15
TOLERANCE: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The chart's defaults. ``utilization``: the target of the floor, None without it."""

    replicas_min: int
    replicas_max: int
    risk_threshold: float
    utilization: float | None
    up_percent: int
    up_pods: int
    up_period_seconds: int
    down_stabilization_seconds: int
    down_pods: int
    down_period_seconds: int


def chart_pace(*, replicas_max: int, with_floor: bool) -> Pace:
    """`poolDefaults.autoscaling` in the chart's values.yaml, without the cap."""
    values: dict[str, Any] = yaml.safe_load(VALUES.read_text(encoding="utf-8"))["poolDefaults"]["autoscaling"]
    up, down = values["scaleUp"], values["scaleDown"]
    return Pace(
        replicas_min=values["minReplicas"],
        replicas_max=replicas_max,
        risk_threshold=values["riskThreshold"],
        utilization=values["keda"]["utilization"]["target"] if with_floor else None,
        up_percent=up["percent"],
        up_pods=up["pods"],
        up_period_seconds=up["periodSeconds"],
        down_stabilization_seconds=down["stabilizationSeconds"],
        down_pods=down["pods"],
        down_period_seconds=down["periodSeconds"],
    )


@dataclass(frozen=True, slots=True)
class Seen:
    """Prometheus' answers. ``busy_workers``: enqueued a second by what one worker serves; None: no answer."""

    risk: float
    busy_workers: float | None


class Autoscaler:
    """Says how many replicas there are to be. Call `sync` every `SYNC_SECONDS`."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._recommended: deque[tuple[float, int]] = deque()
        self._changes: deque[tuple[float, int]] = deque()

    def sync(self, now: float, *, replicas: int, ready: int, seen: Seen) -> int:
        """The number of replicas from now on."""
        pace = self._pace
        wanted = [_by_value(seen.risk / pace.risk_threshold, replicas=replicas, ready=ready)]
        if pace.utilization is not None and seen.busy_workers is not None:
            wanted.append(_by_average(seen.busy_workers, pace.utilization, replicas=replicas))
        return self._paced(now, replicas, max(wanted))

    def _paced(self, now: float, replicas: int, wanted: int) -> int:
        pace = self._pace
        self._recommended.append((now, wanted))
        while self._recommended[0][0] <= now - pace.down_stabilization_seconds:
            self._recommended.popleft()
        while self._changes and self._changes[0][0] <= now - max(pace.up_period_seconds, pace.down_period_seconds):
            self._changes.popleft()
        if wanted < replicas:
            wanted = min(replicas, max(recommended for _, recommended in self._recommended))
        if wanted > replicas:
            started = sum(by for at, by in self._changes if by > 0 and at > now - pace.up_period_seconds)
            before = replicas - started
            most = max(math.ceil(before * (1 + pace.up_percent / 100)), before + pace.up_pods)
            wanted = max(replicas, min(wanted, most))
        elif wanted < replicas:
            ended = -sum(by for at, by in self._changes if by < 0 and at > now - pace.down_period_seconds)
            wanted = min(replicas, max(wanted, replicas + ended - pace.down_pods))
        wanted = min(pace.replicas_max, max(pace.replicas_min, wanted))
        if wanted != replicas:
            self._changes.append((now, wanted - replicas))
        return wanted


def _by_value(ratio: float, *, replicas: int, ready: int) -> int:
    return replicas if abs(1 - ratio) <= TOLERANCE else math.ceil(ratio * ready)


def _by_average(usage: float, target: float, *, replicas: int) -> int:
    ratio = usage / (target * replicas)
    return replicas if abs(1 - ratio) <= TOLERANCE else math.ceil(usage / target)
