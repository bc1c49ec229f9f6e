"""`forebay dead-letters replay`: dead letters back into their tier's requests."""

from __future__ import annotations

import getpass
import os
import socket
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import typer

from forebay_producer.cli_common import EXIT_INTERRUPTED, Output, Session, command, say, to_json
from forebay_producer.cli_dead_letters_selection import SelectionOptions
from forebay_producer.cli_submit import _Interruption as Interruption
from forebay_producer.cli_values import duration_seconds
from forebay_producer.dead_letters import SAMPLES_MAX, Letter, Refusal, plan_replay, was_replayed
from forebay_producer.dead_letters_reader import DeadLetterReader
from forebay_producer.dead_letters_replay import Replayer, Tally
from forebay_producer.dead_letters_selection import Selection
from forebay_producer.dead_letters_view import printable
from forebay_schemas.clock import SystemClock
from forebay_schemas.errors import ExitCode, ForebayError, UsageError
from forebay_schemas.reasons import REASONS_BY_CODE
from forebay_schemas.tiers import TTL_MS_MAX

_CLOCK: Final = SystemClock()


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    command(app, "replay")(replay)


@dataclass(slots=True)
class _Run:
    """What one run has met. ``planned``: how many go to each topic."""

    matched: int = 0
    already: int = 0
    planned: Counter[str] = field(default_factory=Counter)
    refused: Counter[Refusal] = field(default_factory=Counter)
    refused_ids: dict[Refusal, list[str]] = field(default_factory=dict)
    not_found: set[str] = field(default_factory=set)

    def concerns(self, letter: Letter, selection: Selection) -> bool:
        """Whether the letter is one of those asked for; takes note that it is there."""
        if not selection.matches(letter):
            return False
        self.not_found -= letter.is_called(selection.ids)
        self.matched += 1
        return True

    def refuse(self, letter: Letter, refusal: Refusal) -> None:
        self.refused[refusal] += 1
        samples = self.refused_ids.setdefault(refusal, [])
        if len(samples) < SAMPLES_MAX:
            samples.append(letter.name)

    def exit_code(self, *, sent: int) -> ExitCode:
        """``sent``: replayed by this run, or what would be."""
        good = sent + self.already
        if not good:
            return ExitCode.FAILED
        whole = sent == self.planned.total() and not self.refused and not self.not_found
        return ExitCode.OK if whole else ExitCode.PARTLY


def replay(
    session: Session,
    *,
    chosen: SelectionOptions,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without, only say what would be done.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Replay at most so many.")] = None,
    ttl: Annotated[
        str | None, typer.Option(help="Write this time to live (10m) into each replayed envelope. [default: its own]")
    ] = None,
) -> None:
    """Send dead letters to their tier's requests again; a dry run unless --yes.

    A replay is the original record with its attempts and its deadline started anew. What was replayed is written to the
    audit topic, and is not sent by a later run, nor by one after a kill; only what was being sent when a run was killed
    (100 at most) can be sent again, and workers skip it when they know its outcome. Do not start two runs at once.

    Exits 0 when all was replayed, by this run or before; 4 when some; 1 when nothing matched or nothing could be.
    """
    selection = chosen.selection(now_ms=_CLOCK.wall_ms())
    if selection.is_everything:
        raise UsageError("replay", "needs to be told which", fix="give --id ID, --reason CODE or another filter")
    ttl_ms = None if ttl is None else _ttl_ms(ttl)
    reader = DeadLetterReader(session.connection, pool=session.pool, envelopes=session.envelopes, clock=_CLOCK)
    handled = reader.handled()
    replayer = _replayer(session, reader, ttl_ms=ttl_ms) if yes else None
    run = _Run(not_found=set(selection.ids))
    failure: ForebayError | None = None
    with Interruption() as interruption:
        try:
            for letter in reader.letters():
                if interruption.came or run.planned.total() == limit or (replayer is not None and replayer.failure):
                    # It has not looked at all of them.
                    run.not_found.clear()
                    break
                if not run.concerns(letter, selection):
                    continue
                if was_replayed(letter, handled):
                    run.already += 1
                    continue
                plan = plan_replay(letter, pool=session.pool, now_ms=_CLOCK.wall_ms(), ttl_ms=ttl_ms)
                if isinstance(plan, Refusal):
                    run.refuse(letter, plan)
                    continue
                run.planned[plan.topic] += 1
                handled.add_request(plan.request_id, plan.replay_count)
                if replayer is not None:
                    replayer.send(plan)
        except ForebayError as error:
            failure = error
        if replayer is not None:
            replayer.settle()
            replayer.close()
            failure = failure or replayer.failure
    tally = None if replayer is None else replayer.tally
    _report(session, run, tally, selection=selection)
    if interruption.came:
        raise typer.Exit(EXIT_INTERRUPTED)
    sent = run.planned.total() if tally is None else tally.replayed
    if failure is not None:
        say(f"error: {failure}")
        did_some = tally is not None and tally.replayed + tally.unrecorded > 0
        partly = did_some and failure.exit_code is not ExitCode.UNREACHABLE
        raise typer.Exit(ExitCode.PARTLY if partly else failure.exit_code)
    raise typer.Exit(run.exit_code(sent=sent))


def _report(session: Session, run: _Run, tally: Tally | None, *, selection: Selection) -> None:
    if tally is not None:
        for one, refusal in tally.refused:
            run.refuse(one.letter, refusal)
    record: dict[str, Any] = {
        "dry_run": tally is None,
        "matched": run.matched,
        "topics": dict(run.planned),
        "replayed": 0 if tally is None else tally.replayed,
        "already_replayed": run.already,
        "unrecorded": 0 if tally is None else tally.unrecorded,
        "uncertain": 0 if tally is None else tally.uncertain,
        "refused": {
            refusal.code: {"count": count, "meaning": refusal.meaning, "sample_ids": run.refused_ids[refusal]}
            for refusal, count in run.refused.items()
        },
        "not_found": sorted(run.not_found),
    }
    if session.output is Output.JSON:
        sys.stdout.write(to_json(record) + "\n")
    else:
        sys.stdout.writelines(line + "\n" for line in _lines(record))
    sys.stdout.flush()
    if not run.matched:
        unknown = [reason for reason in selection.reason if reason not in REASONS_BY_CODE]
        known = f"; known reasons are {', '.join(REASONS_BY_CODE)}" if unknown else ""
        say(f"error: no dead letter matches {selection}{known}")
    elif tally is None and run.planned:
        say("dry run: nothing was sent; --yes does it")


def _lines(record: dict[str, Any]) -> list[str]:
    verb = "would be replayed" if record["dry_run"] else "sent"
    lines = [f"{count:,} {verb} to {topic}" for topic, count in record["topics"].items()]
    if not record["dry_run"]:
        lines.append(f"{record['replayed']:,} replayed")
    if record["already_replayed"]:
        lines.append(f"{record['already_replayed']:,} replayed before")
    if record["unrecorded"]:
        lines.append(f"{record['unrecorded']:,} replayed, but not recorded as such: the next run sends them again")
    if record["uncertain"]:
        lines.append(f"{record['uncertain']:,} not acknowledged: the next run sends them again")
    for code, refused in record["refused"].items():
        samples = " ".join(map(printable, refused["sample_ids"]))
        lines.append(f"{refused['count']:,} cannot be replayed, {code}: {refused['meaning']} ({samples})")
    lines += [f"no dead letter of {printable(name)}" for name in record["not_found"]]
    return lines


def _replayer(session: Session, reader: DeadLetterReader, *, ttl_ms: int | None) -> Replayer:
    return Replayer(
        session.connection,
        pool=session.pool,
        clock=_CLOCK,
        topic_id=reader.topic_id,
        by=f"{_user()}@{socket.gethostname()}",
        ttl_ms=ttl_ms,
        delivery_seconds=session.settings.delivery_timeout_seconds,
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container's user need not have a name.
        return f"uid-{os.getuid()}"


def _ttl_ms(text: str) -> int:
    ttl_ms = round(duration_seconds(text, field="--ttl") * 1000)
    if not 0 < ttl_ms <= TTL_MS_MAX:
        raise UsageError("--ttl", f"is {text!r}", fix="give 1ms to 7d")
    return ttl_ms
