"""The demo from its start to its report: a stack of its own, the traffic, the figures, the files.

Starts and ends processes, writes to ``out`` and to stderr; everything it starts ends with it, even by kill -9.
"""

from __future__ import annotations

import asyncio
import json
import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from rich.console import Console
from rich.live import Live

from forebay_sandbox.demo_ledger import Series, executed_more_than_once, series_of
from forebay_sandbox.demo_load import Traffic
from forebay_sandbox.demo_report import Figures, as_json, broken_promises, figures_of
from forebay_sandbox.demo_traffic import PULSE_FACTOR, Pulse, schedule
from forebay_sandbox.demo_view import Now, live_line, live_table, plot, report_table
from forebay_sandbox.kafka import launch_kafka
from forebay_sandbox.kafka_access import ANSWER_SECONDS_MAX, KafkaAccess, kafka_from_environment
from forebay_sandbox.kafka_spec import ClusterSpec
from forebay_sandbox.process import RunRecord, Watchdog, new_token
from forebay_sandbox.stack import Launcher, end_workers
from forebay_sandbox.trace import load_trace
from forebay_schemas.clock import SystemClock
from forebay_schemas.topics import Pool

_ENGINE: Final = "engine"
_DIRECT_ENGINE: Final = "engine-direct"
_LINE_EVERY_SECONDS: Final = 5.0
_NO_TERMINAL_COLUMNS: Final = 100

_log = logging.getLogger("forebay.sandbox.demo")


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """The JSON object of the figures, and a sentence for each promise that was not kept."""

    figures: dict[str, Any]
    broken: list[str]


def run_demo(*, pulse: Pulse, out: Path) -> DemoResult:
    """Run the whole demo; demo.png, demo.json and the parts' logs are left in ``out``. Raises ``ForebayError``."""
    console = Console(stderr=True)
    if not console.is_terminal:
        console.width = _NO_TERMINAL_COLUMNS
    log_dir = out / "demo-logs"
    log_dir.mkdir(parents=True, exist_ok=True)
    arrivals = schedule(pulse, load_trace())
    given = kafka_from_environment()
    if given is not None:
        given.require_reachable()
    with _run_of_its_own() as run:
        console.print(f"starting {'' if given else 'Kafka, '}two engines and two workers ...")
        with _kafka(run, given=given, log_dir=log_dir) as kafka:
            launcher = Launcher(token=run.token, folder=run.folder, log_dir=log_dir)
            stack = launcher.start(kafka=kafka, pool=run.pool, engines=(_ENGINE, _DIRECT_ENGINE))
            console.print(
                f"{len(arrivals)} requests in {pulse.total_seconds:g} s: {pulse.valley_per_second:g}/s, "
                f"and {PULSE_FACTOR:g} times that from {pulse.pulse_start_seconds:g} to {pulse.pulse_end_seconds:g} s"
            )
            with _live(console) as show:
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
            executed = executed_ids(launcher.engine_log(_ENGINE))
    series = series_of(record.passages, record.direct, record.samples)
    figures = figures_of(
        offered=len(arrivals),
        passages=record.passages,
        direct=record.direct,
        duplicated=executed_more_than_once(executed, among=record.ids),
    )
    result = DemoResult(figures=as_json(figures), broken=broken_promises(figures))
    _write(series, figures, result, out=out)
    console.print(plot(series, columns=console.width - 10))
    console.print(report_table(figures))
    console.print(f"picture: {out / 'demo.png'}   figures: {out / 'demo.json'}   logs: {log_dir}")
    for error in sorted(set(record.refused_by_broker)):
        console.print(f"the broker did not take {record.refused_by_broker.count(error)} requests: {error}")
    for sentence in result.broken:
        console.print(f"broken promise: {sentence}", style="bold red")
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """``pool`` is the run's own, so that on a cluster that is shared no other run's records are found."""

    token: str
    pool: str
    folder: Path


@contextmanager
def _run_of_its_own() -> Iterator[_Run]:
    """Whatever is started with the token ends with the block, or with this process; so does the folder."""
    token = new_token()
    folder = Path(tempfile.mkdtemp(prefix="forebay-demo-"))
    watchdog = Watchdog(RunRecord.of_this_process(token=token, folders_to_delete=(folder,)))
    try:
        yield _Run(token=token, pool=f"demo-{token[:8]}", folder=folder)
    finally:
        watchdog.close()


@contextmanager
def _kafka(run: _Run, *, given: KafkaAccess | None, log_dir: Path) -> Iterator[KafkaAccess]:
    """The cluster that is given, from which the run's topics are deleted again; else one of our own."""
    if given is None:
        own = launch_kafka(ClusterSpec(), data_dir=run.folder / "kafka", log_dir=log_dir, token=run.token)
        try:
            yield own
        finally:
            own.kill()
        return
    try:
        yield given
    finally:
        _delete_topics(given, pool=run.pool)


def _delete_topics(kafka: KafkaAccess, *, pool: str) -> None:
    admin = kafka.admin()
    for topic, deleted in admin.delete_topics(
        [spec.name for spec in Pool(pool).specs(partitions=1, replication=1)]
    ).items():
        try:
            error = deleted.exception(ANSWER_SECONDS_MAX)
        except TimeoutError:
            # What ended the demo is the news, not this; the other topics would take as long each.
            _log.warning("topics of pool %s stay behind: no broker answered", pool)
            return
        if isinstance(error, KafkaException) and error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            continue  # the demo ended before it was made
        if error is not None:
            _log.warning("topic %s stays behind: %s", topic, error)


@contextmanager
def _live(console: Console) -> Iterator[Callable[[Now], None]]:
    """What shows how the run stands: a table that is redrawn, or a line now and then where that is not possible."""
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            yield lambda now: live.update(live_table(now), refresh=True)
        return
    next_line = 0.0

    def show(now: Now) -> None:
        nonlocal next_line
        if now.at_seconds >= next_line:
            console.print(live_line(now), soft_wrap=True)
            next_line = now.at_seconds + _LINE_EVERY_SECONDS

    yield show


def executed_ids(log_path: Path) -> list[str]:
    """The request ids in an engine's log of executions, each as often as it was run. A refused request was not run."""
    lines = map(json.loads, log_path.read_text(encoding="utf-8").splitlines())
    return [line["request_id"] for line in lines if line["outcome"] != "refused"]


def _write(series: Series, figures: Figures, result: DemoResult, *, out: Path) -> None:
    # Here, because matplotlib takes half a second to import and the traffic should not wait for it.
    from forebay_sandbox.demo_picture import draw

    draw(series, figures, path=out / "demo.png")
    document = result.figures | {"broken_promises": result.broken, "per_second": asdict(series)}
    (out / "demo.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
