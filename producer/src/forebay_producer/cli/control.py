"""`forebay cancel` and `forebay expedite`: control of submitted requests. Reads stdin if told to."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Final

import msgspec
import typer

from forebay_producer.cli.common import Session, command, say
from forebay_producer.cli.line_source import Line, stdin_lines
from forebay_producer.cli.tables import Rows
from forebay_producer.client.control_client import ControlAnswer, ControlClient, Target
from forebay_schemas.clock import SystemClock
from forebay_schemas.contract.control import ControlAction, ControlOutcome
from forebay_schemas.contract.envelope_problems import is_request_id, shown
from forebay_schemas.errors import ExitCode, UsageError
from forebay_schemas.runtime.durations import duration_seconds
from forebay_schemas.runtime.output import Output

_WIDTHS: Final = {"request_id": 36, "outcome": 12, "topic": 40, "partition": 9, "offset": 12, "worker": 12}
_PLACE: Final = re.compile(r"([A-Za-z0-9._-]+):([0-9]{1,9}):([0-9]{1,18})")

_MEANINGS: Final = {
    None: "recorded, but no worker has answered: it is applied when a worker meets the request, unless that has ended; "
    "see: forebay results --id, forebay dead-letters show",
    ControlOutcome.RUNNING: "too late, it runs already",
    ControlOutcome.FINISHED: "too late, it has ended; see: forebay results --id",
    ControlOutcome.REFUSED: "Kafka does not take it into the high tier; it stays where it is",
}

_Ids = Annotated[
    list[str], typer.Argument(metavar="ID...", help="Request ids; - reads the lines that submit printed from stdin.")
]
_At = Annotated[
    str | None,
    typer.Option(
        metavar="TOPIC:PARTITION:OFFSET",
        help="Position of a single ID, as submit printed it: finds a request that no worker has read yet.",
    ),
]
_Wait = Annotated[str, typer.Option(help="Time limit for the workers' answers; 0 = do not wait.")]


class _Line(msgspec.Struct):
    request_id: str
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None


_decoder = msgspec.json.Decoder(_Line)


def add_to(app: typer.Typer) -> None:
    """Adds the commands."""
    command(app, "cancel")(cancel)
    command(app, "expedite")(expedite)


def cancel(session: Session, *, ids: _Ids, at: _At = None, wait: _Wait = "5s") -> None:
    """Cancel requests, waiting or running.

    Exits 0 when all are cancelled (with --wait 0: when it is written down), 4 when some are, 1 when none is.
    """
    _control(session, ControlAction.CANCEL, ids, at=at, wait=wait)


def expedite(session: Session, *, ids: _Ids, at: _At = None, wait: _Wait = "5s") -> None:
    """Move waiting requests to the high tier. Their deadlines stay.

    Exits 0 when all are there (with --wait 0: when it is written down), 4 when some are, 1 when none is.
    """
    _control(session, ControlAction.EXPEDITE, ids, at=at, wait=wait)


def _control(session: Session, action: ControlAction, ids: list[str], *, at: str | None, wait: str) -> None:
    wait_seconds = 0.0 if wait.strip() in ("0", "0s") else duration_seconds(wait, field="--wait")
    targets = _targets(ids, at)
    client = ControlClient(
        session.connection,
        pool=session.pool,
        delivery_seconds=session.settings.delivery_timeout_seconds,
        clock=SystemClock(),
    )
    try:
        answers = client.ask(action, targets, wait_seconds=wait_seconds)
    finally:
        client.close()
    rows = Rows(session.output, widths=_WIDTHS, leave_out=("topic", "offset", "partition"))
    for answer in answers:
        rows.add(_record(answer))
    rows.flush()
    if wait_seconds == 0:
        return
    if session.output is Output.TABLE:
        for outcome in dict.fromkeys(answer.outcome for answer in answers if not answer.done):
            say(f"{outcome or 'unheard'}: {_MEANINGS[outcome]}")
    done = sum(answer.done for answer in answers)
    if done < len(answers):
        raise typer.Exit(ExitCode.PARTLY if done else ExitCode.FAILED)


def _record(answer: ControlAnswer) -> dict[str, object]:
    return {
        "request_id": answer.request_id,
        "action": answer.action,
        "outcome": answer.outcome or "unheard",
        "topic": answer.topic,
        "partition": answer.partition,
        "offset": answer.offset,
        "worker": answer.worker,
    }


def _targets(ids: list[str], at: str | None) -> list[Target]:
    targets: list[Target] = []
    for name in ids:
        if name == "-":
            targets += _on_lines(stdin_lines(field="ID"))
        elif is_request_id(name):
            targets.append(Target(name))
        else:
            raise UsageError("ID", f"is {shown(name)}", fix="give 1 to 200 printable characters")
    if at is not None:
        match = _PLACE.fullmatch(at)
        if match is None:
            raise UsageError("--at", f"is {shown(at)}", fix="give TOPIC:PARTITION:OFFSET as submit printed them")
        if len(targets) != 1:
            raise UsageError("--at", f"came with {len(targets)} ids", fix="give one id, or submit's lines on stdin")
        targets = [Target(targets[0].request_id, match[1], int(match[2]), int(match[3]))]
    if not targets:
        raise UsageError("ID", "is none", fix="give request ids, or the lines that submit printed on stdin")
    return targets


def _on_lines(lines: Iterable[Line]) -> list[Target]:
    """Targets on the lines that submit printed, or on any JSON lines with a ``request_id``."""
    targets = []
    for each in lines:
        number, text = each.number, each.text
        if text is None:
            raise UsageError(f"line {number}", "is none of submit's: it is too long", fix="give JSON with request_id")
        if not text.strip():
            continue
        try:
            line = _decoder.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise UsageError(
                f"line {number}", f"is none of submit's: {error}", fix="give JSON with request_id"
            ) from None
        if not is_request_id(line.request_id):
            raise UsageError(f"line {number}", "has no request_id", fix="give the lines that submit printed")
        if line.topic is None or line.partition is None or line.offset is None:
            targets.append(Target(line.request_id))
        else:
            targets.append(Target(line.request_id, line.topic, line.partition, line.offset))
    return targets
