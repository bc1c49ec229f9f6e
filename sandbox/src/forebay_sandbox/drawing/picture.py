"""The drawing demo's picture: each user's wait over the time of coming. Writes one PNG; needs no display."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from forebay_sandbox.demo.picture import INK, MUTED, STYLE, TIER_COLORS
from forebay_sandbox.drawing.report import DrawingFigures, Kind, Visit
from forebay_schemas.contract.tiers import Tier

_KINDS = {
    Kind.FREE: ("free, stayed", TIER_COLORS[Tier.LOW]),
    Kind.FEE: ("free, paid the fee while waiting", "#0b7a75"),
    Kind.PAID: ("paid", TIER_COLORS[Tier.HIGH]),
}


def draw(visits: Sequence[Visit], figures: DrawingFigures, *, path: Path) -> None:
    """Writes the picture to ``path``; its folder must exist."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(11, 6.5), dpi=100, facecolor="white")
        axes = figure.subplots()
        figure.subplots_adjust(left=0.07, right=0.975, top=0.83, bottom=0.09)
        title = "The fee, paid while waiting, takes a request to the front"
        figure.text(0.07, 0.945, title, fontsize=17, weight="bold")
        subtitle = (
            f"Each dot is a user of a drawing service: {figures.image_seconds:g} s an image, "
            f"{figures.total('completed')} of {figures.offered} completed, {figures.total('lost')} lost, "
            f"{figures.duplicated} drawn twice."
        )
        figure.text(0.07, 0.9, subtitle, fontsize=12, color=MUTED)
        for kind, (label, color) in _KINDS.items():
            served = [visit for visit in visits if visit.kind is kind and visit.wait_seconds is not None]
            came = [visit.passage.arrival.at_seconds for visit in served]
            waited = [visit.wait_seconds or 0.0 for visit in served]
            axes.scatter(came, waited, s=46, color=color, label=label, edgecolors="white", linewidths=0.6)
        axes.set_xlabel("came, seconds from the start", color=INK)
        axes.set_ylabel("waited for the first stroke, seconds", color=INK)
        axes.set_ylim(bottom=-1)
        axes.grid(axis="y", color="#e4e9ee", lw=0.8)
        axes.set_axisbelow(True)
        axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=3)
        figure.savefig(path)
