"""A calibration as text: table, plots, the recommendation and its reason; and as a settings file. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import urlsplit

from forebay_schemas.contract.calibration import Calibration, CalibrationStep, Recommendation
from forebay_worker.calibrate.knee import STABLE_SHARE
from forebay_worker.settings import WorkerSettings

WIDTH: Final = 80
"""Two plots side by side, and the table, fit into it."""

_PLOT_WIDTH: Final = 39
_PLOT_HEIGHT: Final = 11
_NONE: Final = "-"
_MARKS: Final = {"stable": "", "unstable": "~", "saturated": "q", "sick": "!"}
_MARK_WORDS: Final = {
    "unstable": "~ went on to change while it was measured",
    "saturated": "q requests queued inside the engine: its batch is full",
    "sick": "! broken off: the backend got sick",
}


def calibration_text(calibration: Calibration, *, is_ascii: bool) -> str:
    """The whole report, 80 columns wide. ``is_ascii``: plots in plain characters."""
    parts = [_head(calibration)]
    if calibration.steps:
        parts += [steps_table(calibration.steps), plots(calibration, is_ascii=is_ascii)]
    parts.append(_advice(calibration))
    return "\n\n".join(part for part in parts if part)


def steps_table(steps: Sequence[CalibrationStep]) -> str:
    """A line for each step; times in ms or s as the headings show."""
    rows = [
        ("in", "req", "tokens", "TTFT", "ms", "TPOT", "ms", "whole", "s", "", "er-", ""),
        ("flight", "/s", "/s", "P50", "P95", "mean", "P95", "P50", "P95", "P99", "rors", ""),
        *(
            (
                str(step.concurrency),
                _rate(step.requests_per_second, digits=2),
                _NONE if step.output_tokens_per_second is None else _rate(step.output_tokens_per_second, digits=0),
                _milliseconds(step.ttft_p50_seconds),
                _milliseconds(step.ttft_p95_seconds),
                _milliseconds(step.tpot_seconds, digits=1),
                _milliseconds(step.tpot_p95_seconds, digits=1),
                f"{step.service_p50_seconds:.3f}",
                _or_none(step.service_p95_seconds, "{:.3f}"),
                _or_none(step.service_p99_seconds, "{:.3f}"),
                str(step.errors),
                _MARKS[step.state],
            )
            for step in steps
        ),
    ]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = [" ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    states = {step.state for step in steps}
    lines += [words for state, words in _MARK_WORDS.items() if state in states]
    signals = _signals(steps)
    return "\n".join(lines) + (f"\n\n{signals}" if signals else "")


def plots(calibration: Calibration, *, is_ascii: bool) -> str:
    """Throughput, TTFT, TPOT and the whole time against the concurrency, two side by side; unmeasured ones are left
    out."""
    steps = calibration.steps
    limit = None if calibration.recommended is None else calibration.recommended.limit_requests
    wanted: list[tuple[str, Callable[[CalibrationStep], float | None]]] = [
        ("output tokens/s", lambda step: step.output_tokens_per_second),
        ("TTFT, s, P50", lambda step: step.ttft_p50_seconds),
        ("TPOT, ms, mean", lambda step: None if step.tpot_seconds is None else 1000 * step.tpot_seconds),
        ("the whole, s, P95", lambda step: step.service_p95_seconds),
    ]
    if all(step.output_tokens_per_second is None for step in steps):
        wanted[0] = ("requests/s", lambda step: step.requests_per_second)
    drawn = []
    for title, value in wanted:
        points = [(step.concurrency, found) for step in steps if (found := value(step)) is not None]
        if len(points) >= 2:
            drawn.append(_plot(title, points, limit=limit, is_ascii=is_ascii))
    rows = []
    for left, right in zip(drawn[::2], [*drawn[1::2], None], strict=False):
        rows += (
            left if right is None else [f"{a:<{_PLOT_WIDTH}}  {b}".rstrip() for a, b in zip(left, right, strict=True)]
        )
    if not rows:
        return ""
    marked = "" if limit is None else f"; the vertical line is the limit, {limit}"
    return "\n".join(rows) + f"\nagainst requests in flight, on a log scale{marked}"


def settings_text(calibration: Calibration, settings: WorkerSettings) -> str:
    """A TOML file for `forebay-worker run --config`. ``calibration`` must recommend something."""
    found = calibration.recommended
    assert found is not None
    lines = [
        f"# Found by forebay-worker calibrate on {calibration.backend}",
        f"# with {calibration.load}.",
        f"# With {found.limit_requests} in flight: {found.requests_per_second:.2f} requests/s, "
        f"{found.service_seconds:.3f} s each; {STABLE_SHARE:.0%} of the stable throughput of "
        f"{found.stable_requests_per_second:.2f} requests/s, with {found.stable_concurrency}.",
        f"# At that rate {found.queue_high_requests} requests that wait are {found.queue_high_seconds:g} s, "
        f"{found.queue_mid_requests} are {found.queue_mid_seconds:g} s.",
    ]
    if calibration.state != "complete":
        lines.append(f"# Not a complete calibration: {calibration.stopped_by}.")
    if settings.handler is not None:
        lines.append(f"handler = {json.dumps(settings.handler)}")
    elif settings.backend_url is not None and urlsplit(settings.backend_url).username is None:
        lines.append(f"backend_url = {json.dumps(settings.backend_url)}")
    else:
        lines.append("# backend_url has a password in it: set FOREBAY_BACKEND_URL")
    if found.tpot_target_seconds is None:
        # A backend without tokens shows only how many requests it takes at once.
        lines += ['pacing_policy = "fixed"', f"limit_max = {found.limit_requests}"]
    else:
        lines += [
            f"limit_min = {found.limit_min}",
            f"limit_start = {found.limit_start}",
            f"limit_max = {found.limit_max}",
            f"tpot_target_seconds = {found.tpot_target_seconds:g}",
        ]
        if found.prefill_seconds_max is not None:
            lines.append(f"prefill_seconds_max = {found.prefill_seconds_max:g}")
    return "\n".join(lines) + "\n"


def _head(calibration: Calibration) -> str:
    engine = "" if calibration.engine is None else f", metrics of {calibration.engine}"
    model = "" if calibration.model is None else f", model {calibration.model}"
    return f"{calibration.backend}{model}{engine}\n{calibration.load}"


def _advice(calibration: Calibration) -> str:
    lines = []
    if calibration.stopped_by is not None:
        lines.append(f"Not complete: {calibration.stopped_by}.")
    fit, found = calibration.fit, calibration.recommended
    if fit is not None:
        lines.append(
            f"An answer among n takes {fit.fixed_seconds:.3f} s + n * {fit.request_seconds * 1000:.2f} ms "
            f"(within {fit.error_ratio:.0%});\nknee, where a fifth of the time goes to what is fixed: "
            f"{fit.knee_requests:.0f} in flight."
        )
    if found is None:
        lines.append("Too little was measured to recommend anything: it takes three steps that held still.")
    else:
        lines += _recommended(found)
    lines += list(calibration.notes)
    lines += [f"{step.concurrency} in flight: {note}" for step in calibration.steps for note in step.notes]
    return "\n".join(lines)


def _recommended(found: Recommendation) -> list[str]:
    tokens = "" if found.tpot_seconds is None else f", {found.tpot_seconds * 1000:.0f} ms a token"
    lines = [
        f"Stable throughput: {found.stable_requests_per_second:.2f} requests/s, with {found.stable_concurrency} in "
        "flight.",
        f"Recommended: {found.limit_requests} in flight: {found.requests_per_second:.2f} requests/s, "
        f"{found.service_seconds:.3f} s each{tokens}.",
        "Both are what is in flight over the mean time of an answer; the table counts the answers.",
    ]
    if found.tpot_target_seconds is None:
        lines += ["  FOREBAY_PACING_POLICY        fixed", f"  FOREBAY_LIMIT_MAX            {found.limit_requests}"]
    else:
        lines += [
            f"  FOREBAY_LIMIT_MIN            {found.limit_min}",
            f"  FOREBAY_LIMIT_START          {found.limit_start}",
            f"  FOREBAY_LIMIT_MAX            {found.limit_max}",
            f"  FOREBAY_TPOT_TARGET_SECONDS  {found.tpot_target_seconds:g}",
        ]
        if found.prefill_seconds_max is not None:
            lines.append(f"  FOREBAY_PREFILL_SECONDS_MAX  {found.prefill_seconds_max:g}")
    lines.append(
        f"  may wait: {found.queue_high_requests} requests in high ({found.queue_high_seconds:g} s), "
        f"{found.queue_mid_requests} in mid ({found.queue_mid_seconds:g} s)"
    )
    return lines


def _signals(steps: Sequence[CalibrationStep]) -> str:
    """The readings of engine and GPU, if there are any."""
    heads: list[tuple[str, Callable[[CalibrationStep], str]]] = [
        ("in flight", lambda step: str(step.concurrency)),
        ("engine runs", lambda step: _or_none(step.engine_running, "{:.1f}")),
        ("queues", lambda step: _or_none(step.engine_waiting, "{:.1f}")),
        ("KV cache", lambda step: _or_none(step.kv_used_share, "{:.0%}")),
        ("preempted", lambda step: _or_none(step.preemptions, "{:.0f}")),
        ("GPU busy", lambda step: _or_none(step.gpu_utilisation, "{:.0%}")),
        ("GPU memory", lambda step: _or_none(step.gpu_memory_share, "{:.0%}")),
    ]
    told = [(head, cell) for head, cell in heads if any(cell(step) != _NONE for step in steps)]
    if len(told) < 2:
        return ""
    rows = [[head for head, _ in told], *([cell(step) for _, cell in told] for step in steps)]
    return "\n".join(
        "  ".join(cell.rjust(len(head)) for cell, (head, _) in zip(row, told, strict=True)).rstrip() for row in rows
    )


def _plot(title: str, points: Sequence[tuple[int, float]], *, limit: int | None, is_ascii: bool) -> list[str]:
    """Plots of equal height without colours: they also go into files, logs and narrow terminals."""
    # Imported here: a worker does not use it, and it takes a tenth of its imports' time.
    import plotext  # type: ignore[import-untyped]

    places = [math.log2(concurrency) for concurrency, _ in points]
    values = [value for _, value in points]
    shown = list(range(math.ceil(max(places)) + 1))
    figure, width = plotext.figure, _PLOT_WIDTH
    while True:
        figure.clear()
        figure.plot_size(width, _PLOT_HEIGHT)
        figure.title(title)
        signal = figure.signal(places, values, marker="*" if is_ascii else "hd")
        figure.draw(signal.lines())
        figure.ruler("y").lim(0, max(values) * 1.05 or 1.0)
        figure.ruler("x").ticks(shown, [str(2**at) for at in shown])
        if limit is not None:
            figure.line(math.log2(limit), orientation="vertical")
        lines = [line.rstrip() for line in plotext.uncolorize(figure.build().string()).splitlines()]
        excess = max(map(len, lines)) - _PLOT_WIDTH
        if excess <= 0 or width <= _PLOT_WIDTH // 2:
            return [_in_ascii(line) for line in lines] if is_ascii else lines
        # Long numbers on the axis add to the requested width.
        width -= excess


def _in_ascii(line: str) -> str:
    return "".join(character if character.isascii() else _BOX.get(character, "*") for character in line)


_BOX: Final = {**dict.fromkeys("─━", "-"), **dict.fromkeys("│┃", "|"), **dict.fromkeys("┌┐└┘├┤┬┴┼", "+")}


def _milliseconds(seconds: float | None, *, digits: int = 0) -> str:
    return _NONE if seconds is None else f"{seconds * 1000:.{digits}f}"


def _rate(per_second: float, *, digits: int) -> str:
    """At most six characters."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if per_second >= 10 * size:
            return f"{per_second / size:.1f}{unit}"
    return f"{per_second:.{digits if per_second < 1000 else 0}f}"


def _or_none(value: float | None, form: str) -> str:
    return _NONE if value is None else form.format(value)
