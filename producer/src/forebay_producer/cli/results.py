"""`forebay results`: the outcomes of requests."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator
from typing import Annotated, Final

import typer

from forebay_producer.cli.common import Session, command, say
from forebay_producer.cli.progress import Interruption
from forebay_producer.cli.result_rows import ResultRows
from forebay_producer.cli.values import point_in_time_ms
from forebay_producer.client.results_reader import REMEMBERED_IDS_MAX, FirstOutcomes, ResultsReader
from forebay_schemas.clock import SystemClock
from forebay_schemas.contract.reasons import Status
from forebay_schemas.contract.results import Result
from forebay_schemas.errors import BrokerUnreachableError, ExitCode
from forebay_schemas.runtime.entry import EXIT_INTERRUPTED
from forebay_schemas.runtime.terminal import printable

_WAIT_SECONDS: Final = 0.2
_SILENT_SECONDS_MAX: Final = 10.0


class Newest:
    """Of all that is added, the ``most`` that were finished last."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._added = 0
        # The number tells apart what was finished in one millisecond: results themselves have no order.
        self._heap: list[tuple[int, int, Result]] = []

    def add(self, result: Result) -> None:
        """Takes one in, and the oldest out if that is one too many."""
        self._added += 1
        entry = (result.finished_at, self._added, result)
        if len(self._heap) < self._most:
            heapq.heappush(self._heap, entry)
        else:
            heapq.heappushpop(self._heap, entry)

    def in_order(self) -> Iterator[Result]:
        """The oldest of them first."""
        return (result for _, _, result in sorted(self._heap))


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    command(app, "results")(results)


def results(
    session: Session,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue with new results as they arrive.")] = False,
    ids: Annotated[
        list[str] | None,
        typer.Option("--id", help="Only this request (may be repeated); with --follow until each has an outcome."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Start time: 10m (ago), 2026-01-31T09:00:00Z, a day or epoch ms. [default: all]"),
    ] = None,
    status: Annotated[list[Status] | None, typer.Option(help="Only this status (may be repeated).")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only this many, the newest; with --follow, exit after this many.")
    ] = None,
    no_body: Annotated[bool, typer.Option("--no-body", help="Leave out the backends' answers.")] = False,
) -> None:
    """Show the outcomes of requests up to now: the first outcome of each request and of each replay.

    They come in no order but each partition's, as far back as the topic keeps them (seven days); with --limit the
    newest come last.

    Exits 1 when one given by --id has none.
    """
    since_ms = 0 if since is None else point_in_time_ms(since, field="--since", now_ms=SystemClock().wall_ms())
    wanted = frozenset(ids or ())
    missing = set(wanted)
    firsts = FirstOutcomes(ids_max=REMEMBERED_IDS_MAX)
    rows = ResultRows(session.output, bodies=not no_body)
    shown = 0
    newest = None if limit is None or follow else Newest(limit)
    with (
        ResultsReader(
            session.connection, pool=session.pool, since_ms=since_ms, clock=SystemClock(), tell=say
        ) as reader,
        # As an exception it may come while a line is written, which is then written twice.
        Interruption() as interruption,
    ):
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
                if status and result.status not in status:
                    continue
                if newest is not None:
                    newest.add(result)
                    continue
                rows.add(result)
                shown += 1
                if shown == limit:
                    return
            rows.flush()
            if interruption.came:
                raise typer.Exit(EXIT_INTERRUPTED)
            if found:
                heard_at = time.monotonic()
            elif not follow and time.monotonic() - heard_at > _SILENT_SECONDS_MAX:
                raise BrokerUnreachableError(
                    f"the brokers at {session.connection.bootstrap_servers} went silent before the end of the results"
                )
    if newest is not None:
        for result in newest.in_order():
            rows.add(result)
        rows.flush()
    if missing:
        say(f"error: no outcome yet of {', '.join(map(printable, sorted(missing)))}")
        raise typer.Exit(ExitCode.FAILED)
