"""The demo's picture: how the peak is shaved. Writes one PNG; needs no display."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

from forebay_sandbox.demo.ledger import Series
from forebay_sandbox.demo.report import Figures
from forebay_schemas.contract.tiers import TIERS, Tier

INK: Final = "#22313f"
MUTED: Final = "#6b7a88"
_ARRIVALS: Final = "#9db4cc"
_DISPATCHES: Final = "#0b7a75"
_REFUSED: Final = "#c8553d"
TIER_COLORS: Final = {Tier.HIGH: "#c8553d", Tier.MID: "#e0a458", Tier.LOW: "#7ca5b8"}
# Any: matplotlib types the keys as a literal of some three hundred names.
STYLE: Any = {
    "font.size": 11,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "text.color": INK,
    "legend.frameon": False,
}


def draw(series: Series, figures: Figures, *, path: Path) -> None:
    """Writes the picture to ``path``; its folder must exist."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(11, 12), dpi=100, facecolor="white")
        flow, backlog, pace, engine, direct = figure.subplots(
            5, 1, sharex=True, gridspec_kw={"height_ratios": [1.2, 1, 0.9, 0.5, 1], "hspace": 0.45}
        )
        figure.subplots_adjust(left=0.07, right=0.975, top=0.905, bottom=0.045)
        seconds = range(series.seconds)
        _title(figure, figures)

        heading = {"loc": "left", "fontsize": 12, "fontweight": "bold", "color": INK}
        flow.set_title("Requests per second", **heading)
        flow.fill_between(seconds, series.arrivals, step="post", color=_ARRIVALS, alpha=0.6, lw=0, label="arriving")
        flow.step(seconds, series.dispatches, where="post", color=_DISPATCHES, lw=2.2, label="dispatched to the engine")
        flow.legend(loc="upper right", ncols=2)

        backlog.set_title("Backlog: accepted and waiting", **heading)
        # The most urgent tier at the bottom, where a thin band is visible.
        backlog.stackplot(
            [second + 1 for second in seconds],
            [series.backlog[tier] for tier in TIERS],
            colors=[TIER_COLORS[tier] for tier in TIERS],
            labels=list(TIERS),
            alpha=0.9,
            lw=0,
        )
        backlog.legend(loc="upper right", ncols=3)

        pace.set_title("Limit that the workers found, and requests in flight", **heading)
        pace.step(seconds, series.limit, where="post", color=INK, lw=1.8, label="limit")
        pace.fill_between(
            seconds, series.in_flight, step="post", color=_DISPATCHES, alpha=0.45, lw=0, label="in flight"
        )
        pace.legend(loc="upper right", ncols=2)

        engine.set_title("Engine busy (share of the time; there is no GPU here)", **heading)
        engine.fill_between(seconds, series.engine_busy, step="post", color=_ARRIVALS, alpha=0.9, lw=0)
        engine.set_ylim(0, 1)
        engine.set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])

        direct.set_title("The same requests straight at an identical engine, without Forebay", **heading)
        bottom = [0] * series.seconds
        for values, color, label in (
            (series.direct_completed, _ARRIVALS, "answered"),
            (series.direct_timed_out, TIER_COLORS[Tier.MID], "timed out"),
            (series.direct_refused, _REFUSED, "refused (503)"),
        ):
            if any(values) or values is series.direct_completed:
                direct.bar(seconds, values, bottom=bottom, width=0.9, align="edge", color=color, label=label)
            bottom = [below + value for below, value in zip(bottom, values, strict=True)]
        direct.legend(loc="upper right", ncols=3)
        direct.set_xlabel("seconds", color=INK)

        top = 1.08 * max([*series.arrivals, *series.dispatches, 1])
        for axes in (flow, direct):
            axes.set_ylim(0, top)
        backlog.set_ylim(bottom=0)
        pace.set_ylim(0, 1.25 * max([*series.limit, *series.in_flight, 1]))  # room for the legend
        direct.set_xlim(0, series.seconds)
        for axes in (flow, backlog, pace, engine, direct):
            axes.grid(axis="y", color="#e4e9ee", lw=0.8)
            axes.set_axisbelow(True)
        figure.savefig(path)


def _title(figure: Figure, figures: Figures) -> None:
    high = figures.tiers[Tier.HIGH].end_to_end
    figure.text(0.07, 0.967, "Forebay holds the surge back and feeds the engine steadily", fontsize=17, weight="bold")
    ours = f"Through Forebay {figures.total('completed')} of {figures.total('accepted')} completed"
    if high is not None:
        ours += f", high tier P95 {high.p95:.1f} s"
    unserved = sum(figures.direct_total(name) for name in ("refused", "timed_out", "failed"))
    without = f"Without it {unserved} of {figures.direct_total('sent')} got no answer."
    figure.text(0.07, 0.941, f"{ours}, {figures.total('lost')} lost.   {without}", fontsize=12, color=MUTED)
