"""Pictures of the dashboards from a demo's real data: the pulse, then an incident, with a Prometheus that watches both.

Starts and ends processes, writes to the folders that it is given and to stderr.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from dashboards.picture import Span, draw
from forebay_sandbox.demo.load import Traffic
from forebay_sandbox.demo.stage import Stage, live, stage
from forebay_sandbox.demo.trace import load_trace
from forebay_sandbox.demo.traffic import Pulse, schedule
from forebay_sandbox.demo.view import live_line, live_table
from forebay_sandbox.errors import SandboxError
from forebay_sandbox.stack import incident
from forebay_sandbox.stack.prometheus import LocalPrometheus, in_quick_time, jobs_of, running_prometheus
from forebay_sandbox.stack.stack import Stack, client_environment, end_workers
from forebay_sandbox.testing import tools
from forebay_schemas.clock import SystemClock

FASTER: Final = 10.0
"""The rules' windows of five minutes are half a minute here: the run lasts three."""

_SCRAPE_SECONDS: Final = 1.0
_RATE_INTERVAL: Final = "15s"
_LETTERS: Final = 300
_SETTLE_SECONDS: Final = 15.0
_REPLAY_SECONDS_MAX: Final = 120
_WHOLE_RUN: Final = "dead-letters"


def draw_dashboards(*, chart: Path, pulse: Pulse, out: Path, logs: Path) -> list[Path]:
    """Run it all and draw each dashboard of ``chart`` to ``out``; the pictures. Raises ``ForebayError``."""
    binary = tools.prometheus()
    rules = in_quick_time((chart / "rules" / "forebay.yaml").read_text(encoding="utf-8"), factor=FASTER)
    documents = {
        path.stem: json.loads(path.read_text("utf-8")) for path in sorted((chart / "dashboards").glob("*.json"))
    }
    out.mkdir(parents=True, exist_ok=True)
    pictures = []
    with stage(out=logs, cast="two engines, two workers, an exporter and Prometheus") as here:
        stack = here.launcher.start(kafka=here.kafka, pool=here.pool, engines=("engine", "engine-direct"))
        exporter = here.launcher.start_exporter(kafka=here.kafka, pool=here.pool)
        jobs = jobs_of(workers=[worker.url for worker in stack.workers], exporter=exporter.url)
        with running_prometheus(
            binary=binary, jobs=jobs, rules=rules, folder=here.folder / "prometheus", scrape_seconds=_SCRAPE_SECONDS
        ) as prometheus:
            started = time.time()
            _pulse(here, stack, pulse)
            time.sleep(_SETTLE_SECONDS)
            pulse_ended = time.time()
            _incident(here, stack)
            time.sleep(_SETTLE_SECONDS)
            for name, document in documents.items():
                here.console.print(f"drawing {name} ...")
                end = time.time() if name == _WHOLE_RUN else pulse_ended
                pictures.append(out / f"{name}.png")
                _draw(document, prometheus, start=started, end=end, path=pictures[-1])
        end_workers(stack)
    return pictures


def _pulse(here: Stage, stack: Stack, pulse: Pulse) -> None:
    with live(here.console, table=live_table, line=live_line) as show:
        traffic = Traffic(
            stack=stack,
            direct_url=stack.engines[1].url,
            pulse=pulse,
            arrivals=schedule(pulse, load_trace()),
            clock=SystemClock(),
            show=show,
        )
        asyncio.run(traffic.run())


def _incident(here: Stage, stack: Stack) -> None:
    """Requests die of three causes; the engine is mended, and what died of it replayed."""
    here.console.print(f"{_LETTERS} requests die of three causes, a third of them is replayed ...")
    engine_url = stack.engines[0].url
    incident.break_out(engine_url, here.kafka, pool_name=here.pool, letters=_LETTERS)
    time.sleep(_SETTLE_SECONDS)
    incident.mend(engine_url)
    command = [sys.executable, "-P", str(Path(sys.executable).parent / "forebay"), "dead-letters", "replay"]
    ran = subprocess.run(
        [*command, "--reason", "backend_timeout", "--rate", "20/s", "--yes"],
        env=client_environment(here.kafka, pool=here.pool),
        capture_output=True,
        text=True,
        timeout=_REPLAY_SECONDS_MAX,
        check=False,
    )
    if ran.returncode != 0:
        raise SandboxError(f"the replay ended with {ran.returncode}:\n{ran.stderr.strip()}")


def _draw(document: dict[str, object], prometheus: LocalPrometheus, *, start: float, end: float, path: Path) -> None:
    span = Span(start=start, end=end, step_seconds=_SCRAPE_SECONDS, rate_interval=_RATE_INTERVAL)
    draw(document, prometheus, span, path=path)
