"""The promise "nothing accepted is lost, and each ends once" in simulated histories, and that the checks can fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.bugs import BUGS, bug_named
from simulation.history import run_seed
from simulation.runner import Summary, quiet, run_seeds

SEEDS = 100
SEEDS_LONG = 1_000

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


SHOWN_BY = {
    "copies-finished-at-once": 1,
    "copies-run-too": 1,
    "retry-taken-for-a-copy": 4,
    "copies-stay-when-their-first-is-gone": 159,
    "results-by-key-alone": 5,
    "commit-past-unfinished": 0,
    "finished-before-delivery": 4,
    "no-seek-back": 0,
    "lost-partitions-kept": 7,
    "withheld-run-at-once": 488,
    "finished-forgotten-at-revocation": 42,
    "retry-without-delay": 0,
    "attempts-start-anew": 0,
    "deadline-starts-anew": 0,
    "own-clock": 8,
    "breaker-charges": 6,
    "errors-to-all-charge": 6,
    "slots-leak-at-rebalance": 6,
    "credit-leaks": 7,
    "metadata-ignored": 2,
    "finished-notice-ignored": 162,
    "dead-letter-left-out": 0,
    "failed-produce-skipped": 7,
    "shares-ignored": 0,
    "limit-ignored": 3,
    "memory-ignored": 34,
    "crashes-not-counted": 2,
    "suspects-beside-others": 68,
    "decoded-beside-suspects": 222,
    "convicted-in-company": 2,
    "full-commit-paused-for-ever": 21,
    "expedited-before-copied": 16,
    "results-not-looked-through": 14,
    "look-from-now-on": 0,
    "letter-after-its-result": 50,
    "taken-received-again": 4,
    "expedited-with-the-high-deadline": 4,
    "cancelled-while-running-unreported": 4,
    "barrier-waits-for-nothing": 24,
    "last-commit-ignored": 42,
    "last-commit-never-said": 120,
    "any-answer-confirms": 56,
}
"""For each bug a history that shows it. When histories change another will do: `python -m simulation --bug NAME` tells
which."""


def test_every_bug_has_a_history_that_shows_it() -> None:
    names = [bug.name for bug in BUGS]
    assert len(set(names)) == len(names)
    assert set(SHOWN_BY) == set(names)


@pytest.mark.parametrize("name", SHOWN_BY)
def test_a_bug_put_back_is_found(name: str) -> None:
    quiet()
    bug = bug_named(name)
    assert run_seed(SHOWN_BY[name], patches=bug.patches()).violation is not None
    assert run_seed(SHOWN_BY[name]).violation is None


@pytest.mark.parametrize(
    ("name", "seed", "violation"),
    [
        ("barrier-waits-for-nothing", 118, "which was cancelled before it owned"),
        ("last-commit-ignored", 150, "counts 1 crashes of"),
        ("last-commit-never-said", 150, "counts 1 crashes of"),
        ("any-answer-confirms", 56, "for confirmed, and nobody took it"),
    ],
)
def test_what_breaks_hand_overs_is_found_in_the_history_that_shows_it(name: str, seed: int, violation: str) -> None:
    quiet()
    bug = bug_named(name)
    assert violation in (run_seed(seed, patches=bug.patches()).violation or "")
    assert run_seed(seed).violation is None


@pytest.mark.parametrize("bug", [None, "commit-past-unfinished"], ids=["no bug", "a bug"])
def test_a_seed_replays_the_same_history_in_any_process(bug: str | None) -> None:
    more = ["--bug", bug] if bug is not None else []
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
