"""`forebay dead-letters export`: dead letters as JSON lines, to stdout or into a file that is written atomically."""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import IO, Annotated, Final

import typer

from forebay_producer.cli.common import Session, command, say
from forebay_producer.cli.dead_letters.selection import SelectionOptions, known_reasons
from forebay_producer.cli.progress import Interruption, ScanProgress
from forebay_producer.dead_letters.export import export_line
from forebay_producer.dead_letters.reader import DeadLetterReader
from forebay_producer.dead_letters.state import State, state_of
from forebay_schemas.clock import SystemClock
from forebay_schemas.errors import ExitCode, ForebayError, UsageError
from forebay_schemas.runtime.entry import EXIT_INTERRUPTED
from forebay_schemas.runtime.terminal import printable

_CLOCK: Final = SystemClock()


class Wanted(StrEnum):
    """The states of letters to export."""

    OPEN = State.OPEN.value
    REPLAYED = State.REPLAYED.value
    DISCARDED = State.DISCARDED.value
    ALL = "all"


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    command(app, "export")(export)


def export(
    session: Session,
    *,
    chosen: SelectionOptions,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FILE", help="A file to create, readable by you alone. [default: stdout]"),
    ] = None,
    state: Annotated[
        list[Wanted] | None,
        typer.Option(help="Letters in this state (may be repeated). [default: open]"),
    ] = None,
) -> None:
    """Write dead letters as JSON lines that their records can be made of again, byte for byte.

    This holds everything, PAYLOADS INCLUDED: treat it as you treat the requests. Key, value and header values are
    strings where they are UTF-8, else {"base64": ...}; null where there is none. state says whether a letter is open,
    replayed or discarded. What was replayed or discarded is written only with --state: replayed, discarded or all.

    The file gets its name once it is complete; until then, and when the command is stopped, there is no such file.

    Exits 0 when something was written; 4 when one given by --id is not there or left out; 1 when nothing was written.
    """
    selection = chosen.selection(now_ms=_CLOCK.wall_ms())
    reader = DeadLetterReader(session.connection, pool=session.pool, envelopes=session.envelopes, clock=_CLOCK)
    handled = reader.handled()
    topic = session.pool.dead_letter
    states = _states(state or [Wanted.OPEN])
    missing, unwritten = set(selection.ids), set(selection.ids)
    written = 0
    left_out: Counter[State] = Counter()
    alone = sys.stderr.isatty() and (to is not None or not sys.stdout.isatty())
    with _sink(to) as out, Interruption() as interruption, ScanProgress(live=alone) as progress:
        for letter in reader.letters(since_ms=selection.since, tell=progress.show):
            if interruption.came:
                raise typer.Exit(EXIT_INTERRUPTED)
            if selection.matches(letter):
                names = letter.is_called(selection.ids)
                missing -= names
                now = state_of(letter, handled)
                if now not in states:
                    left_out[now] += 1
                    continue
                unwritten -= names
                out.write(export_line(letter, now, topic=topic))
                written += 1
        if not written:
            whole = "" if left_out else known_reasons(selection)
            which = "" if len(states) == len(State) else f"{' or '.join(sorted(states))} "
            say(f"error: no {which}dead letter matches {selection}{whole}{_besides(left_out)}")
            raise typer.Exit(ExitCode.FAILED)
    say(f"{written:,} written{_besides(left_out)}")
    for name in sorted(missing):
        say(f"no dead letter of {printable(name)}")
    if unwritten:
        raise typer.Exit(ExitCode.PARTLY)


def _states(wanted: list[Wanted]) -> frozenset[State]:
    return frozenset(State) if Wanted.ALL in wanted else frozenset(State(each.value) for each in wanted)


def _besides(left_out: Counter[State]) -> str:
    counts = " and ".join(f"{left_out[state]:,} {state.value}" for state in State if left_out[state])
    return f"; left out: {counts} (--state all takes them too)" if counts else ""


@contextmanager
def _sink(path: Path | None) -> Iterator[IO[bytes]]:
    """The output stream. A file appears under its name only when the block ends without an error."""
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if path.exists():
        raise UsageError("--to", f"{str(path)!r} exists", fix="give the name of a file that is to be made")
    try:
        # Like every such file it can be read by its owner alone.
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    except OSError as error:
        problem = f"{str(path)!r} cannot be made: {error.strerror}"
        raise UsageError(
            "--to", problem, fix="give a file in a folder that is there and that you may write to"
        ) from None
    part = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        part.rename(path)
    except OSError as error:
        raise ForebayError(f"--to {str(path)!r}: {error.strerror}") from None
    finally:
        with suppress(FileNotFoundError):
            part.unlink()
