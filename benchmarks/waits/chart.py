"""Draws estimated against actual waits as an SVG. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from benchmarks.waits.scenarios import UNTIL_SECONDS, WARM_SECONDS, Pair

WIDTH, HEIGHT = 440, 200
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 28, 26
COLUMNS = 2
HEAD = 48
DOTS_MAX = 120
STEP_SECONDS = 5.0
ACTUAL, P50, P90 = "#8a8f98", "#1f6feb", "#d9822b"


def chart(panels: Mapping[str, Sequence[Pair]], *, title: str) -> str:
    """The SVG: a panel for each entry, with a dot for each actual wait, and lines of the estimates' medians."""
    rows = -(-len(panels) // COLUMNS)
    width, height = COLUMNS * WIDTH, HEAD + rows * HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="20" font-size="14" fill="#1c2128">{escape(title)}</text>',
    ]
    for number, (colour, words) in enumerate(((ACTUAL, "actual wait"), (P50, "estimate, P50"), (P90, "estimate, P90"))):
        at = LEFT + 120 * number
        parts.append(f'<rect x="{at}" y="30" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{at + 15}" y="39" fill="#1c2128">{words}</text>')
    for number, (name, pairs) in enumerate(panels.items()):
        x, y = (number % COLUMNS) * WIDTH, HEAD + (number // COLUMNS) * HEIGHT
        parts += [f'<g transform="translate({x},{y})">', *_panel(name, pairs), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(name: str, pairs: Sequence[Pair]) -> list[str]:
    known = [pair for pair in pairs if WARM_SECONDS <= pair.at_seconds < UNTIL_SECONDS]
    longest = max([1.0, *(pair.actual_seconds for pair in known)])
    # An estimate far beyond what came is cut off at the top of its panel.
    highest = max(longest, min(2 * longest, max([0.0, *_median_of(known, "p90_seconds").values()])))
    inner_width, inner_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(at_seconds: float, seconds: float) -> tuple[float, float]:
        x = LEFT + inner_width * (at_seconds - WARM_SECONDS) / (UNTIL_SECONDS - WARM_SECONDS)
        return x, TOP + inner_height * (1 - min(1.0, seconds / highest))

    parts = [f'<text x="{LEFT}" y="18" font-weight="bold" fill="#1c2128">{escape(name)}</text>']
    for share in (0.0, 0.5, 1.0):
        _, y = place(WARM_SECONDS, share * highest)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#d8dce2"/>')
        parts.append(
            f'<text x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end" fill="#57606a">{share * highest:.3g} s</text>'
        )
    for moment in range(int(WARM_SECONDS), int(UNTIL_SECONDS) + 1, 60):
        x, _ = place(moment, 0)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 10}" text-anchor="middle" fill="#57606a">{moment} s</text>')
    step = max(1, len(known) // DOTS_MAX)
    for pair in known[::step]:
        x, y = place(pair.at_seconds, pair.actual_seconds)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="1.6" fill="{ACTUAL}" fill-opacity="0.6"/>')
    for figure, colour in (("p90_seconds", P90), ("p50_seconds", P50)):
        line = " ".join("{:.1f},{:.1f}".format(*place(at, value)) for at, value in _median_of(known, figure).items())
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
    return parts


def _median_of(pairs: Sequence[Pair], figure: str) -> dict[float, float]:
    """The median of a figure, by the middle of each five seconds of arrivals."""
    found: dict[float, list[float]] = {}
    for pair in pairs:
        found.setdefault((pair.at_seconds // STEP_SECONDS + 0.5) * STEP_SECONDS, []).append(getattr(pair, figure))
    return {at: sorted(values)[len(values) // 2] for at, values in sorted(found.items())}
