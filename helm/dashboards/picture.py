"""A dashboard's panels as a picture: each expression as a Prometheus answers it for a span of time. Writes PNGs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from dashboards.model import COLUMNS
from forebay_sandbox.demo.picture import MUTED, STYLE
from forebay_sandbox.stack.prometheus import LocalPrometheus, Series, with_values

_COLUMN_INCHES: Final = 0.72
_ROW_INCHES: Final = 0.37
_MARGIN_INCHES: Final = 0.25
_TITLE_INCHES: Final = 0.9
_DPI: Final = 80
_COLORS: Final = ("#0b7a75", "#e0a458", "#7ca5b8", "#c8553d", "#6b4e71", "#4f772d", "#b08968", "#22313f")
_NAMED_COLORS: Final = {"green": "#4f772d", "orange": "#d9822b", "red": "#c8553d"}
_LINES_ALL_SHOWN: Final = 3
_LEGEND_LETTERS_MAX: Final = 26
_PANEL_BACKGROUND: Final = "#fbfcfd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """From when to when, in epoch seconds, with a value each ``step_seconds``."""

    start: float
    end: float
    step_seconds: float
    rate_interval: str
    """What stands for Grafana's $__rate_interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    legend: str
    seconds: list[float]
    values: list[float]


def draw(document: Mapping[str, Any], prometheus: LocalPrometheus, span: Span, *, path: Path) -> None:
    """Draw the dashboard (its JSON) with what ``prometheus`` knows of the span. The folder of ``path`` must exist."""
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in document["panels"])
    width = COLUMNS * _COLUMN_INCHES + 2 * _MARGIN_INCHES
    height = rows * _ROW_INCHES + _TITLE_INCHES + _MARGIN_INCHES
    with mpl.rc_context({**STYLE, "font.size": 9}):
        figure = Figure(figsize=(width, height), dpi=_DPI, facecolor="white")
        top = 1 - 0.38 / height
        figure.text(_MARGIN_INCHES / width, top, document["title"], fontsize=17, weight="bold")
        figure.text(_MARGIN_INCHES / width, top - 0.25 / height, document["description"], fontsize=10, color=MUTED)
        for panel in document["panels"]:
            box = _box(panel["gridPos"], width=width, height=height)
            if panel["type"] == "row":
                figure.text(box[0], box[1] + 0.1 / height, panel["title"], fontsize=12, weight="bold")
                continue
            lines = list(_lines(panel, prometheus, span))
            figure.text(
                box[0] + 0.08 / width,
                box[1] + box[3] - 0.2 / height,
                panel["title"],
                fontsize=10,
                weight="bold",
            )
            draw_panel = _draw_stat if panel["type"] == "stat" else _draw_graph
            draw_panel(figure, panel, lines, box, span)
        figure.savefig(path)


def _box(place: Mapping[str, int], *, width: float, height: float) -> tuple[float, float, float, float]:
    """A panel's left, bottom, width and height as shares of the figure."""
    left = _MARGIN_INCHES + place["x"] * _COLUMN_INCHES
    bottom = height - _TITLE_INCHES - (place["y"] + place["h"]) * _ROW_INCHES
    return left / width, bottom / height, place["w"] * _COLUMN_INCHES / width, place["h"] * _ROW_INCHES / height


def _lines(panel: Mapping[str, Any], prometheus: LocalPrometheus, span: Span) -> Iterator[_Line]:
    for target in panel["targets"]:
        expr = with_values(target["expr"], rate_interval=span.rate_interval)
        for series in prometheus.query_range(expr, start=span.start, end=span.end, step_seconds=span.step_seconds):
            yield _line(series, legend=target["legendFormat"], span=span)


def _line(series: Series, *, legend: str, span: Span) -> _Line:
    """With a gap, a NaN, wherever there was no value."""
    known = {round((at - span.start) / span.step_seconds): value for at, value in series.points}
    steps = range(int((span.end - span.start) / span.step_seconds) + 1)
    shown = re.sub(r"\{\{(\w+)\}\}", lambda match: series.labels.get(match[1], ""), legend).strip()
    return _Line(
        legend=shown,
        seconds=[step * span.step_seconds for step in steps],
        values=[known.get(step, math.nan) for step in steps],
    )


def _draw_stat(
    figure: Figure, panel: Mapping[str, Any], lines: list[_Line], box: tuple[float, float, float, float], span: Span
) -> None:
    del span
    axes = _axes(figure, box, left=0.0, bottom=0.0, top=0.0)
    axes.set_xticks([])
    axes.set_yticks([])
    known = [(line, last) for line in lines if (last := _last(line)) is not None]
    defaults = panel["fieldConfig"]["defaults"]
    if not known:
        axes.text(0.5, 0.45, "no data", ha="center", va="center", fontsize=13, color=MUTED, transform=axes.transAxes)
        return
    line, value = max(known, key=lambda pair: pair[1])
    color = _color_of(value, defaults["thresholds"]["steps"])
    ceiling = max([each for each in line.values if math.isfinite(each)], default=0)
    axes.fill_between(line.seconds, line.values, color=color, alpha=0.15, lw=0)
    axes.set_ylim(0, 2.2 * ceiling or 1)
    axes.set_xlim(line.seconds[0], line.seconds[-1])
    text = formatted(value, unit=defaults["unit"])
    axes.text(
        0.5, 0.42, text, ha="center", va="center", fontsize=22, weight="bold", color=color, transform=axes.transAxes
    )


def _draw_graph(
    figure: Figure, panel: Mapping[str, Any], lines: list[_Line], box: tuple[float, float, float, float], span: Span
) -> None:
    axes = _axes(figure, box, left=0.72, bottom=0.62, top=0.3)
    defaults = panel["fieldConfig"]["defaults"]
    axes.set_xlim(0, span.end - span.start)
    shown = _worth_drawing(lines)
    if not shown:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.text(0.5, 0.5, "no data", ha="center", va="center", fontsize=13, color=MUTED, transform=axes.transAxes)
        return
    if defaults["custom"]["stacking"]["mode"] == "normal":
        filled = [[0.0 if math.isnan(value) else value for value in line.values] for line in shown]
        axes.stackplot(shown[0].seconds, filled, labels=_legends(shown), colors=_COLORS, alpha=0.75, lw=0)
    else:
        for line, color, legend in zip(shown, _cycle(len(shown)), _legends(shown), strict=True):
            axes.plot(line.seconds, line.values, color=color, lw=1.7, label=legend)
    if defaults["custom"]["scaleDistribution"]["type"] == "log":
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    else:
        axes.set_ylim(bottom=0, top=_ceiling(axes, shown))
    _thresholds(axes, defaults["thresholds"]["steps"], drawn=defaults["custom"]["thresholdsStyle"]["mode"] != "off")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: formatted(value, unit=defaults["unit"])))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda _, __: ""))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f} s"))
    axes.grid(axis="y", color="#e4e9ee", lw=0.8)
    axes.set_axisbelow(True)
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(-0.02, -0.11),
        ncols=2 if max(map(len, _legends(shown))) > _LEGEND_LETTERS_MAX else 3,
        fontsize=7.5,
        handlelength=1.2,
        columnspacing=1.0,
        borderaxespad=0,
    )


def _axes(figure: Figure, box: tuple[float, float, float, float], *, left: float, bottom: float, top: float) -> Axes:
    """Axes within the panel's box, with its frame behind them; the paddings are inches."""
    wide, high = figure.get_size_inches()
    gap = 0.05
    frame = figure.add_axes(
        (box[0] + gap / wide, box[1] + gap / high, box[2] - 2 * gap / wide, box[3] - 2 * gap / high)
    )
    frame.set_facecolor(_PANEL_BACKGROUND)
    frame.set_xticks([])
    frame.set_yticks([])
    for side in frame.spines.values():
        side.set_visible(True)
        side.set_edgecolor("#dde3e9")
    frame.set_zorder(-1)
    right = 0.2 if left else gap
    axes = figure.add_axes(
        (
            box[0] + (gap + left) / wide,
            box[1] + (gap + bottom) / high,
            box[2] - (gap + left + right) / wide,
            box[3] - (2 * gap + bottom + top) / high,
        )
    )
    axes.patch.set_alpha(0)
    if not left:
        for side in axes.spines.values():
            side.set_visible(False)
    return axes


def _worth_drawing(lines: list[_Line]) -> list[_Line]:
    """Those that have values; of many, those that are not 0 all the time, so that the legend stays short."""
    known = [line for line in lines if any(math.isfinite(value) for value in line.values)]
    moving = [line for line in known if any(value > 0 for value in line.values)]
    return moving if moving and len(known) > _LINES_ALL_SHOWN else known


def _cycle(count: int) -> list[str]:
    return [_COLORS[number % len(_COLORS)] for number in range(count)]


def _legends(lines: list[_Line]) -> list[str]:
    return [line.legend or "value" for line in lines]


def _ceiling(axes: Axes, lines: list[_Line]) -> float:
    """Room above the highest value; never an axis of no height."""
    top = axes.get_ylim()[1]
    highest = max(value for line in lines for value in line.values if math.isfinite(value))
    return max(top, 1.1 * highest) if highest > 0 else 1.0


def _thresholds(axes: Axes, steps: list[dict[str, Any]], *, drawn: bool) -> None:
    """As dashed lines, but those far above anything that was measured, which would flatten it."""
    if not drawn:
        return
    top = axes.get_ylim()[1]
    for step in steps[1:]:
        if step["value"] <= 3 * top:
            axes.axhline(step["value"], color=_NAMED_COLORS[step["color"]], lw=1, ls="--")


def _last(line: _Line) -> float | None:
    return next((value for value in reversed(line.values) if not math.isnan(value)), None)


def _color_of(value: float, steps: list[dict[str, Any]]) -> str:
    reached = [step["color"] for step in steps if step["value"] is None or value >= step["value"]]
    return _NAMED_COLORS[reached[-1]]


def formatted(value: float, *, unit: str) -> str:
    """A value as Grafana would write it in that unit."""
    if not math.isfinite(value):
        return str(value)
    if unit == "percentunit":
        return f"{100 * value:.3g}%"
    if unit == "s":
        return _duration(value)
    if unit == "bytes":
        return f"{value / 2**20:.3g} MiB" if abs(value) < 2**30 else f"{value / 2**30:.3g} GiB"
    suffix = " req/s" if unit == "reqps" else ""
    for size, letter in ((1e6, "M"), (1e3, "K")):
        if unit != "none" and abs(value) >= size:
            return f"{value / size:.3g} {letter}{suffix}"
    return f"{value:.3g}{suffix}" if abs(value) < 1000 else f"{value:.0f}{suffix}"


def _duration(seconds: float) -> str:
    size = abs(seconds)
    if size == 0:
        return "0 s"
    if size < 1e-3:
        return f"{seconds * 1e6:.3g} µs"
    if size < 1:
        return f"{seconds * 1e3:.3g} ms"
    if size < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if size < 7200 else f"{seconds / 3600:.3g} h"
