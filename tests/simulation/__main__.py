"""`python -m simulation`: many seeds on all cores, or one seed with everything that happened in it.

The last line of stdout is one JSON object; progress goes to stderr. Exit status 1: a promise was broken.
"""

from __future__ import annotations

import argparse
import json
import sys

from simulation.bugs import BUGS, bug_named
from simulation.history import run_seed
from simulation.runner import Summary, quiet, run_seeds


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="simulation", description="The worker's stages in simulated histories")
    parser.add_argument("--seeds", type=int, default=1_000, help="how many histories (1000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--seed", type=int, help="replay this one")
    parser.add_argument("--trace", action="store_true", help="with --seed: print all events, not only the last ones")
    parser.add_argument("--bug", choices=[bug.name for bug in BUGS], help="put a bug into the worker")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        return _replay(arguments.seed, trace=arguments.trace, bug=arguments.bug)
    return _run(arguments.first, arguments.seeds, bug=arguments.bug)


def _replay(seed: int, *, trace: bool, bug: str | None) -> int:
    quiet()
    patches = [] if bug is None else bug_named(bug).patches()
    report = run_seed(seed, patches=patches, trace=trace)
    if trace or report.violation is not None:
        _say("\n".join(report.last_events))
    sys.stdout.write(
        json.dumps({"seed": seed, "violation": report.violation, **report.counts, "causes": report.causes}) + "\n"
    )
    return 0 if report.violation is None else 1


def _run(first: int, seeds: int, *, bug: str | None) -> int:
    summary = Summary(first=first)
    for report in run_seeds(range(first, first + seeds), bug=bug):
        summary.add(report)
        if report.violation is not None:
            _say("\n".join(report.last_events[-25:]))
            _say(f"seed {report.seed}: {report.violation}")
            _say(f"  replay: make simulate SEED={report.seed}")
        if summary.histories % 100 == 0:
            _say(f"{summary.histories} of {seeds} histories, {len(summary.failed)} failed")
    sys.stdout.write(json.dumps(summary.as_json()) + "\n")
    return 1 if summary.failed else 0


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
