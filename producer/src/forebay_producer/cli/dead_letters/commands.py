"""`forebay dead-letters`: the group of commands, with `list` and `show`."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Final

import typer

from forebay_producer.cli.common import Session, command, say, suggested, to_json
from forebay_producer.cli.dead_letters import discard as cli_dead_letters_discard
from forebay_producer.cli.dead_letters import export as cli_dead_letters_export
from forebay_producer.cli.dead_letters import replay as cli_dead_letters_replay
from forebay_producer.cli.dead_letters.selection import SelectionOptions, known_reasons
from forebay_producer.cli.progress import ScanProgress
from forebay_producer.cli.tables import Column, print_table
from forebay_producer.dead_letters.audit import AuditIndex
from forebay_producer.dead_letters.groups import By, Group, Groups
from forebay_producer.dead_letters.groups_view import group_record, groups_text, kind_text, next_steps
from forebay_producer.dead_letters.reader import DeadLetterReader
from forebay_producer.dead_letters.runs.history import deeds_of
from forebay_producer.dead_letters.selection import Selection
from forebay_producer.dead_letters.state import state_of
from forebay_producer.dead_letters.views import rfc3339, view_of, view_text
from forebay_schemas.clock import SystemClock
from forebay_schemas.errors import ExitCode
from forebay_schemas.runtime.output import Output
from forebay_schemas.runtime.terminal import printable

app = typer.Typer(no_args_is_help=True, help="List dead letters and their causes; replay, discard or export them.")


def add_to(all_commands: typer.Typer) -> None:
    """Adds the group."""
    all_commands.add_typer(app, name="dead-letters")


_CLOCK: Final = SystemClock()


@command(app, "list")
def list_letters(
    session: Session, *, chosen: SelectionOptions, by: Annotated[By, typer.Option(help="What to group by.")] = By.REASON
) -> None:
    """Count the pool's dead letters by kind, with what they died of.

    open: nothing was done with it yet. What was replayed or discarded is counted apart. first_seen and last_seen: when
    letters of this kind died. Below the table: what each reason means and asks for, and the errors by how often they
    came, where those that differ only in numbers are one. A kind that is named - has none: no tenant, say.
    """
    selection = chosen.selection(now_ms=_CLOCK.wall_ms())
    reader = DeadLetterReader(session.connection, pool=session.pool, envelopes=session.envelopes, clock=_CLOCK)
    handled = reader.handled()
    groups = Groups(by)
    with ScanProgress(live=sys.stderr.isatty()) as progress:
        for letter in reader.letters(since_ms=selection.since, tell=progress.show):
            if selection.matches(letter):
                groups.add(letter, state_of(letter, handled))
    ranked = groups.ranked()
    shown = [group for group in ranked if not group.is_discarded]
    if session.output is Output.JSON:
        for group in shown:
            sys.stdout.write(to_json(group_record(group, by)) + "\n")
    elif shown:
        _print_groups(shown, by)
        sys.stdout.write(groups_text(shown, by))
    sys.stdout.flush()
    discarded = sum(group.discarded for group in ranked)
    if shown:
        counts = [
            f"{sum(group.open for group in ranked):,} open",
            f"{sum(group.replayed for group in ranked):,} replayed",
        ]
        say(", ".join([*counts, f"{discarded:,} discarded"]))
    else:
        say(
            f"no dead letters{'' if selection.is_everything else f' match {selection}'}"
            + _besides(discarded)
            + known_reasons(selection)
        )
    if session.output is Output.TABLE:
        for line in _next_steps(session, selection, shown, by):
            say(line)


def _besides(discarded: int) -> str:
    return f" but {discarded:,} that are discarded" if discarded else ""


def _print_groups(groups: list[Group], by: By) -> None:
    columns = (
        Column(name=by.value),
        Column(name="open", is_number=True),
        Column(name="replayed", is_number=True),
        Column(name="discarded", is_number=True),
        Column(name="first_seen", leave_out=2),
        Column(name="last_seen", leave_out=1),
        Column(name="sample_ids", leave_out=3),
    )
    rows = [
        (
            kind_text(group),
            *(f"{count:,}" for count in (group.open, group.replayed, group.discarded)),
            *map(_time, (group.first_seen, group.last_seen)),
            " ".join(map(printable, group.sample_ids)),
        )
        for group in groups
    ]
    print_table(columns, rows)


def _next_steps(session: Session, selection: Selection, groups: list[Group], by: By) -> list[str]:
    steps = next_steps(selection, groups, by)
    lines = [(printable(suggested(session, "dead-letters", *words)), why) for words, why in steps]
    return [f"{'next:' if number == 0 else '     '} {line}   # {why}" for number, (line, why) in enumerate(lines)]


@command(app, "show")
def show(
    session: Session,
    *,
    request_id: Annotated[
        str, typer.Argument(metavar="ID", help="A request id, a record's key, or a place as list names it: 0:17.")
    ],
    payload: Annotated[bool, typer.Option("--payload", help="Include the payload, which may be private.")] = False,
) -> None:
    """Show all dead letters of one request, the newest last: envelope, headers, error, and what was done with each.

    Exits 1 when there is none.
    """
    reader = DeadLetterReader(session.connection, pool=session.pool, envelopes=session.envelopes, clock=_CLOCK)
    names = frozenset({request_id})
    with ScanProgress(live=sys.stderr.isatty()) as progress:
        found = [letter for letter in reader.letters(tell=progress.show) if letter.is_called(names)]
    found.sort(key=lambda letter: (letter.at_ms, letter.partition, letter.offset))
    handled = AuditIndex(topic_id=reader.topic_id)
    deeds: dict[tuple[int, int], list[dict[str, Any]]] = {(one.partition, one.offset): [] for one in found}
    places = frozenset(deeds)
    for record in reader.audit():
        handled.add(record)
        for place, deed in deeds_of(record, topic_id=reader.topic_id, places=places):
            deeds[place].append(deed)
    for number, letter in enumerate(found):
        view = view_of(
            letter,
            state=state_of(letter, handled),
            deeds=deeds[letter.partition, letter.offset],
            payload=payload,
        )
        if session.output is Output.JSON:
            sys.stdout.write(to_json(view) + "\n")
        else:
            sys.stdout.write(("\n" if number else "") + view_text(view))
    if not found:
        say(f"error: no dead letter of {request_id}")
        raise typer.Exit(ExitCode.FAILED)


def _time(epoch_ms: int | None) -> str:
    return "-" if epoch_ms is None else rfc3339(epoch_ms // 1000 * 1000)


cli_dead_letters_export.add_to(app)
cli_dead_letters_replay.add_to(app)
cli_dead_letters_discard.add_to(app)
