"""The drawing demo's picture: each user's wait over the time of coming. Writes one PNG; needs no display."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from forebay_sandbox.demo.picture import INK, MUTED, STYLE, TIER_COLORS
from forebay_sandbox.drawing.report import DrawingFigures, Kind, Visit, savings_of
from forebay_schemas.contract.tiers import Tier

_COLORS = {Kind.FREE: TIER_COLORS[Tier.LOW], Kind.FEE: "#0b7a75", Kind.PAID: TIER_COLORS[Tier.HIGH]}
_LABELS = {
    Kind.FREE: "free, stayed",
    Kind.FEE: "free, paid the fee while waiting (line: from the median of those who came then and stayed)",
    Kind.PAID: "paid",
}


def draw(visits: Sequence[Visit], figures: DrawingFigures, *, path: Path) -> None:
    """Write the picture to ``path``; its folder must be there."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(11, 6.5), dpi=100, facecolor="white")
        axes = figure.subplots()
        figure.subplots_adjust(left=0.07, right=0.975, top=0.83, bottom=0.09)
        figure.text(
            0.07, 0.945, "The fee, paid while waiting, takes a request to the front", fontsize=17, weight="bold"
        )
        subtitle = (
            f"Each dot is a user of a drawing service: {figures.image_seconds:g} s an image, "
            f"{figures.total('completed')} of {figures.offered} completed, {figures.total('lost')} lost, "
            f"{figures.duplicated} drawn twice."
        )
        figure.text(0.07, 0.9, subtitle, fontsize=12, color=MUTED)
        for saving in savings_of(visits, image_seconds=figures.image_seconds):
            axes.plot(
                [saving.came_seconds] * 2,
                [saving.free_wait_seconds, saving.wait_seconds],
                color=_COLORS[Kind.FEE],
                alpha=0.45,
                lw=1.5,
                zorder=1,
            )
        for kind in Kind:
            dots = [(visit.passage.arrival.at_seconds, visit.wait_seconds) for visit in visits if visit.kind is kind]
            came_and_waited = [(came, wait) for came, wait in dots if wait is not None]
            axes.scatter(
                [came for came, _ in came_and_waited],
                [wait for _, wait in came_and_waited],
                s=46,
                color=_COLORS[kind],
                label=_LABELS[kind],
                edgecolors="white",
                linewidths=0.6,
                zorder=2,
            )
        axes.set_xlabel("came, seconds from the start", color=INK)
        axes.set_ylabel("waited for the first stroke, seconds", color=INK)
        axes.set_ylim(bottom=-1)
        axes.grid(axis="y", color="#e4e9ee", lw=0.8)
        axes.set_axisbelow(True)
        axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=3, handletextpad=0.2, columnspacing=1.2)
        figure.savefig(path)
