"""`forebay submit`: sends the lines of a file and, with --wait, prints their outcomes. Starts no thread of its own."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any, Final

import typer

from forebay_producer.admission.admission import Admission
from forebay_producer.admission.gate import policy_of
from forebay_producer.cli.common import Session, command, say
from forebay_producer.cli.line_source import Line, LineSource, stdin_descriptor
from forebay_producer.cli.progress import Interruption, Progress
from forebay_producer.cli.result_rows import ResultRows
from forebay_producer.cli.submit_lines import LineDefaults, envelope_on, is_blank, ttl_ms_of
from forebay_producer.cli.tables import Rows
from forebay_producer.client.client import Producer
from forebay_producer.client.results_reader import ResultsReader
from forebay_producer.client.sender import Submitted
from forebay_producer.errors import SENT_BEFORE_HINT
from forebay_schemas.clock import SystemClock
from forebay_schemas.contract.reasons import Status
from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_schemas.errors import BrokerUnreachableError, ExitCode, ForebayError, TopicMissingError, UsageError
from forebay_schemas.runtime.durations import duration_seconds
from forebay_schemas.runtime.entry import EXIT_INTERRUPTED
from forebay_schemas.runtime.output import Output

_BATCH_LINES: Final = 2000
_WAIT_SECONDS: Final = 0.2
LATE_SECONDS: Final = 10.0
"""Wait beyond a request's deadline: by then it has an outcome, `expired` if no other."""
_LATE_SHOWN: Final = 10

_WIDTHS: Final = {"request_id": 36, "topic": 40, "partition": 9, "offset": 12}

_interrupted = typer.Exit(EXIT_INTERRUPTED)


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    command(app, "submit", output=Output.JSON)(submit)


def submit(
    session: Session,
    *,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="JSON lines: envelopes, OpenAI bodies or batch lines; - = stdin.")
    ],
    tier: Annotated[
        Tier | None,
        typer.Option(
            help="Tier of all lines; a line with another priority is refused. [default: the line's priority, or mid]"
        ),
    ] = None,
    ttl: Annotated[
        str | None, typer.Option(help="Deadline of lines that name none: 5s, 2m. [default: the tier's]")
    ] = None,
    biz_type: Annotated[
        str | None,
        typer.Option(help="biz_type of lines that name none. [default: derived from the body or the batch line's url]"),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Print the outcomes as they arrive, instead of the accepted requests.")
    ] = False,
    admission: Annotated[
        bool,
        typer.Option(
            "--admission", help="Refuse lines that would wait too long to be of use, and say when to try them again."
        ),
    ] = False,
    wait_timeout: Annotated[
        str | None,
        typer.Option(help="With --wait: time limit after the last line. [default: the deadlines plus 10 s]"),
    ] = None,
) -> None:
    """Submit requests, one per line. Prints the position of each in Kafka; reports invalid lines and continues.

    Exits 0 when all were accepted (with --wait: completed), 4 when some were, 1 when none was.
    """
    ttl_ms = None if ttl is None else max(1, round(duration_seconds(ttl, field="--ttl") * 1000))
    patience = None if wait_timeout is None else duration_seconds(wait_timeout, field="--wait-timeout")
    if patience is not None and not wait:
        raise UsageError("--wait-timeout", "came without --wait", fix="give both")
    with ExitStack() as stack:
        descriptor = stack.enter_context(_opened(file))
        settings = session.settings
        gate = Admission(policy=policy_of(settings), times=settings.tier_times()) if admission else None
        producer = stack.enter_context(Producer(settings=settings, admission=gate))
        producer.require_topics()
        reader = None
        if wait:
            # Created before the first submit, so that no outcome is missed.
            made = ResultsReader(session.connection, pool=session.pool, since_ms=None, clock=SystemClock(), tell=say)
            reader = stack.enter_context(made)
        job = _Job(
            session,
            producer=producer,
            reader=reader,
            source=LineSource(descriptor, batch_lines=_BATCH_LINES),
            defaults=LineDefaults(ttl_ms=ttl_ms, biz_type=biz_type),
            tier=tier,
        )
        interruption = stack.enter_context(Interruption())
        try:
            job.send_all(interruption)
            if reader is not None:
                job.wait_for_all(interruption, patience_seconds=patience)
        finally:
            job.summarise()
        if interruption.came:
            raise _interrupted
        raise typer.Exit(job.exit_code())


class _Job:
    """One run of the command."""

    def __init__(
        self,
        session: Session,
        *,
        producer: Producer,
        reader: ResultsReader | None,
        source: LineSource,
        defaults: LineDefaults,
        tier: Tier | None,
    ) -> None:
        self._producer = producer
        self._reader = reader
        self._source = source
        self._defaults = defaults
        self._tier = tier
        self._default_ttl_ms = session.settings.tier_times().ttl_ms
        self._rows = Rows(session.output, widths=_WIDTHS, leave_out=("partition", "offset", "topic"))
        self._results = ResultRows(session.output, bodies=True)
        self._progress = Progress(live=sys.stderr.isatty() and not sys.stdout.isatty())
        self._started_at = time.monotonic()
        self._accepted = self._refused = self._completed = self._ended_otherwise = self._last_line = 0
        self._tiers = {session.pool.requests(tier): tier for tier in TIERS}
        # By id: when its outcome should have come, on the monotonic clock.
        self._open: dict[str, float] = {}
        self._late: set[str] = set()

    def send_all(self, interruption: Interruption) -> None:
        """Sends every line. Raises errors after which no further line can be sent."""
        while not self._source.ended and not interruption.came:
            lines = self._source.take(timeout_seconds=_WAIT_SECONDS)
            if lines:
                self._last_line = lines[-1].number
                self._send([line for line in lines if not is_blank(line)])
            self._read_results(timeout_seconds=0)
            self._progress.show(self._so_far())

    def wait_for_all(self, interruption: Interruption, *, patience_seconds: float | None) -> None:
        """Prints outcomes until there is one for every accepted request, or patience ends. Where none is given,
        that is when the last deadline has passed: of a request that was done before no other outcome comes."""
        give_up_at = None if patience_seconds is None else time.monotonic() + patience_seconds
        while len(self._late) < len(self._open) and not interruption.came:
            if give_up_at is None:
                self._tell_late(time.monotonic())
            elif time.monotonic() > give_up_at:
                return
            self._read_results(timeout_seconds=_WAIT_SECONDS)
            self._progress.show(self._so_far())

    def summarise(self) -> None:
        """The last lines on stderr."""
        self._progress.stop()
        sys.stdout.flush()
        if len(self._late) > _LATE_SHOWN:
            say(f"no outcome came within their deadlines for {len(self._late):,} requests")
        if waiting := self._open.keys() - self._late:
            say(f"{SENT_BEFORE_HINT} {min(waiting)}")
        say(f"submit: {self._so_far()}, up to line {self._last_line}")

    def exit_code(self) -> ExitCode:
        good = self._accepted if self._reader is None else self._completed
        if good == self._accepted and not self._refused:
            return ExitCode.OK
        return ExitCode.PARTLY if good else ExitCode.FAILED

    def _send(self, lines: list[Line]) -> None:
        sendable: list[tuple[Line, dict[str, Any]]] = []
        for line in lines:
            try:
                sendable.append((line, envelope_on(line, self._defaults)))
            except ForebayError as error:
                self._refuse(line, error)
        outcomes = self._producer.submit_batch((fields for _, fields in sendable), tier=self._tier)
        accepted = [outcome for outcome in outcomes if isinstance(outcome, Submitted)]
        self._accepted += len(accepted)
        pointless: ForebayError | None = None
        for (line, _), outcome in zip(sendable, outcomes, strict=True):
            if isinstance(outcome, ForebayError):
                self._refuse(line, outcome)
                if isinstance(outcome, BrokerUnreachableError | TopicMissingError):
                    pointless = outcome
        if self._reader is not None:
            now = time.monotonic()
            for (_, fields), submitted in zip(sendable, outcomes, strict=True):
                if isinstance(submitted, Submitted):
                    tier = self._tiers[submitted.topic]
                    ttl_ms = ttl_ms_of(
                        fields,
                        tier=tier,
                        enqueued_at=submitted.enqueued_at,
                        default_ttl_ms=self._default_ttl_ms,
                    )
                    at = now + ttl_ms / 1000 + LATE_SECONDS
                    self._open[submitted.request_id] = max(at, self._open.get(submitted.request_id, at))
        else:
            for submitted in accepted:
                self._print(submitted)
            self._rows.flush()
        if pointless is not None:
            raise pointless

    def _tell_late(self, now: float) -> None:
        for request_id in [one for one, at in self._open.items() if at <= now and one not in self._late]:
            self._late.add(request_id)
            if len(self._late) <= _LATE_SHOWN:
                say(
                    f"{request_id}: no outcome came within its deadline; does a worker run? was it submitted before? "
                    f"forebay results --id {request_id}"
                )

    def _print(self, submitted: Submitted) -> None:
        self._rows.add(
            {
                "request_id": submitted.request_id,
                "topic": submitted.topic,
                "partition": submitted.partition,
                "offset": submitted.offset,
            }
        )

    def _refuse(self, line: Line, error: ForebayError) -> None:
        self._refused += 1
        say(f"line {line.number}: {error}")

    def _read_results(self, *, timeout_seconds: float) -> None:
        if self._reader is None:
            return
        for result, _ in self._reader.read(timeout_seconds=timeout_seconds):
            # What came of a replay is another outcome than that of what was submitted here.
            if result.request_id in self._open and result.replay_count == 0:
                del self._open[result.request_id]
                self._late.discard(result.request_id)
                if result.status is Status.COMPLETED:
                    self._completed += 1
                else:
                    self._ended_otherwise += 1
                self._results.add(result)
        self._results.flush()

    def _so_far(self) -> str:
        seconds = time.monotonic() - self._started_at
        parts = [f"{self._accepted:,} accepted"]
        if self._refused:
            parts.append(f"{self._refused:,} refused")
        if self._reader is not None:
            parts.append(f"{self._completed:,} completed")
            if self._ended_otherwise:
                parts.append(f"{self._ended_otherwise:,} ended otherwise")
            parts.append(f"{len(self._open):,} without outcome")
        return f"{', '.join(parts)} in {seconds:.1f} s"


@contextmanager
def _opened(file: str) -> Iterator[int]:
    if file == "-":
        yield stdin_descriptor(field="FILE")
        return
    try:
        descriptor = os.open(file, os.O_RDONLY)
        os.read(descriptor, 0)
    except OSError as error:
        raise UsageError("FILE", f"{file}: {error.strerror}", fix="name a file of JSON lines, or - for stdin") from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)
