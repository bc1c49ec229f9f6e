"""`forebay backlog`: the unfinished requests of each tier."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

import msgspec
import typer
from rich.live import Live
from rich.table import Table

from forebay_producer.cli.common import Session, command, stdout_console, table, to_json
from forebay_producer.cluster.backlog import BacklogReader, Sample, TierBacklog, backlog_of
from forebay_schemas.clock import SystemClock
from forebay_schemas.contract.tiers import TIERS
from forebay_schemas.runtime.durations import duration_seconds
from forebay_schemas.runtime.output import Output

_CLOCK = SystemClock()
_COLUMNS = ("tier", "waiting", "oldest_age_seconds", "in_per_second", "out_per_second")


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    command(app, "backlog")(backlog)


def backlog(
    session: Session,
    *,
    interval: Annotated[str, typer.Option(help="Time over which the rates are measured.")] = "1s",
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat every interval until Ctrl-C.")] = False,
) -> None:
    """Show for each tier the unfinished requests, the age of the oldest, and the rates in and out."""
    seconds = duration_seconds(interval, field="--interval")
    with BacklogReader(session.connection, pool=session.pool, clock=_CLOCK) as reader:
        before = reader.sample()
        if watch and session.output is Output.TABLE and sys.stdout.isatty():
            with Live(console=stdout_console(), auto_refresh=False) as live:
                while True:
                    before, record = _look(session, reader, before, seconds=seconds)
                    live.update(_as_table(record), refresh=True)
        while True:
            before, record = _look(session, reader, before, seconds=seconds)
            if session.output is Output.JSON:
                sys.stdout.write(to_json(record) + "\n")
            else:
                stdout_console().print(_as_table(record))
            sys.stdout.flush()
            if not watch:
                return


def _look(session: Session, reader: BacklogReader, before: Sample, *, seconds: float) -> tuple[Sample, dict[str, Any]]:
    time.sleep(seconds)
    after, ages = reader.looked_at(reader.sample())
    tiers = {
        tier.value: _rounded(backlog_of(tier, before=before, after=after, oldest_age_seconds=ages[tier]))
        for tier in TIERS
    }
    record = {
        "pool": session.pool.name,
        "at": _CLOCK.wall_ms(),
        "interval_seconds": round(after.at_seconds - before.at_seconds, 3),
        "tiers": tiers,
    }
    return after, record


def _rounded(figures: TierBacklog) -> dict[str, Any]:
    return {
        name: round(value, 3) if isinstance(value, float) else value
        for name, value in msgspec.to_builtins(figures).items()
    }


def _as_table(record: dict[str, Any]) -> Table:
    shown = table(*_COLUMNS, right=frozenset(_COLUMNS[1:]))
    for tier, figures in record["tiers"].items():
        age = figures["oldest_age_seconds"]
        shown.add_row(
            tier,
            f"{figures['waiting']:,}",
            "-" if age is None else f"{age:,.1f}",
            f"{figures['in_per_second']:,.1f}",
            f"{figures['out_per_second']:,.1f}",
        )
    return shown
