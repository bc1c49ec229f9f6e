"""Estimated against actual waits under seven loads, and admission at twice what the engine sustains, in virtual time.

Writes a plot. The last line of stdout is one JSON object; exits 1 when a promise is broken.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.waits.chart import chart
from benchmarks.waits.scenarios import OVERLOAD, SCENARIOS, Outcome, accuracy, play
from forebay_producer.admission.admission import Admission, Reading
from forebay_producer.errors import AdmissionRefusedError
from forebay_schemas.contract.coordination import Capacity
from forebay_schemas.contract.tiers import DEFAULT_TIER_TIMES, TIERS, Tier
from forebay_schemas.contract.worker_load import WorkerLoad, with_load
from forebay_schemas.errors import ExitCode
from forebay_schemas.estimate.pool import load_of_pool
from forebay_schemas.runtime.log import configure_logging

ERROR_RATIO_MAX = 0.15
WITHIN_P90_MIN = 0.85
ON_TIME_MIN = 0.95
REFUSAL_SECONDS_MAX = 0.001
_REFUSALS = 2_000


def refusal_seconds() -> float:
    """The median time of one refusal, by a pool of twenty workers."""
    load = WorkerLoad(waiting_requests=dict.fromkeys(TIERS, 100), work_seconds=dict.fromkeys(TIERS, 60.0))
    workers = [
        with_load(
            Capacity(
                worker=f"w{number}",
                backend="b",
                limit_requests=32,
                share_requests=32,
                in_flight=32,
                wanted={},
                ended_per_second=1.0,
                service_seconds=2.0,
                draining=False,
            ),
            load,
        )
        for number in range(20)
    ]
    admission = Admission()
    admission.update(Reading(at=0.0, load=load_of_pool(workers, None), times=DEFAULT_TIER_TIMES))
    took = []
    for number in range(_REFUSALS):
        begun = time.perf_counter()
        try:
            admission.admit(str(number), tier=Tier.HIGH, left_seconds=30.0, now=0.5)
        except AdmissionRefusedError:
            took.append(time.perf_counter() - begun)
    assert len(took) == _REFUSALS, "all are to be refused"
    return median(took)


def _play(name: str, seed: int) -> Outcome:
    return play(SCENARIOS.get(name, OVERLOAD), seed=seed)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs all; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.waits", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the arrivals")
    parser.add_argument("--plot", type=Path, help="where to write the plot, an SVG")
    given = parser.parse_args(arguments)
    configure_logging(level="error", service="bench-waits")
    with ProcessPoolExecutor(max_workers=2) as pool:
        futures = {name: pool.submit(_play, name, given.seed) for name in [*SCENARIOS, "overload"]}
        outcomes = {name: future.result() for name, future in futures.items()}
    overload = outcomes.pop("overload")
    found: dict[str, Any] = {
        "waits": {
            name: {"all": asdict(accuracy(outcome.pairs))}
            | {tier: asdict(accuracy([pair for pair in outcome.pairs if pair.tier is tier])) for tier in TIERS}
            for name, outcome in outcomes.items()
        },
        "overload": {
            "offered": overload.offered,
            "admitted": overload.admitted,
            "on_time_share": round(overload.on_time / overload.admitted, 4),
            "retry_after_seconds_max": round(max(overload.retry_after_seconds, default=0.0), 1),
        },
        "refusal_microseconds": round(refusal_seconds() * 1e6, 1),
    }
    if given.plot is not None:
        panels = {
            f"{name}: low": [pair for pair in outcome.pairs if pair.tier is Tier.LOW]
            for name, outcome in outcomes.items()
        }
        given.plot.write_text(chart(panels, title="Waits of low requests, by arrival"), encoding="utf-8")
    broken = broken_promises(found)
    for sentence in broken:
        print(f"BROKEN: {sentence}", file=sys.stderr)
    print(json.dumps(found))
    return ExitCode.FAILED if broken else ExitCode.OK


def broken_promises(found: dict[str, Any]) -> list[str]:
    """What does not hold, in words."""
    broken = []
    for name, by_tier in found["waits"].items():
        of_all = by_tier["all"]
        if SCENARIOS[name].is_steady and of_all["error_ratio"] > ERROR_RATIO_MAX:
            broken.append(f"{name}: the median error is {of_all['error_ratio']:.0%}")
        if of_all["within_p90"] < WITHIN_P90_MIN:
            broken.append(f"{name}: {of_all['within_p90']:.0%} start before the P90")
    if found["overload"]["on_time_share"] < ON_TIME_MIN:
        broken.append(f"overload: {found['overload']['on_time_share']:.1%} of the admitted end on time")
    if found["refusal_microseconds"] > REFUSAL_SECONDS_MAX * 1e6:
        broken.append(f"a refusal takes {found['refusal_microseconds']:.0f} microseconds")
    return broken


if __name__ == "__main__":
    sys.exit(main())
