"""The common set-up of all demos: Kafka and processes, a live view, the end of the report.

Starts and ends processes, writes to stderr; everything it starts ends with it, even after kill -9.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from rich.console import Console
from rich.live import Live

from forebay_sandbox.demo.view import Board, live_line, live_table
from forebay_sandbox.kafka.access import ANSWER_SECONDS_MAX, KafkaAccess, kafka_from_environment
from forebay_sandbox.kafka.local import launch_kafka
from forebay_sandbox.kafka.spec import ClusterSpec
from forebay_sandbox.process import RunRecord, Watchdog, new_token
from forebay_sandbox.stack.stack import Launcher
from forebay_schemas.contract.topics import Pool

_LINE_EVERY_SECONDS: Final = 5.0
_NO_TERMINAL_COLUMNS: Final = 100

_log = logging.getLogger("forebay.sandbox.demo")


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """The JSON object of the figures, and a sentence for each broken promise."""

    figures: dict[str, Any]
    broken: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Where one run plays. ``pool`` is its own: on a cluster that is shared no other run's records are found in it."""

    console: Console
    kafka: KafkaAccess
    pool: str
    folder: Path
    """For files that go with the run."""
    launcher: Launcher


@contextmanager
def stage(*, out: Path, cast: str) -> Iterator[Stage]:
    """A Kafka that is up, and a launcher for the parts that ``cast`` names to the audience. Raises ``ForebayError``.

    Logs go to a folder in ``out``. Whatever the launcher starts ends with the block, or with this process.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        console.width = _NO_TERMINAL_COLUMNS
    log_dir = log_folder(out)
    log_dir.mkdir(parents=True, exist_ok=True)
    given = kafka_from_environment()
    if given is not None:
        given.require_reachable()
    token = new_token()
    folder = Path(tempfile.mkdtemp(prefix="forebay-demo-"))
    watchdog = Watchdog(RunRecord.of_this_process(token=token, folders_to_delete=(folder,)))
    try:
        pool = f"demo-{token[:8]}"
        console.print(f"starting {'' if given else 'Kafka, '}{cast} ...")
        with _kafka(given, token=token, pool=pool, folder=folder, log_dir=log_dir) as kafka:
            launcher = Launcher(token=token, folder=folder, log_dir=log_dir)
            yield Stage(console=console, kafka=kafka, pool=pool, folder=folder, launcher=launcher)
    finally:
        watchdog.close()


def log_folder(out: Path) -> Path:
    """The folder for the parts' output."""
    return out / "demo-logs"


@contextmanager
def _kafka(given: KafkaAccess | None, *, token: str, pool: str, folder: Path, log_dir: Path) -> Iterator[KafkaAccess]:
    """The given cluster, from which the run's topics are deleted at the end; else a new one."""
    if given is None:
        own = launch_kafka(ClusterSpec(), data_dir=folder / "kafka", log_dir=log_dir, token=token)
        try:
            yield own
        finally:
            own.kill()
        return
    try:
        yield given
    finally:
        _delete_topics(given, pool=pool)


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
def live(console: Console) -> Iterator[Callable[[Board], None]]:
    """What shows how the run stands: a table that is redrawn, or a line now and then where that is not possible."""
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as screen:
            yield lambda board: screen.update(live_table(board), refresh=True)
        return
    next_line = 0.0

    def show(board: Board) -> None:
        nonlocal next_line
        if board.at_seconds >= next_line:
            console.print(live_line(board), soft_wrap=True)
            next_line = board.at_seconds + _LINE_EVERY_SECONDS

    yield show


def conclude(console: Console, result: DemoResult, *, details: dict[str, Any], out: Path, name: str) -> None:
    """Write figures and ``details`` to ``name``.json in ``out``; say where the files are, and what was not kept."""
    figures = out / f"{name}.json"
    document = result.figures | {"broken_promises": result.broken} | details
    figures.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    console.print(f"picture: {out / name}.png   figures: {figures}   logs: {log_folder(out)}", soft_wrap=True)
    for sentence in result.broken:
        console.print(f"broken promise: {sentence}", style="bold red")
