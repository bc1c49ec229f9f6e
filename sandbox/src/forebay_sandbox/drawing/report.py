"""The drawing demo's figures: waits by kind of user, and the promises that are checked. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from forebay_sandbox.demo.ledger import Passage, executed_more_than_once
from forebay_sandbox.demo.report import (
    ForebayFigures,
    Percentiles,
    broken_guarantees,
    forebay_as_json,
    named,
    tier_figures,
)
from forebay_schemas.contract.control import ControlOutcome
from forebay_schemas.contract.tiers import Tier

PAID_P95_IMAGES_MAX: Final = 1.0
"""What a paying user may wait (P95), as a share of what an image takes. No image is interrupted for another, and what
started together in the burst ends together: at worst one such round is seen through, but never a queue. In 400 runs as
they were computed, each with the requests on other partitions, it was .27 in the median and .78 at most; in three real
ones .09, .32 and .94, the last where a worker met the burst before its first paying user, so that it kept no slot."""

NEAR_IMAGES: Final = 1 / 3
"""Users who came so close to each other, as a share of what an image takes, met the same queue."""


class Kind(StrEnum):
    """The kind of a user at the end of the run."""

    FREE = "free"
    FEE = "fee"
    """A free user who paid the fee in time: the request went from the low tier to the high one."""
    PAID = "paid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One user's image, from the submit to the outcome."""

    request_id: str
    passage: Passage
    asked_seconds: float | None = None
    """When the fee was offered. It is charged if the answer is that the request was expedited. None: not offered."""
    answer: ControlOutcome | None = None
    """What a worker did with the offer; None also if no worker answered in time."""
    is_right_picture: bool | None = None
    """Whether the image received is the prompt's; None: none was received."""

    @property
    def kind(self) -> Kind:
        if self.passage.arrival.tier is Tier.HIGH:
            return Kind.PAID
        return Kind.FEE if self.asked_seconds is not None and self.drawn_in_high else Kind.FREE

    @property
    def drawn_in_high(self) -> bool:
        """Whether the tier it ended in is high."""
        return self.passage.result is not None and self.passage.result.tier == Tier.HIGH

    @property
    def wait_seconds(self) -> float | None:
        """From the submit to the drawing's start; None when it was not drawn."""
        result = self.passage.result
        return None if result is None else result.queue_seconds

    @property
    def before_fee_seconds(self) -> float | None:
        """Waited until the fee was offered."""
        return None if self.asked_seconds is None else self.asked_seconds - self.passage.accepted_seconds

    @property
    def after_fee_seconds(self) -> float | None:
        """Waited from then on."""
        if (wait := self.wait_seconds) is None or (before := self.before_fee_seconds) is None:
            return None
        return max(0.0, wait - before)  # the clocks are two, the workers' and ours


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawingFigures(ForebayFigures):
    """The whole run of the drawing service."""

    image_seconds: float
    not_drawn: int
    """Completed, but in no worker's list of drawings."""
    wrong_pictures: int
    """Completed with another picture than the prompt's."""
    counts: dict[Kind, int]
    waits: dict[Kind, Percentiles | None]
    before_fee: Percentiles | None
    after_fee: Percentiles | None
    fees_too_late: int
    """Offered after the drawing had started: nothing was charged."""
    false_answers: int
    """Answers to the fee that contradict the tier in which the image was drawn."""
    saved_p50_seconds: float | None
    """The median of `saved_seconds`."""


def drawing_figures(
    visits: Sequence[Visit], *, offered: int, executed: Sequence[str], image_seconds: float
) -> DrawingFigures:
    """The figures of a run that is over; ``executed``: the ids in the workers' list, each as often as it was drawn."""
    by_kind = {kind: [visit for visit in visits if visit.kind is kind] for kind in Kind}
    came = [visit for visit in visits if visit.is_right_picture is not None]
    drawn = set(executed)
    saved = saved_seconds(visits, image_seconds=image_seconds)
    return DrawingFigures(
        offered=offered,
        duplicated=executed_more_than_once(executed, among={visit.request_id for visit in visits}),
        tiers=tier_figures([visit.passage for visit in visits]),
        image_seconds=image_seconds,
        not_drawn=sum(visit.request_id not in drawn for visit in came),
        wrong_pictures=sum(not visit.is_right_picture for visit in came),
        counts={kind: len(of_kind) for kind, of_kind in by_kind.items()},
        waits={kind: _percentiles(visit.wait_seconds for visit in of_kind) for kind, of_kind in by_kind.items()},
        before_fee=_percentiles(visit.before_fee_seconds for visit in by_kind[Kind.FEE]),
        after_fee=_percentiles(visit.after_fee_seconds for visit in by_kind[Kind.FEE]),
        fees_too_late=sum(visit.asked_seconds is not None for visit in by_kind[Kind.FREE]),
        false_answers=sum(
            (visit.answer is ControlOutcome.EXPEDITED) != visit.drawn_in_high
            for visit in visits
            if visit.answer is not None and visit.passage.result is not None
        ),
        saved_p50_seconds=statistics.median(saved) if saved else None,
    )


def saved_seconds(visits: Sequence[Visit], *, image_seconds: float) -> list[float]:
    """For each who paid the fee in time: how much less they waited than the median of those who came then and stayed
    free. Without anybody to compare with they are left out."""
    free = [(visit.passage.arrival.at_seconds, visit.wait_seconds) for visit in visits if visit.kind is Kind.FREE]
    saved = []
    for visit in visits:
        came, waited = visit.passage.arrival.at_seconds, visit.wait_seconds
        near = [wait for at, wait in free if wait is not None and abs(at - came) <= NEAR_IMAGES * image_seconds]
        if visit.kind is Kind.FEE and waited is not None and near:
            saved.append(statistics.median(near) - waited)
    return saved


def _percentiles(seconds: Iterable[float | None]) -> Percentiles | None:
    return Percentiles.of([one for one in seconds if one is not None])


def broken_promises(figures: DrawingFigures) -> list[str]:
    """One sentence for each promise that the run broke; empty if none."""
    accepted, completed = figures.total("accepted"), figures.total("completed")
    broken = broken_guarantees(figures)
    if completed < accepted:
        broken.append(f"{completed} of {accepted} images were completed")
    if figures.not_drawn:
        broken.append(f"{figures.not_drawn} images were answered, but no worker drew them")
    if figures.wrong_pictures:
        broken.append(f"{figures.wrong_pictures} users got another picture than theirs")
    if figures.false_answers:
        broken.append(f"{figures.false_answers} users got a wrong answer about the fee")
    if figures.saved_p50_seconds is None:
        broken.append("nobody paid the fee in time")
    elif figures.saved_p50_seconds <= 0:
        broken.append(
            f"half of those who paid the fee waited {-figures.saved_p50_seconds:.2f} s longer, or more, than those who "
            "came when they did and stayed free"
        )
    bound = PAID_P95_IMAGES_MAX * figures.image_seconds
    paid = figures.waits[Kind.PAID]
    if paid is not None and paid.p95 > bound:
        broken.append(f"the P95 of what paying users waited is {paid.p95:.2f} s, above {bound:g} s")
    return broken


def as_json(figures: DrawingFigures) -> dict[str, Any]:
    """The object that the demo prints last."""
    users: dict[str, dict[str, Any]] = {
        kind.value: {"count": figures.counts[kind], **named(figures.waits[kind], "{}_wait_seconds")} for kind in Kind
    }
    users[Kind.FEE] |= {
        "before_fee": named(figures.before_fee, "{}_wait_seconds"),
        "after_fee": named(figures.after_fee, "{}_wait_seconds"),
        "saved_p50_seconds": None if figures.saved_p50_seconds is None else round(figures.saved_p50_seconds, 3),
        "too_late": figures.fees_too_late,
        "false_answers": figures.false_answers,
    }
    return forebay_as_json(figures) | {
        "not_drawn": figures.not_drawn,
        "wrong_pictures": figures.wrong_pictures,
        "users": users,
    }
