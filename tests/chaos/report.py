"""The report of a run: one JSON object, and the broken promises. Pure."""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from typing import Any

from chaos.facts import CommandRun, Facts, Life
from chaos.ledger import Cause
from chaos.run import Report, unclean_ends
from forebay_schemas.errors import ExitCode

UNEXPLAINED_STALL_SECONDS_MAX = 20.0
"""Upper bound on the system's own time until a partition goes on, beyond the time for which faults held it."""

_USUAL_EXIT_CODES = (None, ExitCode.OK, ExitCode.FAILED, ExitCode.UNREACHABLE, ExitCode.PARTLY)

GROWTH_MB_MAX = 25.0
"""From the second quarter of a worker's life to its last, median to median."""

_GROWTH_LIFE_SECONDS_MIN = 60.0


def broken_promises(
    report: Report, *, unexplained_stall_seconds_max: float = UNEXPLAINED_STALL_SECONDS_MAX
) -> list[str]:
    """In words; empty when all are kept."""
    ledger, facts = report.ledger, report.facts
    broken = []
    if ledger.lost:
        broken.append(f"{len(ledger.lost)} lost: {', '.join(ledger.lost[:20])}")
    unexplained = [each for each in ledger.repetitions if each.cause is Cause.UNEXPLAINED]
    broken += [
        f"{each.request_id} attempt {each.attempt} ran on {each.first.worker} and on {each.second.worker}: {each.why}"
        for each in unexplained[:20]
    ]
    broken += [
        f"{stall.topic}/{stall.partition} stood still for {stall.seconds:.1f} s, and no fault explains "
        f"{stall.unexplained_seconds:.1f} s of it"
        for stall in report.stalls
        if stall.unexplained_seconds > unexplained_stall_seconds_max
    ]
    broken += [f"a retry was early: {early}" for early in ledger.early[:20]]
    if report.unfinished:
        broken.append(f"not committed in the end: {report.unfinished}")
    growth = rss_growth_mb(facts)
    if growth > GROWTH_MB_MAX:
        broken.append(f"a worker's memory grew by {growth:.0f} MB")
    broken += report.letters.problems[:20]
    broken += _wrongly_shown(report)
    broken += [f"exit code {run.exit_code}: {run.words}, see {run.out_path}" for run in report.commands if _failed(run)]
    broken += report.orders.problems[:20]
    broken += [f"a commit went back: {step}" for step in report.steps_back]
    broken += [f"a commit's metadata is damaged: {text}" for text in report.damaged_commits]
    broken += unclean_ends(facts)
    return broken


def _wrongly_shown(report: Report) -> list[str]:
    letters = report.letters
    counted = {"open": letters.open, "replayed": letters.replayed, "discarded": letters.discarded}
    if counted == report.letters_shown:
        return []
    return [f"dead letters are shown as {report.letters_shown}, and are {counted}"]


def _failed(run: CommandRun) -> bool:
    """Whether a command ended in a way that no fault of this run explains: brokers may be away, letters not there."""
    return run.crashed or run.exit_code not in _USUAL_EXIT_CODES


def as_document(report: Report) -> dict[str, Any]:
    """The JSON object."""
    ledger = report.ledger
    return {
        "seed": report.plan.seed,
        "faults": sum(report.faults.values()),
        "accepted": ledger.accepted,
        "lost": len(ledger.lost),
        "duplicate_executions": {cause.value: ledger.count(cause) for cause in Cause},
        "longest_stall_seconds": round(max((stall.seconds for stall in report.stalls), default=0.0), 1),
        "longest_unexplained_stall_seconds": round(
            max((stall.unexplained_seconds for stall in report.stalls), default=0.0), 1
        ),
        "peak_rss_mb": round(max((mb for life in report.facts.lives for _, mb in life.rss_mb), default=0.0), 1),
        "dead_letters": {
            "open": report.letters.open,
            "replayed": report.letters.replayed,
            "discarded": report.letters.discarded,
        },
        "replayed": report.letters.replays,
        "replayed_twice": len(report.letters.sent_twice),
        "replays_killed": sum(run.exit_code is None for run in report.commands),
        "cancelled": report.orders.cancelled,
        "expedited": report.orders.expedited,
        "copied_twice": report.orders.copied_twice,
        "late_starts": report.orders.late_starts,
        "asked": report.orders.asked,
        "orders_failed": len(report.orders_failed),
        "rss_growth_mb": round(rss_growth_mb(report.facts), 1),
        "outcomes": dict(sorted(ledger.outcomes.items())),
        "replay_outcomes": dict(sorted(ledger.replay_outcomes.items())),
        "doubled_outcomes": ledger.doubled_outcomes,
        "fault_kinds": dict(sorted(report.faults.items())),
        "executions": len(report.facts.executions),
        "workers": len(report.facts.lives),
        "broken_promises": broken_promises(report),
        "folder": str(report.folder),
    }


def details(report: Report) -> dict[str, list[dict[str, Any]]]:
    """Texts to look for in the logs, by the name of the file that takes them."""
    outcomes = defaultdict(list)
    for outcome in report.facts.outcomes:
        outcomes[outcome.request_id].append(dataclasses.asdict(outcome))
    lives = [dataclasses.asdict(life) for life in report.facts.lives]
    for life in lives:
        del life["rss_mb"]
    return {
        "repetitions": [
            dataclasses.asdict(each) | {"outcomes": outcomes[each.request_id]} for each in report.ledger.repetitions
        ],
        "stalls": [dataclasses.asdict(stall) for stall in report.stalls],
        "lives": lives,
        "windows": [dataclasses.asdict(window) | {"slots": sorted(window.slots)} for window in report.facts.windows],
    }


def rss_growth_mb(facts: Facts) -> float:
    """The most that the memory of a worker grew by once it had settled."""
    return max((_growth_mb(life) for life in facts.lives), default=0.0)


def _growth_mb(life: Life) -> float:
    return growth_mb(life.rss_mb)


def growth_mb(samples: list[tuple[int, float]]) -> float:
    """From the second quarter of the samples (epoch milliseconds, MB) to the last; 0 for less than a minute of them."""
    if not samples or samples[-1][0] - samples[0][0] < _GROWTH_LIFE_SECONDS_MIN * 1000:
        return 0.0
    quarter = len(samples) // 4
    early = statistics.median(mb for _, mb in samples[quarter : 2 * quarter])
    late = statistics.median(mb for _, mb in samples[-quarter:])
    return late - early
