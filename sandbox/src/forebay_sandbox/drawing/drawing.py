"""The drawing demo from its start to its report: an image service whose free users may pay to be served sooner.

Starts and ends processes, writes to ``out`` and to stderr.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from forebay_sandbox.demo.stage import DemoResult, conclude, live, stage
from forebay_sandbox.drawing.handler import HANDLER, LOG_VARIABLE, SECONDS_VARIABLE
from forebay_sandbox.drawing.load import DrawingService
from forebay_sandbox.drawing.report import Visit, as_json, broken_promises, drawing_figures
from forebay_sandbox.drawing.users import BURST_FREE, SLOTS_A_WORKER, users
from forebay_sandbox.drawing.view import report_table
from forebay_sandbox.engine.ledger import executed_ids
from forebay_sandbox.stack.stack import WORKERS, end_workers
from forebay_schemas.clock import SystemClock

IMAGE_SECONDS: Final = 15.0
_NAME: Final = "demo-drawing"


def run_drawing(*, image_seconds: float, out: Path) -> DemoResult:
    """Run the whole demo; demo-drawing.png and .json and the parts' logs are left in ``out``. Raises ``ForebayError``.

    ``image_seconds``: what an image takes in the mean; all else that happens is as much slower or quicker.
    """
    everybody = users(image_seconds=image_seconds)
    with stage(out=out, cast="two workers") as here:
        drawings = here.folder / "drawings.jsonl"
        stack = here.launcher.start_without_engine(
            kafka=here.kafka,
            pool=here.pool,
            backend={
                "FOREBAY_HANDLER": HANDLER,
                "FOREBAY_PACING_POLICY": "fixed",
                "FOREBAY_LIMIT_MAX": str(SLOTS_A_WORKER),
                "FOREBAY_LANE_ORDER": "fifo",
                SECONDS_VARIABLE: str(image_seconds),
                LOG_VARIABLE: str(drawings),
            },
        )
        here.console.print(
            f"{len(everybody)} users in {everybody[-1].at_seconds:.0f} s, {BURST_FREE} of them at once at the start; "
            f"an image takes {image_seconds:g} s, {WORKERS * SLOTS_A_WORKER} are drawn at a time"
        )
        with live(here.console) as show:
            service = DrawingService(
                stack=stack, users=everybody, image_seconds=image_seconds, clock=SystemClock(), show=show
            )
            visits = service.run()
        end_workers(stack)
        executed = executed_ids(drawings)
    # Here, because matplotlib takes half a second to import and the users should not wait for it.
    from forebay_sandbox.drawing.picture import draw

    figures = drawing_figures(visits, offered=len(everybody), executed=executed, image_seconds=image_seconds)
    result = DemoResult(figures=as_json(figures), broken=broken_promises(figures))
    draw(visits, figures, path=out / f"{_NAME}.png")
    here.console.print(report_table(figures))
    conclude(here.console, result, details={"visits": [_detail(visit) for visit in visits]}, out=out, name=_NAME)
    return result


def _detail(visit: Visit) -> dict[str, str | float | None]:
    return {
        "request_id": visit.request_id,
        "kind": visit.kind,
        "came_seconds": visit.passage.arrival.at_seconds,
        "wait_seconds": visit.wait_seconds,
        "before_fee_seconds": visit.before_fee_seconds,
        "after_fee_seconds": visit.after_fee_seconds,
    }
