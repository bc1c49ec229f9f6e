"""`forebay-worker calibrate`: measures a backend's capacity and recommends settings. Talks to the backend alone."""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import sys
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from yarl import URL

from forebay_schemas.clock import SystemClock
from forebay_schemas.contract.calibration import VERSION, Calibration
from forebay_schemas.errors import ExitCode, UsageError
from forebay_schemas.runtime.durations import duration_seconds
from forebay_schemas.runtime.entry import EXIT_INTERRUPTED
from forebay_schemas.runtime.log import configure_logging
from forebay_schemas.runtime.output import Output
from forebay_schemas.runtime.terminal import printable_json, printable_lines
from forebay_worker.calibrate.knee import fit_line, is_plateau, recommend, unsettled_note
from forebay_worker.calibrate.prepare import Patience, first_model, look_at_engine, probe
from forebay_worker.calibrate.report import calibration_text, settings_text
from forebay_worker.calibrate.requests import Asks, MadeAsks, SampledAsks, read_lengths, read_requests
from forebay_worker.calibrate.run import Bounds, Calibrator, Found, Pulse
from forebay_worker.calibrate.target import HandlerTarget, HttpTarget
from forebay_worker.execution.handler_backend import load_handler
from forebay_worker.settings import WorkerSettings, load_worker_settings
from forebay_worker.wiring.signals import make_signals

CONCURRENCY_MAX: Final = 4096
CLOSING_SECONDS: Final = 3.0

_CLOCK: Final = SystemClock()


class Prompts(StrEnum):
    """unique: no two prompts begin alike, so that no prefix cache helps; same: a cache may help."""

    UNIQUE = "unique"
    SAME = "same"


def calibrate(
    config: Annotated[
        Path | None, typer.Option(help="A TOML file of settings; flags and FOREBAY_ variables override it")
    ] = None,
    backend_url: Annotated[str | None, typer.Option(help="The OpenAI-compatible backend")] = None,
    handler: Annotated[str | None, typer.Option(help="module:function instead of a backend")] = None,
    model: Annotated[
        str | None, typer.Option(help="The model to ask for; the first that the backend lists unless given")
    ] = None,
    prompt_tokens: Annotated[str, typer.Option(help="Length of prompts: 1000, or 500-1500")] = "1000",
    output_tokens: Annotated[str, typer.Option(help="Length of answers: 100, or 50-200")] = "100",
    requests: Annotated[
        Path | None, typer.Option(help="JSON lines of real requests, envelopes or OpenAI bodies, instead of lengths")
    ] = None,
    prompts: Annotated[
        Prompts, typer.Option(help="unique: no two begin alike; same: a prefix cache may help")
    ] = Prompts.UNIQUE,
    tpot: Annotated[
        float | None, typer.Option(help="The longest time of a token in seconds; it bounds the recommended limit")
    ] = None,
    max_concurrency: Annotated[int, typer.Option(help="The most requests in flight")] = 256,
    window: Annotated[str, typer.Option(help="Shortest time of a window; three in a row must agree")] = "2s",
    max_duration: Annotated[
        str, typer.Option(help="Longest time; it then ends with the steps measured so far")
    ] = "15m",
    even_if_busy: Annotated[bool, typer.Option("--even-if-busy", help="Measure even if others use the engine")] = False,
    write_settings: Annotated[
        Path | None, typer.Option(help="Write the recommended settings as a file for run --config")
    ] = None,
    write_json: Annotated[Path | None, typer.Option(help="Write the whole result as JSON, for forebay plan")] = None,
    output: Annotated[Output, typer.Option(help="How to print")] = Output.TABLE,
) -> None:
    """Measures a backend's capacity in steps of load, and recommends settings. It loads the backend to its limit.

    Exits 0 with a complete calibration, 4 if an incomplete one gives a recommendation, 1 without any, 130 after Ctrl-C.
    """
    settings = load_worker_settings(flags={"backend_url": backend_url, "handler": handler}, config=config)
    bounds = Bounds(
        concurrency_max=_concurrency(max_concurrency),
        window_seconds=duration_seconds(window, field="--window"),
        seconds_max=duration_seconds(max_duration, field="--max-duration"),
        tpot_seconds=_tpot(tpot),
    )
    prompt, answer = (
        read_lengths(prompt_tokens, field="--prompt-tokens"),
        read_lengths(output_tokens, field="--output-tokens"),
    )
    lines = None if requests is None else _lines(requests)
    for path in (write_settings, write_json):
        _check_writable(path)
    configure_logging(level="error" if settings.log_level == "info" else settings.log_level, service="forebay-worker")

    def asks(model: str | None) -> Asks:
        is_unique, seed = prompts is Prompts.UNIQUE, time.time_ns()
        if lines is None:
            return MadeAsks(prompt=prompt, output=answer, model=model, is_unique=is_unique, seed=seed)
        sample = read_requests(lines, model=model, field="--requests")
        assert requests is not None
        return SampledAsks(sample, name=requests.name, is_unique=is_unique, seed=seed)

    calibration = asyncio.run(_measure(settings, bounds, model=model, asks=asks, even_if_busy=even_if_busy))
    document = msgspec.json.encode(calibration).decode()
    if write_json is not None:
        write_json.write_text(document + "\n", encoding="utf-8")
    if write_settings is not None and calibration.recommended is not None:
        write_settings.write_text(settings_text(calibration, settings), encoding="utf-8")
    if output is Output.JSON:
        typer.echo(printable_json(document))
    else:
        typer.echo(printable_lines(calibration_text(calibration, is_ascii=not _takes_blocks())))
    code = exit_code(calibration)
    if code:
        raise typer.Exit(code)


def exit_code(calibration: Calibration) -> int:
    """The command's exit code."""
    if calibration.state == "interrupted":
        return EXIT_INTERRUPTED
    if calibration.recommended is None:
        return ExitCode.FAILED
    return ExitCode.OK if calibration.state == "complete" else ExitCode.PARTLY


async def _measure(
    settings: WorkerSettings,
    bounds: Bounds,
    *,
    model: str | None,
    asks: Callable[[str | None], Asks],
    even_if_busy: bool,
) -> Calibration:
    patience = Patience(seconds=bounds.seconds_max, clock=_CLOCK, say=_print_line)
    engine = await patience.wait("the engine's metrics", look_at_engine(settings, even_if_busy=even_if_busy))
    pulse = Pulse()
    target: HttpTarget | HandlerTarget
    if settings.handler is not None:
        handler = load_handler(settings.handler)
        target = HandlerTarget(handler, timeout_seconds=settings.backend_timeout_seconds, clock=_CLOCK)
        source = asks(model)
    else:
        source = asks(model or (await patience.wait("the list of models", first_model(settings))))
        target = HttpTarget(settings, concurrency_max=bounds.concurrency_max, clock=_CLOCK, on_chunk=pulse.beat)
    signals = make_signals(settings, _CLOCK)
    try:
        if isinstance(target, HttpTarget):
            await probe(target, source, patience)
        await patience.wait("the signals of engine and GPU", signals.start())
        stop = asyncio.Event()
        # From here on Ctrl-C keeps the measured steps; before, it ends the command at once.
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
        calibrator = Calibrator(
            target=target,
            asks=source,
            signals=signals,
            pulse=pulse,
            bounds=bounds,
            clock=_CLOCK,
            stop=stop,
            say=_print_line,
            began=patience.began,
        )
        found = await calibrator.run()
    finally:
        for close in (signals.stop, target.close):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSING_SECONDS):
                    await close()
    return _calibration(settings, bounds, found, load=source.describe(), model=model, engine=engine)


def _print_line(line: str) -> None:
    typer.echo(printable_lines(line), err=True)


def _calibration(
    settings: WorkerSettings, bounds: Bounds, found: Found, *, load: str, model: str | None, engine: str | None
) -> Calibration:
    notes = []
    if found.state == "complete" and not is_plateau(found.steps):
        notes.append(f"Throughput still grew at {bounds.concurrency_max} in flight: --max-concurrency ended it.")
    if (note := unsettled_note(found.steps)) is not None:
        notes.append(note)
    recommended = recommend(found.steps, tpot_seconds=bounds.tpot_seconds, tier_times=settings.tier_times())
    if settings.backend_url is None:
        backend = f"handler {settings.handler}"
    else:
        backend = str(URL(settings.backend_url).with_user(None))
    return Calibration(
        version=VERSION,
        state=found.state,
        stopped_by=found.stopped_by,
        backend=backend,
        model=model,
        engine=engine,
        load=load,
        seconds=found.seconds,
        steps=found.steps,
        fit=fit_line(found.steps),
        recommended=recommended,
        notes=tuple(notes),
    )


def _lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError("--requests", f"{path}: {error.strerror}", fix="name a file of JSON lines") from None


def _check_writable(path: Path | None) -> None:
    """Before a quarter of an hour of measuring, not after it."""
    if path is not None and not path.parent.is_dir():
        raise UsageError("--write-settings and --write-json", f"{path.parent} is no folder", fix="make it first")


def _concurrency(value: int) -> int:
    if not 1 <= value <= CONCURRENCY_MAX:
        raise UsageError("--max-concurrency", f"is {value}", fix=f"give 1 to {CONCURRENCY_MAX}")
    return value


def _tpot(value: float | None) -> float | None:
    if value is not None and not (value > 0 and math.isfinite(value)):
        raise UsageError("--tpot", f"is {value}", fix="give seconds above 0: 0.05")
    return value


def _takes_blocks() -> bool:
    """Whether stdout can encode block characters."""
    return (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "") == "utf8"
