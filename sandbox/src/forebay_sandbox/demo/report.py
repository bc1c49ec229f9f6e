"""The demos' figures: percentiles, the final JSON object, and the promises that are checked. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from forebay_sandbox.demo.ledger import DirectCall, DirectOutcome, Passage
from forebay_schemas.contract.reasons import Status
from forebay_schemas.contract.tiers import TIERS, Tier

COMPLETED_SHARE_MIN: Final = 0.95
HIGH_P95_SECONDS_MAX: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Percentiles of durations in seconds, by nearest rank: each is a value that occurred."""

    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Percentiles | None:
        """None without durations."""
        if not seconds:
            return None
        ordered = sorted(seconds)

        def rank(share: float) -> float:
            return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

        return cls(p50=rank(0.50), p95=rank(0.95), p99=rank(0.99))


@dataclass(frozen=True, slots=True, kw_only=True)
class TierFigures:
    """The outcomes of one tier's accepted requests. Times are of the completed ones."""

    accepted: int
    completed: int
    expired: int
    failed: int
    """Ended neither completed nor expired."""
    lost: int
    end_to_end: Percentiles | None
    queue: Percentiles | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectFigures:
    """The ends of direct requests. Times are of the completed ones."""

    sent: int
    completed: int
    refused: int
    timed_out: int
    failed: int
    end_to_end: Percentiles | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForebayFigures:
    """Totals of the way through Forebay. ``offered``: to be sent; ``duplicated``: run more than once."""

    offered: int
    duplicated: int
    tiers: dict[Tier, TierFigures]

    def total(self, name: str) -> int:
        """The sum of one of the tiers' counts."""
        return sum(getattr(self.tiers[tier], name) for tier in TIERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures(ForebayFigures):
    """The whole run of the pulse."""

    direct: dict[Tier, DirectFigures]

    def direct_total(self, name: str) -> int:
        """The sum of one of the direct counts."""
        return sum(getattr(self.direct[tier], name) for tier in TIERS)


def figures_of(*, offered: int, passages: Sequence[Passage], direct: Sequence[DirectCall], duplicated: int) -> Figures:
    """The figures of a finished run."""
    return Figures(
        offered=offered,
        duplicated=duplicated,
        tiers=tier_figures(passages),
        direct={tier: _direct([one for one in direct if one.arrival.tier is tier]) for tier in TIERS},
    )


def tier_figures(passages: Sequence[Passage]) -> dict[Tier, TierFigures]:
    """By submitted tier, of a finished run: an accepted request without a result is lost."""
    return {tier: _tier([one for one in passages if one.arrival.tier is tier]) for tier in TIERS}


def _tier(passages: Sequence[Passage]) -> TierFigures:
    statuses = [passage.result.status for passage in passages if passage.result is not None]
    completed, expired = statuses.count(Status.COMPLETED), statuses.count(Status.EXPIRED)
    end_to_end, queue = [], []
    for passage in passages:
        if passage.result is None or passage.result.status is not Status.COMPLETED:
            continue
        assert passage.ended_seconds is not None
        end_to_end.append(passage.ended_seconds - passage.arrival.at_seconds)
        if passage.result.queue_seconds is not None:
            queue.append(passage.result.queue_seconds)
    return TierFigures(
        accepted=len(passages),
        completed=completed,
        expired=expired,
        failed=len(statuses) - completed - expired,
        lost=len(passages) - len(statuses),
        end_to_end=Percentiles.of(end_to_end),
        queue=Percentiles.of(queue),
    )


def _direct(calls: Sequence[DirectCall]) -> DirectFigures:
    outcomes = [call.outcome for call in calls]
    return DirectFigures(
        sent=len(calls),
        completed=outcomes.count(DirectOutcome.COMPLETED),
        refused=outcomes.count(DirectOutcome.REFUSED),
        timed_out=outcomes.count(DirectOutcome.TIMED_OUT),
        failed=outcomes.count(DirectOutcome.FAILED),
        end_to_end=Percentiles.of(
            [call.ended_seconds - call.arrival.at_seconds for call in calls if call.outcome is DirectOutcome.COMPLETED]
        ),
    )


def broken_guarantees(figures: ForebayFigures) -> list[str]:
    """One sentence for each violation that must not happen in any run: not accepted, lost, run twice."""
    accepted = figures.total("accepted")
    broken = []
    if accepted < figures.offered:
        broken.append(f"{figures.offered - accepted} of {figures.offered} requests were not accepted by the broker")
    if lost := figures.total("lost"):
        broken.append(f"{lost} accepted requests have no outcome: lost")
    if figures.duplicated:
        broken.append(f"{figures.duplicated} requests were executed more than once")
    return broken


def broken_promises(figures: Figures) -> list[str]:
    """One sentence for each promise that the run broke; empty if none."""
    accepted, completed = figures.total("accepted"), figures.total("completed")
    broken = broken_guarantees(figures)
    if completed < COMPLETED_SHARE_MIN * accepted:
        broken.append(f"{completed} of {accepted} completed, which is less than {COMPLETED_SHARE_MIN:.0%}")
    high = figures.tiers[Tier.HIGH].end_to_end
    if high is not None and high.p95 > HIGH_P95_SECONDS_MAX:
        broken.append(f"the high tier's P95 end to end is {high.p95:.2f} s, above {HIGH_P95_SECONDS_MAX:g} s")
    return broken


def forebay_as_json(figures: ForebayFigures) -> dict[str, Any]:
    """The part of the object that every demo prints last. Seconds, to the millisecond; null where nothing completed."""
    return {
        **{name: figures.total(name) for name in ("accepted", "completed", "expired", "failed", "lost")},
        "duplicated": figures.duplicated,
        "tiers": {
            tier.value: {
                **named(one.end_to_end, "{}_seconds"),
                **named(one.queue, "queue_{}_seconds"),
                **{name: getattr(one, name) for name in ("accepted", "completed", "expired", "failed", "lost")},
            }
            for tier, one in figures.tiers.items()
        },
    }


def as_json(figures: Figures) -> dict[str, Any]:
    """The object that the pulse demo prints last."""
    return forebay_as_json(figures) | {
        "direct": {
            **{name: figures.direct_total(name) for name in _DIRECT_COUNTS},
            "tiers": {
                tier.value: {
                    **named(one.end_to_end, "{}_seconds"),
                    **{name: getattr(one, name) for name in _DIRECT_COUNTS},
                }
                for tier, one in figures.direct.items()
            },
        },
    }


_DIRECT_COUNTS: Final = ("sent", "completed", "refused", "timed_out", "failed")


def named(percentiles: Percentiles | None, form: str) -> dict[str, float | None]:
    """Percentiles as fields of the object: ``form`` makes a name of p50, p95 and p99."""
    return {
        form.format(name): None if percentiles is None else round(getattr(percentiles, name), 3)
        for name in ("p50", "p95", "p99")
    }
