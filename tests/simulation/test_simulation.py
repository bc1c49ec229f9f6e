"""The promise "nothing accepted is lost, and each ends once" in simulated histories, and that the checks can fail."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from simulation.bugs import BUGS
from simulation.history import run_seed
from simulation.runner import Summary, quiet, run_seeds

SEEDS = 100
SEEDS_LONG = 1_000
SEEDS_PER_BUG_MAX = 400
BUGS_MIN = 10

TESTS = Path(__file__).parents[1]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "seeds",
    [range(SEEDS), pytest.param(range(SEEDS, SEEDS_LONG), marks=pytest.mark.long)],
    ids=["a hundred", "up to a thousand"],
)
def test_histories_lose_nothing_and_explain_every_repetition(seeds: range) -> None:
    summary = Summary(first=seeds.start)
    for report in run_seeds(seeds):
        summary.add(report)
        assert report.violation is None, "\n".join(
            [*report.last_events, f"seed {report.seed}: {report.violation}", f"make simulate SEED={report.seed}"]
        )
    ran = summary.as_json()
    assert ran["histories"] == len(seeds)
    # The faults were there: a calm history proves little.
    for cause in ("in_flight_at_kill", "since_last_commit", "stopped_or_cut_off"):
        assert summary.causes[cause] > 0
    for count in ("executions", "outcomes", "retries", "dead_letters", "rebalances", "commits"):
        assert summary.counts[count] > len(seeds) / 2


def _first_seed_that_finds(name: str) -> tuple[str, int | None]:
    quiet()
    bug = next(each for each in BUGS if each.name == name)
    for seed in range(SEEDS_PER_BUG_MAX):
        if run_seed(seed, patches=bug.patches()).violation is not None:
            return name, seed
    return name, None


@pytest.mark.long
@pytest.mark.timeout(600)
def test_every_bug_put_back_is_found() -> None:
    names = [bug.name for bug in BUGS]
    assert len(set(names)) == len(names) >= BUGS_MIN
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        found = dict(pool.map(_first_seed_that_finds, names))
    assert [name for name, seed in found.items() if seed is None] == []


@pytest.mark.parametrize(
    ("name", "seed", "violation"),
    [
        ("barrier-waits-for-nothing", 79, "which was cancelled before it owned"),
        ("last-commit-ignored", 150, "counts 1 crashes of"),
        ("last-commit-never-said", 150, "counts 1 crashes of"),
        ("any-answer-confirms", 56, "for confirmed, and nobody took it"),
    ],
)
def test_what_breaks_hand_overs_is_found_in_the_history_that_shows_it(name: str, seed: int, violation: str) -> None:
    """Another seed will do when histories change: `python -m simulation --bug NAME` tells which find it."""
    quiet()
    bug = next(each for each in BUGS if each.name == name)
    assert violation in (run_seed(seed, patches=bug.patches()).violation or "")
    assert run_seed(seed).violation is None


@pytest.mark.parametrize("bug", [None, BUGS[0]], ids=["no bug", "a bug"])
def test_a_seed_replays_the_same_history_in_any_process(bug: object) -> None:
    more = ["--bug", BUGS[0].name] if bug is not None else []
    traces = set()
    for hash_seed in ("1", "2"):
        ended = subprocess.run(
            [sys.executable, "-m", "simulation", "--seed", "14", "--trace", *more],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": _path()},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == (0 if bug is None else 1), ended.stderr[-2_000:]
        traces.add(ended.stderr + ended.stdout)
    assert len(traces) == 1


def _path() -> str:
    return os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
