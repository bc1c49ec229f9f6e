"""`python -m benchmarks.pacing`: runs all contestants on all workloads in virtual time, on two processes; ends with
tables (stderr) and one JSON object (stdout). Exit status 1: a promise is broken. Writes build/bench-pacing.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.pacing.bound import bound_requests
from benchmarks.pacing.contestants import front_of, names, sees_hints
from benchmarks.pacing.controller import WAITING, measure_controller
from benchmarks.pacing.report import Average, Findings
from benchmarks.pacing.scenarios import FAULTS, FaultScore, PulseScore, pulse, score_faults, score_pulse, steady
from benchmarks.pacing.scores import Score, score
from benchmarks.pacing.virtual import run
from benchmarks.pacing.workloads import Hint, arrivals, physics, workloads
from forebay_schemas.errors import ExitCode
from forebay_schemas.runtime.log import configure_logging

PROCESSES = 2
SCENARIO_SEED = 1
LOG_COLUMNS = 180
OUTPUT = Path(__file__).parents[2] / "build" / "bench-pacing.json"


@dataclass(frozen=True, slots=True)
class _Race:
    """One contestant on one workload with one seed."""

    workload: str
    hint: Hint
    contestant: str
    seed: int


def _race(race: _Race) -> Score:
    engine = physics()
    offered = arrivals(workloads()[race.workload], hint=race.hint, seed=race.seed)
    found = run(offered, physics=engine, make_front=front_of(race.contestant, engine), seed=race.seed)
    return score(found, bound_requests(offered, engine))


def _pulse(contestant: str) -> PulseScore:
    engine = physics()
    load = pulse(engine, seed=SCENARIO_SEED)
    found = run(load.offered, physics=engine, make_front=front_of(contestant, engine), seed=SCENARIO_SEED)
    return score_pulse(found, load.ideal_seconds)


def _fault(contestant: str, fault: str) -> FaultScore:
    engine = physics()
    offered = steady(engine, seed=SCENARIO_SEED)
    front = front_of(contestant, engine)
    found = run(offered, physics=engine, make_front=front, seed=SCENARIO_SEED, faults=FAULTS[fault])
    return score_faults(found, FAULTS[fault])


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pacing", description=__doc__)
    parser.add_argument("--seeds", type=_positive, default=5, help="runs of each contestant on each workload")
    parser.add_argument("--workload", choices=sorted(workloads()), help="just this, without the pulse and the faults")
    parser.add_argument("--contestant", choices=names(), action="append", help="just these")
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def _measure(pool: Executor, given: argparse.Namespace, console: Console) -> Findings:
    contestants = given.contestant or names()
    chosen = [given.workload] if given.workload else list(workloads())
    races: dict[_Race, Future[Score]] = {}
    for workload in chosen:
        for hint in Hint:
            for name in contestants:
                for seed in range(1, given.seeds + 1):
                    race = _Race(workload, hint, name, seed)
                    same = _Race(workload, Hint.CAP, name, seed) if not sees_hints(name) else race
                    races[race] = races[same] if same in races else pool.submit(_race, race)
    with_scenarios = [] if given.workload else contestants
    pulses = {name: pool.submit(_pulse, name) for name in with_scenarios}
    faults = {name: {fault: pool.submit(_fault, name, fault) for fault in FAULTS} for name in with_scenarios}
    found: dict[tuple[str, Hint], dict[str, Average]] = {}
    for workload in chosen:
        for hint in Hint:
            began = time.monotonic()
            found[workload, hint] = {
                name: Average.of(
                    [races[_Race(workload, hint, name, seed)].result() for seed in range(1, given.seeds + 1)]
                )
                for name in contestants
            }
            console.print(f"{workload}/{hint}: done after {time.monotonic() - began:.0f} s more", highlight=False)
    return Findings(
        workloads=found,
        pulses={name: future.result() for name, future in pulses.items()},
        faults={name: {fault: future.result() for fault, future in each.items()} for name, each in faults.items()},
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit status."""
    given = _parse(arguments)
    # What dispatch says of simulated overloads is no news here. The processes that are forked inherit it.
    configure_logging(level="error", service="bench-pacing")
    console = Console(stderr=True, width=None if sys.stderr.isatty() else LOG_COLUMNS)
    with ProcessPoolExecutor(max_workers=PROCESSES) as pool:
        findings = _measure(pool, given, console)
    for table in findings.as_tables():
        console.print(table)
    for sentence in findings.broken_promises():
        console.print(f"BROKEN: {sentence}", highlight=False, markup=False, soft_wrap=True)
    cost = measure_controller()
    console.print(
        f"controller: {cost.dispatch_microseconds:.0f} microseconds of CPU a dispatched request, "
        f"{cost.core_share:.2%} of a core beside, with {WAITING} waiting",
        highlight=False,
    )
    found = json.dumps(findings.as_json() | {"controller": asdict(cost)})
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(found + "\n", encoding="utf-8")
    print(found)
    return ExitCode.FAILED if findings.broken_promises() else ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
