"""All runs as a JSON object and tables, and the promises that they break. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from rich.table import Table

from benchmarks.pacing.contestants import OURS
from benchmarks.pacing.scenarios import FaultScore, PulseScore
from benchmarks.pacing.scores import Score
from benchmarks.pacing.workloads import Hint
from forebay_schemas.contract.tiers import Tier

RATIO_MIN = {
    ("code", Hint.NOISY): 0.80,
    ("code", Hint.CAP): 0.72,
    ("conv", Hint.NOISY): 0.80,
    ("conv", Hint.CAP): 0.72,
    ("mixed", Hint.NOISY): 0.72,
    ("mixed", Hint.CAP): 0.72,
}
MIXED_HIGH_RATIO_MIN = 0.80
HIGH_WAIT_P95_SECONDS_MAX = 1.0
PULSE_TIME_RATIO_MAX = 1.1
IDLE_WAITING_SHARE_MAX = 0.05
SWING_MAX = 0.10
RECOVERED_SECONDS_MAX = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Average:
    """A contestant on a workload: means over the seeds; ``spread``: the ratios' highest less their lowest."""

    ratio: float
    spread: float
    tiers: dict[Tier, float]
    on_time_share: float
    tier_shares: dict[Tier, float]
    quartile_shares: tuple[float, ...]
    drops: dict[str, float]
    late: float
    lateness_p50_seconds: float
    lateness_p95_seconds: float
    wasted_seconds: float
    idle_waiting_share: float
    limit_changes: float
    refusals: float
    preemptions: float

    @classmethod
    def of(cls, scores: Sequence[Score]) -> Average:
        ratios = [each.ratio for each in scores]
        reasons = sorted({reason for each in scores for reason in each.drops})
        tiers = list(scores[0].tier_ratios)
        return cls(
            ratio=_mean(ratios),
            spread=round(max(ratios) - min(ratios), 4),
            tiers={tier: _mean(each.tier_ratios[tier] for each in scores) for tier in tiers},
            on_time_share=_mean(each.on_time_share for each in scores),
            tier_shares={tier: _mean(each.tier_shares[tier] for each in scores) for tier in tiers},
            quartile_shares=tuple(
                _mean(shares) for shares in zip(*(each.quartile_shares for each in scores), strict=True)
            ),
            drops={reason: _mean(each.drops.get(reason, 0) for each in scores) for reason in reasons},
            late=_mean(each.late for each in scores),
            lateness_p50_seconds=_mean(each.lateness_p50_seconds for each in scores),
            lateness_p95_seconds=_mean(each.lateness_p95_seconds for each in scores),
            wasted_seconds=_mean(each.wasted_seconds for each in scores),
            idle_waiting_share=_mean(each.idle_waiting_share for each in scores),
            limit_changes=_mean(each.limit_changes for each in scores),
            refusals=_mean(each.refusals for each in scores),
            preemptions=_mean(each.preemptions for each in scores),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Scores of all runs. ``workloads``: by (workload, hint), then contestant; the others by contestant."""

    workloads: Mapping[tuple[str, Hint], Mapping[str, Average]]
    pulses: Mapping[str, PulseScore]
    faults: Mapping[str, Mapping[str, FaultScore]]

    def broken_promises(self) -> list[str]:
        """One sentence for each promise that was not kept."""
        broken: list[str] = []

        def at_least(name: str, value: float, promised: float) -> None:
            if value < promised:
                broken.append(f"{name} is {value:.3f}, promised is at least {promised:.2f}")

        def at_most(name: str, value: float, promised: float) -> None:
            if value > promised:
                broken.append(f"{name} is {value:.3f}, promised is at most {promised:.2f}")

        for (workload, hint), contestants in self.workloads.items():
            place = f"{workload}/{hint}"
            if OURS not in contestants:
                broken.append(f"{place}: {OURS} was not run")
                continue
            ours = contestants[OURS]
            at_least(f"{place}: ratio", ours.ratio, RATIO_MIN[workload, hint])
            if workload == "mixed":
                at_least(f"{place}: ratio of high", ours.tiers[Tier.HIGH], MIXED_HIGH_RATIO_MIN)
            broken += [
                f"{place}: ratio is {ours.ratio:.3f}, {name} has {other.ratio:.3f}"
                for name, other in contestants.items()
                if _is_alternative(name) and other.ratio >= ours.ratio
            ]
        if (pulse := self.pulses.get(OURS)) is not None:
            at_most("pulse: high-tier wait P95 in seconds", pulse.high_wait_p95_seconds, HIGH_WAIT_P95_SECONDS_MAX)
            at_most("pulse: requests lost", pulse.lost, 0)
            at_most("pulse: time over the ideal server's", pulse.time_ratio, PULSE_TIME_RATIO_MAX)
            at_most("pulse: engine idle while requests wait", pulse.idle_waiting_share, IDLE_WAITING_SHARE_MAX)
        if (faults := self.faults.get(OURS)) is not None:
            at_most("refusals: requests lost", faults["refusals"].lost_to_refusals, 0)
            at_most("slow engine: swing of the limit", faults["slow"].swing_during, SWING_MAX)
            at_most("slow engine: swing of the limit afterwards", faults["slow"].swing_after, SWING_MAX)
            at_most("restart: seconds to full rate", faults["restart"].recovered_seconds, RECOVERED_SECONDS_MAX)
        return broken

    def as_json(self) -> dict[str, Any]:
        """The object that people script against: ``workloads`` and the first three names in it are fixed."""
        return {
            "workloads": {
                f"{workload}/{hint}": {name: asdict(average) for name, average in contestants.items()}
                for (workload, hint), contestants in self.workloads.items()
            },
            "pulse": {name: asdict(found) for name, found in self.pulses.items()},
            "faults": {
                name: {fault: asdict(each) for fault, each in found.items()} for name, found in self.faults.items()
            },
            "broken_promises": self.broken_promises(),
        }

    def as_tables(self) -> list[Table]:
        """Ratios side by side; then a table of details for each workload; then the pulse and the faults."""
        tables = [self._ratios(), *self._details()]
        if self.pulses:
            tables += [self._pulses_table(), self._faults_table()]
        return tables

    def _ratios(self) -> Table:
        table = _table("On time, as a share of the bound", [f"{name}/{hint}" for name, hint in self.workloads])
        names = dict.fromkeys(name for contestants in self.workloads.values() for name in contestants)
        for name in names:
            cells = []
            for contestants in self.workloads.values():
                average = contestants[name]
                cells.append(f"{average.ratio:.3f} ±{average.spread / 2:.3f}")
            table.add_row(name, *cells, style="bold" if name == OURS else "")
        return table

    def _details(self) -> list[Table]:
        tables = []
        for (workload, hint), contestants in self.workloads.items():
            columns = ["on time", "tiers of their bound", "by quarter of size", "late", "wasted s", "idle", "moves"]
            table = _table(f"{workload}/{hint}", [*columns, "drops"])
            table.columns[-1].no_wrap = False
            for name, each in contestants.items():
                table.add_row(
                    name,
                    f"{each.on_time_share:.1%}",
                    " ".join(f"{tier} {ratio:.2f}" for tier, ratio in each.tiers.items()),
                    " ".join(f"{share:.0%}" for share in each.quartile_shares),
                    f"{each.late:.0f}, p95 {each.lateness_p95_seconds:.1f} s" if each.late else "0",
                    f"{each.wasted_seconds:.0f}",
                    f"{each.idle_waiting_share:.1%}",
                    f"{each.limit_changes:.0f}",
                    ", ".join(f"{reason} {count:.0f}" for reason, count in each.drops.items()),
                    style="bold" if name == OURS else "",
                )
            tables.append(table)
        return tables

    def _pulses_table(self) -> Table:
        columns = ["high waits P95", "lost", "time over ideal", "engine idle"]
        table = _table("A pulse of four times the valley", columns)
        for name, each in self.pulses.items():
            table.add_row(
                name,
                f"{each.high_wait_p95_seconds:.2f} s",
                f"{each.lost}",
                f"×{each.time_ratio:.3f}",
                f"{each.idle_waiting_share:.1%}",
            )
        return table

    def _faults_table(self) -> Table:
        columns = ["on time", "lost", "work before, during, after", "full rate after", "swing during", "after"]
        table = _table("A steady overload of a tenth, and a fault", columns)
        for name, faults in self.faults.items():
            for fault, each in faults.items():
                table.add_row(
                    f"{name}: {fault}",
                    f"{each.on_time_share:.1%}",
                    f"{each.lost_to_refusals}",
                    f"{each.work_before:.2f} {each.work_during:.2f} {each.work_after:.2f}",
                    f"{each.recovered_seconds:.0f} s",
                    f"{each.swing_during:.0%}",
                    f"{each.swing_after:.0%}",
                )
        return table


def _mean(values: Iterable[float]) -> float:
    return round(fmean(values), 4)


def _is_alternative(name: str) -> bool:
    return not name.startswith("slo_aimd")


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table("", *columns, title=title)
    for column in table.columns:
        column.no_wrap = True
    for column in table.columns[1:]:
        column.justify = "right"
    return table
