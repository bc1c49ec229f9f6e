"""`forebay dead-letters`: what died and why, one of them in full, and replays."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from forebay_producer import cli_dead_letters_replay
from forebay_producer.cli_common import Output, Session, command, say, stdout_console, table, to_json
from forebay_producer.cli_dead_letters_selection import SelectionOptions
from forebay_producer.dead_letters import By, Group, Groups, was_replayed
from forebay_producer.dead_letters_reader import DeadLetterReader
from forebay_producer.dead_letters_view import printable, view_of, view_text
from forebay_schemas.clock import SystemClock
from forebay_schemas.errors import ExitCode

app = typer.Typer(no_args_is_help=True, help="Find out what died and why, and replay it.")

_CLOCK: Final = SystemClock()


@command(app, "list")
def list_letters(
    session: Session, *, chosen: SelectionOptions, by: Annotated[By, typer.Option(help="What to group by.")] = By.REASON
) -> None:
    """Count the pool's dead letters by kind; those that were replayed are counted apart."""
    selection = chosen.selection(now_ms=_CLOCK.wall_ms())
    reader = DeadLetterReader(session.connection, pool=session.pool, envelopes=session.envelopes, clock=_CLOCK)
    handled = reader.handled()
    groups = Groups(by)
    for letter in reader.letters():
        if selection.matches(letter):
            groups.add(letter, replayed=was_replayed(letter, handled))
    ranked = groups.ranked()
    if session.output is Output.JSON:
        for group in ranked:
            sys.stdout.write(to_json(_as_record(group, by)) + "\n")
        return
    if not ranked:
        say("no dead letters")
        return
    shown = table(by.value, "open", "replayed", "first_seen", "last_seen", "sample_ids", right=frozenset({"open"}))
    for group in ranked:
        shown.add_row(
            Text("-" if group.name is None else printable(group.name)),
            f"{group.open:,}",
            f"{group.replayed:,}",
            _time(group.first_seen),
            _time(group.last_seen),
            Text(" ".join(map(printable, group.sample_ids))),
        )
    stdout_console().print(shown)


@command(app, "show")
def show(
    session: Session,
    *,
    request_id: Annotated[
        str, typer.Argument(metavar="ID", help="A request id, a record's key, or a place as list names it: 0:17.")
    ],
    payload: Annotated[bool, typer.Option("--payload", help="With the payload: it may hold what is private.")] = False,
) -> None:
    """Show all dead letters of one request, the newest last: envelope, headers, history, error.

    Exits 1 when there is none.
    """
    reader = DeadLetterReader(session.connection, pool=session.pool, envelopes=session.envelopes, clock=_CLOCK)
    handled = reader.handled()
    names = frozenset({request_id})
    found: list[tuple[tuple[int, int, int], dict[str, Any]]] = []
    for letter in reader.letters():
        if letter.is_called(names):
            view = view_of(letter, replayed=was_replayed(letter, handled), payload=payload)
            found.append(((letter.at_ms, letter.partition, letter.offset), view))
    found.sort(key=lambda one: one[0])
    for number, (_, view) in enumerate(found):
        if session.output is Output.JSON:
            sys.stdout.write(to_json(view) + "\n")
        else:
            sys.stdout.write(("\n" if number else "") + view_text(view))
    if not found:
        say(f"error: no dead letter of {request_id}")
        raise typer.Exit(ExitCode.FAILED)


def _as_record(group: Group, by: By) -> dict[str, Any]:
    return {
        by.value: group.name,
        "open": group.open,
        "replayed": group.replayed,
        "first_seen": group.first_seen,
        "last_seen": group.last_seen,
        "sample_ids": list(group.sample_ids),
    }


def _time(epoch_ms: int) -> str:
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


cli_dead_letters_replay.add_to(app)
