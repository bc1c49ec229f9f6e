"""`forebay dead-letters discard` and `history`: marks letters as no longer needed; lists earlier runs."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Final

import typer

from forebay_producer.cli.common import Session, command, say, to_json
from forebay_producer.cli.dead_letters.attempt import Attempt
from forebay_producer.cli.dead_letters.selection import SelectionOptions, known_reasons
from forebay_producer.cli.progress import ScanProgress
from forebay_producer.cli.tables import Column, print_table
from forebay_producer.client.operator_identity import user_and_host
from forebay_producer.dead_letters.audit import Action, DiscardAudit, RunStarted
from forebay_producer.dead_letters.reader import DeadLetterReader
from forebay_producer.dead_letters.runs.history import PastRuns
from forebay_producer.dead_letters.runs.interruptions import LostTurnError
from forebay_producer.dead_letters.runs.lease import Run
from forebay_producer.dead_letters.selection import NONE, Selection
from forebay_producer.dead_letters.state import State, state_of
from forebay_producer.dead_letters.views import rfc3339
from forebay_schemas.clock import SystemClock
from forebay_schemas.errors import ExitCode, UsageError
from forebay_schemas.runtime.output import Output
from forebay_schemas.runtime.terminal import printable

BATCH_LETTERS_MAX: Final = 5_000
"""Places in one audit record: 60 KB."""

LAPSES_MAX: Final = 5
"""Failures, in a row, to publish an audit record after the lease was obtained."""

_TICK_LETTERS: Final = 500

_CLOCK: Final = SystemClock()


def add_to(app: typer.Typer) -> None:
    """Adds the commands."""
    command(app, "discard")(discard)
    command(app, "history")(history)


@dataclass(slots=True)
class _Tally:
    """Counts of a run. ``found``: the open letters by reason."""

    matched: int = 0
    discarded: int = 0
    already: int = 0
    replayed: int = 0
    found: Counter[str] = field(default_factory=Counter)
    not_found: set[str] = field(default_factory=set)

    def as_record(self, *, dry_run: bool) -> dict[str, Any]:
        return {
            "dry_run": dry_run,
            "matched": self.matched,
            "reasons": dict(self.found.most_common()),
            "discarded": self.discarded,
            "already_discarded": self.already,
            "already_replayed": self.replayed,
            "not_found": sorted(self.not_found),
        }


def discard(
    session: Session,
    *,
    chosen: SelectionOptions,
    yes: Annotated[bool, typer.Option("--yes", help="Discard. Without it, a dry run.")] = False,
) -> None:
    """Put away dead letters that are no longer needed; a dry run unless --yes.

    Discarded letters are not listed (list counts them) and never replayed. They stay in the topic until its retention
    deletes them: show and export --state discarded still find them. What was replayed is left alone. There is no way
    back but to restore an export. Who discarded what, and when, stands on the audit topic: see history.

    A run waits while another one replays or discards, and takes up nothing that died after its own start. Interrupted
    or killed, it can be started again.

    Exits 0 when all that matched is discarded, by this run or before; 4 when some; 1 when nothing matched, or all of it
    was replayed; 130 when interrupted.
    """
    selection = chosen.selection(now_ms=_CLOCK.wall_ms())
    if selection.is_everything:
        raise UsageError("discard", "needs a selection", fix="give --id ID, --reason CODE or another filter")
    reader = DeadLetterReader(session.connection, pool=session.pool, envelopes=session.envelopes, clock=_CLOCK)
    tally = _Tally(not_found=set(selection.ids))
    attempt = Attempt()
    if yes:
        _discard(session, reader, selection, tally, attempt)
    else:
        handled = reader.handled()
        with ScanProgress(live=sys.stderr.isatty()) as progress:
            for letter in reader.letters(since_ms=selection.since, tell=progress.show):
                if selection.matches(letter):
                    _meet(letter, state_of(letter, handled), selection, tally)
    if not attempt.is_whole:
        tally.not_found.clear()
    _report(session, selection, tally, dry_run=not yes, whole=attempt.is_whole)
    attempt.exit_if_cut_short(done=tally.discarded)
    if not tally.found and not tally.already:
        raise typer.Exit(ExitCode.FAILED)
    raise typer.Exit(ExitCode.PARTLY if tally.not_found else ExitCode.OK)


def _meet(letter: Any, state: State, selection: Selection, tally: _Tally) -> None:
    tally.matched += 1
    if tally.not_found:
        tally.not_found -= letter.is_called(selection.ids)
    if state is State.OPEN:
        tally.found[letter.reason or NONE] += 1
    elif state is State.REPLAYED:
        tally.replayed += 1
    else:
        tally.already += 1


def _discard(session: Session, reader: DeadLetterReader, selection: Selection, tally: _Tally, attempt: Attempt) -> None:
    by = user_and_host()
    # Letters that die while the run waits for the lease are not part of it.
    ends = reader.ends()
    opening = RunStarted(
        at=0,
        run_id="",
        by=by,
        does=Action.DISCARD,
        dead_letter_topic_id=reader.topic_id,
        selection=str(selection),
    )
    with ExitStack() as stack:
        stack.enter_context(attempt)
        run = stack.enter_context(closing(attempt.open_run(session, clock=_CLOCK, opening=opening, tell=say)))
        batch: list[tuple[int, int]] = []

        def write() -> None:
            tally.discarded += _write(run, batch, by=by, topic_id=reader.topic_id)
            batch.clear()

        with attempt.work():
            run.enter()
            progress = stack.enter_context(ScanProgress(live=sys.stderr.isatty()))
            for number, letter in enumerate(reader.letters(since_ms=selection.since, ends=ends, tell=progress.show)):
                if number % _TICK_LETTERS == 0:
                    run.tick()
                if attempt.interrupted():
                    break
                if not selection.matches(letter):
                    continue
                state = state_of(letter, run.handled)
                _meet(letter, state, selection, tally)
                if state is State.OPEN:
                    batch.append((letter.partition, letter.offset))
                    if len(batch) == BATCH_LETTERS_MAX:
                        write()
            write()
        counts = {"matched": tally.matched, "discarded": tally.discarded, "already_discarded": tally.already}
        run.end(
            attempt.ending,
            tally=counts | {"already_replayed": tally.replayed},
            error=None if attempt.failure is None else str(attempt.failure),
        )


def _write(run: Run, batch: list[tuple[int, int]], *, by: str, topic_id: str) -> int:
    """Publishes the discards; returns how many. Publishing them twice is harmless."""
    lapses = 0
    while True:
        # Another run may have held the lease since they were found open.
        places = [place for place in batch if not run.handled.was_replayed_from(*place)]
        if not places:
            return 0
        try:
            run.require_turn()
            run.say(
                DiscardAudit(
                    at=_CLOCK.wall_ms(), run_id=run.run_id, by=by, dead_letter_topic_id=topic_id, places=places
                )
            )
            run.confirm()
            return len(places)
        except LostTurnError as error:
            lapses += 1
            if lapses > LAPSES_MAX:
                raise error.cause or error from None
            run.enter()


def _report(session: Session, selection: Selection, tally: _Tally, *, dry_run: bool, whole: bool) -> None:
    record = tally.as_record(dry_run=dry_run)
    if session.output is Output.JSON:
        sys.stdout.write(to_json(record) + "\n")
    else:
        verb = "would be discarded" if dry_run else "discarded"
        count = tally.found.total() if dry_run else tally.discarded
        by_reason = ", ".join(f"{number:,} {printable(reason)}" for reason, number in tally.found.most_common(10))
        lines = [f"{count:,} {verb}" + (f" ({by_reason})" if by_reason else "")]
        if tally.already:
            lines.append(f"{tally.already:,} discarded before")
        if tally.replayed:
            lines.append(f"{tally.replayed:,} left alone, replayed before")
        lines += [f"no dead letter of {printable(name)}" for name in sorted(tally.not_found)]
        sys.stdout.writelines(printable(line) + "\n" for line in lines)
    sys.stdout.flush()
    if whole and not tally.matched:
        say(f"error: no dead letter matches {selection}{known_reasons(selection)}")
    if dry_run and tally.found:
        say("dry run: nothing was discarded; --yes does it")


def history(session: Session) -> None:
    """Show what was done with the pool's dead letters: a line for each replay or discard, the newest last.

    selection: the options that chose the letters, as one could type them again. letters: how many were replayed or
    discarded. ending: done, interrupted (Ctrl-C), failed, canary_failed, abandoned (killed; the next run cleared up
    what it left in doubt), or that it has not ended: it goes on, or was killed and no run has followed it yet.
    """
    reader = DeadLetterReader(session.connection, pool=session.pool, envelopes=session.envelopes, clock=_CLOCK)
    past = PastRuns()
    for record in reader.audit():
        past.add(record)
    runs = past.runs()
    if session.output is Output.JSON:
        for run in runs:
            sys.stdout.write(to_json(asdict(run)) + "\n")
        return
    if not runs:
        say("nothing was replayed or discarded")
        return
    columns = (
        Column(name="started_at"),
        Column(name="by", may_be_cut=True, leave_out=2),
        Column(name="action"),
        Column(name="letters", is_number=True),
        Column(name="ending", may_be_cut=True),
        Column(name="selection", may_be_cut=True, leave_out=1),
    )
    rows = [
        (
            rfc3339(run.started_at // 1000 * 1000),
            printable(run.by),
            run.action.value,
            f"{run.letters:,}",
            printable(run.ending_text),
            printable(run.selection),
        )
        for run in runs
    ]
    print_table(columns, rows)
