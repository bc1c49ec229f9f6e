"""`forebay dead-letters export`: dead letters as JSON lines, to stdout or into a file that is there whole or not."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Annotated, Final

import typer

from forebay_producer.cli_common import EXIT_INTERRUPTED, Session, command, say
from forebay_producer.cli_dead_letters_selection import SelectionOptions
from forebay_producer.cli_progress import Interruption, ScanProgress
from forebay_producer.dead_letters import state_of
from forebay_producer.dead_letters_export import export_line
from forebay_producer.dead_letters_reader import DeadLetterReader
from forebay_producer.dead_letters_view import printable
from forebay_schemas.clock import SystemClock
from forebay_schemas.errors import ExitCode, ForebayError, UsageError

_CLOCK: Final = SystemClock()


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    command(app, "export")(export)


def export(
    session: Session,
    *,
    chosen: SelectionOptions,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FILE", help="A file to make, for you alone to read. [default: stdout]"),
    ] = None,
) -> None:
    """Write dead letters as JSON lines that their records can be made of again, byte for byte.

    This holds everything, PAYLOADS INCLUDED: treat it as you treat the requests. Key, value and header values are
    strings where they are UTF-8, else {"base64": ...}; null where there is none. state says whether a letter is open,
    replayed or discarded; all of them are written.

    The file gets its name once it is complete; until then, and when the command is stopped, there is no such file.

    Exits 0 when something was written; 4 when one given by --id is not there; 1 when nothing matched.
    """
    selection = chosen.selection(now_ms=_CLOCK.wall_ms())
    reader = DeadLetterReader(session.connection, pool=session.pool, envelopes=session.envelopes, clock=_CLOCK)
    handled = reader.handled()
    topic = session.pool.dead_letter
    missing = set(selection.ids)
    written = 0
    alone = sys.stderr.isatty() and (to is not None or not sys.stdout.isatty())
    with _sink(to) as out, Interruption() as interruption, ScanProgress(live=alone) as progress:
        for letter in reader.letters(since_ms=selection.since, tell=progress.show):
            if interruption.came:
                raise typer.Exit(EXIT_INTERRUPTED)
            if selection.matches(letter):
                missing -= letter.is_called(selection.ids)
                out.write(export_line(letter, state_of(letter, handled), topic=topic))
                written += 1
        if not written:
            say(f"error: no dead letter matches {selection}")
            raise typer.Exit(ExitCode.FAILED)
    say(f"{written:,} written")
    for name in sorted(missing):
        say(f"no dead letter of {printable(name)}")
    if missing:
        raise typer.Exit(ExitCode.PARTLY)


@contextmanager
def _sink(path: Path | None) -> Iterator[IO[bytes]]:
    """Where the lines go. A file appears under its name when the block ends well, and not at all when it does not."""
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if path.exists():
        raise UsageError("--to", f"{str(path)!r} exists", fix="give the name of a file that is to be made")
    part: Path | None = None
    try:
        # Like every such file it can be read by its owner alone.
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", suffix=".part", delete=False) as out:
            part = Path(out.name)
            yield out
            out.flush()
            os.fsync(out.fileno())
        part.rename(path)
    except OSError as error:
        raise ForebayError(f"--to {str(path)!r}: {error.strerror}") from None
    finally:
        if part is not None:
            with suppress(FileNotFoundError):
                part.unlink()
