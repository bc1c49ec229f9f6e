"""`python -m benchmarks.scaling`: a day's trace with the chart's triggers, with and without the floor by utilisation,
in a model of KEDA and the HPA; ends with a table (stderr) and one JSON object (stdout). Exit status 1: a promise is
broken.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from rich.console import Console
from rich.table import Table

from benchmarks.scaling.autoscaler import chart_pace
from benchmarks.scaling.day import requests_of_day
from benchmarks.scaling.pool import simulate
from forebay_schemas.errors import ExitCode

REPLICAS_MAX = 40
REPLICAS_TO_NEED_MAX = 1.2
WAITED_LONG_MAX = 0.001
CONSTANT_SHARE = 0.4
BOTH = "risk, utilization"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A day in figures. ``waited_long``: the share that waited for more than 3 s."""

    load: str
    triggers: str
    requests: int
    replicas_mean: float
    replicas_min: int
    replicas_max: int
    need_mean: float
    to_need: float
    scale_downs: int
    waited_long: float
    longest_wait_seconds: float


def measure(load: str, *, with_floor: bool, seed: int) -> Outcome:
    """One day of ``load`` (`day` or `constant`)."""
    pace = chart_pace(replicas_max=REPLICAS_MAX, with_floor=with_floor)
    day = simulate(requests_of_day(seed=seed, constant=CONSTANT_SHARE if load == "constant" else None), pace)
    replicas, need = day.replicas, day.need(pace.replicas_min)
    return Outcome(
        load=load,
        triggers=BOTH if with_floor else "risk",
        requests=day.requests,
        replicas_mean=fmean(replicas),
        replicas_min=min(replicas),
        replicas_max=max(replicas),
        need_mean=fmean(need),
        to_need=fmean(replicas) / fmean(need),
        scale_downs=day.scale_downs,
        waited_long=day.waited_long / day.requests,
        longest_wait_seconds=day.longest_wait_seconds,
    )


def broken_promises(outcomes: Sequence[Outcome]) -> list[str]:
    """Promises that the chart's defaults break, a sentence each. Without the floor nothing is promised."""
    return [
        sentence
        for each in outcomes
        if each.triggers == BOTH
        for holds, sentence in (
            (
                1 / REPLICAS_TO_NEED_MAX <= each.to_need <= REPLICAS_TO_NEED_MAX,
                f"{each.load}: {each.replicas_mean:.1f} replicas where {each.need_mean:.1f} are needed",
            ),
            (each.waited_long < WAITED_LONG_MAX, f"{each.load}: {each.waited_long:.2%} waited for more than 3 s"),
        )
        if not holds
    ]


def as_table(outcomes: Sequence[Outcome]) -> Table:
    """A line for each day; fits 80 columns."""
    table = Table(title="Replicas over a day; need: what is 85 % busy", title_justify="left", box=None)
    for name in ("load", "triggers"):
        table.add_column(name, no_wrap=True)
    for name in ("replicas", "mean", "need", "ratio", "ended", "> 3 s", "max"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in outcomes:
        table.add_row(
            each.load,
            each.triggers,
            f"{each.replicas_min}-{each.replicas_max}",
            f"{each.replicas_mean:.1f}",
            f"{each.need_mean:.1f}",
            f"{each.to_need:.2f}",
            str(each.scale_downs),
            f"{each.waited_long:.2%}",
            f"{each.longest_wait_seconds:.1f} s",
        )
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="which requests of the trace a quieter hour leaves out")
    given = parser.parse_args(arguments)
    outcomes = [
        measure(load, with_floor=with_floor, seed=given.seed)
        for load in ("day", "constant")
        for with_floor in (False, True)
    ]
    broken = broken_promises(outcomes)
    console = Console(stderr=True)
    console.print(as_table(outcomes))
    for sentence in broken:
        console.print(f"BROKEN: {sentence}", highlight=False, markup=False, soft_wrap=True)
    print(json.dumps({"days": [asdict(each) for each in outcomes], "broken": broken}))
    return ExitCode.FAILED if broken else ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
