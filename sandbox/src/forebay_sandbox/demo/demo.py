"""The pulse demo from start to report: its own stack, the traffic, the figures, the files. Starts and ends processes,
writes to ``out`` and to stderr."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Final

from forebay_sandbox.demo.ledger import executed_more_than_once, series_of
from forebay_sandbox.demo.load import Traffic
from forebay_sandbox.demo.report import as_json, broken_promises, figures_of
from forebay_sandbox.demo.stage import DemoResult, conclude, live, stage
from forebay_sandbox.demo.trace import load_trace
from forebay_sandbox.demo.traffic import PULSE_FACTOR, Pulse, schedule
from forebay_sandbox.demo.view import plot, report_table
from forebay_sandbox.engine.ledger import executed_ids
from forebay_sandbox.stack.stack import end_workers
from forebay_schemas.clock import SystemClock

_ENGINE: Final = "engine"
_DIRECT_ENGINE: Final = "engine-direct"


def run_demo(*, pulse: Pulse, out: Path) -> DemoResult:
    """Runs the whole demo; leaves demo.png, demo.json and the logs in ``out``. Raises ``ForebayError``."""
    arrivals = schedule(pulse, load_trace())
    with stage(out=out, cast="two engines and two workers") as here:
        console = here.console
        stack = here.launcher.start(kafka=here.kafka, pool=here.pool, engines=(_ENGINE, _DIRECT_ENGINE))
        console.print(
            f"{len(arrivals)} requests in {pulse.total_seconds:g} s: {pulse.valley_per_second:g}/s, "
            f"and {PULSE_FACTOR:g} times that from {pulse.pulse_start_seconds:g} to {pulse.pulse_end_seconds:g} s"
        )
        with live(console) as show:
            traffic = Traffic(
                stack=stack,
                direct_url=stack.engines[1].url,
                pulse=pulse,
                arrivals=arrivals,
                clock=SystemClock(),
                show=show,
            )
            record = asyncio.run(traffic.run())
        end_workers(stack)
        executed = executed_ids(here.launcher.engine_log(_ENGINE))
    # Imported here, as matplotlib takes half a second and must not delay the traffic.
    from forebay_sandbox.demo.picture import draw

    series = series_of(record.passages, record.direct, record.samples)
    figures = figures_of(
        offered=len(arrivals),
        passages=record.passages,
        direct=record.direct,
        duplicated=executed_more_than_once(executed, among=record.ids),
    )
    result = DemoResult(figures=as_json(figures), broken=broken_promises(figures))
    draw(series, figures, path=out / "demo.png")
    console.print(plot(series, columns=console.width - 10))
    console.print(report_table(figures))
    for error in sorted(set(record.refused_by_broker)):
        console.print(f"the broker did not take {record.refused_by_broker.count(error)} requests: {error}")
    conclude(console, result, details={"per_second": asdict(series)}, out=out, name="demo")
    return result
