"""`forebay results`: what came of requests."""

from __future__ import annotations

import time
from typing import Annotated, Final

import typer

from forebay_producer.cli.common import Session, command
from forebay_producer.cli.result_rows import ResultRows
from forebay_producer.cli.values import point_in_time_ms
from forebay_producer.client.results_reader import REMEMBERED_IDS_MAX, FirstOutcomes, ResultsReader
from forebay_schemas.clock import SystemClock
from forebay_schemas.contract.reasons import Status
from forebay_schemas.errors import BrokerUnreachableError, ExitCode

_WAIT_SECONDS: Final = 0.2
_SILENT_SECONDS_MAX: Final = 10.0


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    command(app, "results")(results)


def results(
    session: Session,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with results as they come.")] = False,
    ids: Annotated[
        list[str] | None,
        typer.Option("--id", help="Only of this request (may be repeated); with --follow until each has an outcome."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(help="From then on: 10m (ago), 2026-01-31T09:00:00Z, a day or epoch ms. [default: all]"),
    ] = None,
    status: Annotated[list[Status] | None, typer.Option(help="Only with this status (may be repeated).")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many.")] = None,
    no_body: Annotated[bool, typer.Option("--no-body", help="Without the backends' answers.")] = False,
) -> None:
    """Show the outcomes of requests, the first one of each and of each of its replays, up to now.

    Exits 1 when one given by --id has none.
    """
    since_ms = 0 if since is None else point_in_time_ms(since, field="--since", now_ms=SystemClock().wall_ms())
    wanted = frozenset(ids or ())
    missing = set(wanted)
    firsts = FirstOutcomes(ids_max=REMEMBERED_IDS_MAX)
    rows = ResultRows(session.output, bodies=not no_body)
    shown = 0
    with ResultsReader(session.connection, pool=session.pool, since_ms=since_ms, clock=SystemClock()) as reader:
        heard_at = time.monotonic()
        # A request that has its outcome may have been replayed since: what is there is read to its end.
        while not reader.caught_up() or (follow and (missing or not wanted)):
            found = reader.read(timeout_seconds=_WAIT_SECONDS)
            for result, _ in found:
                if wanted and result.request_id not in wanted:
                    continue
                if not firsts.is_first(result.request_id, result.replay_count):
                    continue
                missing.discard(result.request_id)
                if not status or result.status in status:
                    rows.add(result)
                    shown += 1
                if shown == limit:
                    return
            rows.flush()
            if found:
                heard_at = time.monotonic()
            elif not follow and time.monotonic() - heard_at > _SILENT_SECONDS_MAX:
                raise BrokerUnreachableError(
                    f"the brokers at {session.connection.bootstrap_servers} went silent before the end of the results"
                )
    if missing:
        typer.echo(f"error: no outcome yet of {', '.join(sorted(missing))}", err=True)
        raise typer.Exit(ExitCode.FAILED)
