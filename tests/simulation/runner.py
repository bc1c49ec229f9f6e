"""Runs histories on all cores and adds up what they report. Starts processes."""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog

from simulation.bugs import bug_named
from simulation.history import Report, run_seed

HISTORIES_BETWEEN_COLLECTIONS = 10
_SILENT = 50


@dataclass(slots=True)
class Summary:
    """Results of many histories."""

    first: int
    histories: int = 0
    failed: list[int] = field(default_factory=list)
    events: int = 0
    cpu_seconds: float = 0.0
    virtual_seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    began: float = field(default_factory=time.monotonic)

    def add(self, report: Report) -> None:
        self.histories += 1
        self.events += report.events
        self.cpu_seconds += report.cpu_seconds
        self.virtual_seconds += report.virtual_seconds
        self.counts.update(report.counts)
        self.causes.update(report.causes)
        if report.violation is not None:
            self.failed.append(report.seed)

    def as_json(self) -> dict[str, Any]:
        """The output of `make simulate`. A failed seed is a broken promise: something lost, stuck or not explained."""
        seconds = time.monotonic() - self.began
        return {
            "first_seed": self.first,
            "histories": self.histories,
            "failed": len(self.failed),
            "failed_seeds": sorted(self.failed)[:20],
            **{name: self.counts[name] for name in sorted(self.counts)},
            "duplicate_executions": {name: self.causes[name] for name in sorted(self.causes)},
            "virtual_hours": round(self.virtual_seconds / 3600, 1),
            "events": self.events,
            "seconds": round(seconds, 1),
            "cpu_seconds": round(self.cpu_seconds, 1),
            "histories_per_minute": round(self.histories / seconds * 60),
        }


def quiet() -> None:
    """Keeps the workers' log lines of faults, which are meant here, off the screen."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(_SILENT))


def run_seeds(seeds: Iterable[int], *, bug: str | None = None) -> Iterator[Report]:
    """The reports, in no certain order, from as many processes as there are cores."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(os.cpu_count() or 1, initializer=_begin) as pool:
        yield from pool.imap_unordered(partial(_run, bug=bug), seeds, chunksize=5)


def _begin() -> None:
    quiet()
    # Histories leave few cycles; looking for them all the time costs a fifth.
    gc.disable()


def _run(seed: int, *, bug: str | None) -> Report:
    patches = [] if bug is None else bug_named(bug).patches()
    report = run_seed(seed, patches=patches)
    if seed % HISTORIES_BETWEEN_COLLECTIONS == 0:
        gc.collect()
    return report
