"""`forebay dead-letters replay`: sends dead letters to their tier's request topic again."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from forebay_producer.cli.common import Session, command, say, to_json
from forebay_producer.cli.dead_letters.attempt import Attempt
from forebay_producer.cli.dead_letters.selection import SelectionOptions, known_reasons
from forebay_producer.cli.progress import Progress, ScanProgress
from forebay_producer.cli.values import rate_per_second
from forebay_producer.client.open_tracing import make_tracing
from forebay_producer.client.operator_identity import user_and_host
from forebay_producer.client.results_reader import ResultsReader
from forebay_producer.cluster.backlog import BacklogReader
from forebay_producer.dead_letters.audit import Action, Ending, RunStarted
from forebay_producer.dead_letters.reader import DeadLetterReader
from forebay_producer.dead_letters.runs.canary import Canary
from forebay_producer.dead_letters.runs.replay_job import Planner, ReplayJob, Tally
from forebay_producer.dead_letters.runs.replayer import Replayer
from forebay_producer.dead_letters.selection import Selection
from forebay_schemas.clock import SystemClock
from forebay_schemas.contract.reasons import REASONS_BY_CODE
from forebay_schemas.contract.tiers import TTL_MS_MAX
from forebay_schemas.errors import ExitCode, UsageError
from forebay_schemas.runtime.durations import duration_seconds
from forebay_schemas.runtime.output import Output
from forebay_schemas.runtime.terminal import printable

RATE_PER_SECOND_MAX: Final = 10_000.0

_CLOCK: Final = SystemClock()


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    command(app, "replay")(replay)


def replay(
    session: Session,
    *,
    chosen: SelectionOptions,
    yes: Annotated[bool, typer.Option("--yes", help="Replay. Without it, a dry run.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Replay at most this many.")] = None,
    rate: Annotated[str, typer.Option(help="Maximum rate: 20/s, 600/m; slower while tiers fill.")] = "100/s",
    canary: Annotated[
        int, typer.Option(min=0, help="Send this many first, and the rest once all of them have completed.")
    ] = 0,
    ttl: Annotated[
        str | None,
        typer.Option(
            help="Write this time to live (10m) into each replayed envelope. [default: its own or its tier's]"
        ),
    ] = None,
    replays_max: Annotated[
        int, typer.Option(min=1, help="Refuse letters that were replayed this often and died again.")
    ] = 3,
) -> None:
    """Send dead letters to their tier's request topic again; a dry run unless --yes.

    A replay is the original record with its attempts and its deadline reset. Each letter is sent exactly once, even if
    runs are interrupted or killed: start the command again, and it continues. A run waits while another run is active,
    and ignores letters that died after its own start. The audit topic records who replayed what.

    A run slows down or pauses while requests wait too long in the tiers that it sends to.

    Exits 0 when all letters were replayed, or were replayed or discarded before; 4 when some were; 1 when none matched,
    none could be replayed or no canary completed; 130 when interrupted.
    """
    selection = chosen.selection(now_ms=_CLOCK.wall_ms())
    if selection.is_everything:
        raise UsageError("replay", "needs a selection", fix="give --id ID, --reason CODE or another filter")
    asked = _Asked(
        selection=selection,
        limit=limit,
        rate_per_second=_rate_per_second(rate),
        canary=canary,
        ttl_ms=None if ttl is None else _ttl_ms(ttl),
        replays_max=replays_max,
    )
    reader = DeadLetterReader(session.connection, pool=session.pool, envelopes=session.envelopes, clock=_CLOCK)
    if yes:
        _replay(session, reader, asked)
    else:
        _dry_run(session, reader, asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The options."""

    selection: Selection
    limit: int | None
    rate_per_second: float
    canary: int
    ttl_ms: int | None
    replays_max: int


def _dry_run(session: Session, reader: DeadLetterReader, asked: _Asked) -> None:
    planner = _planner(session, reader, asked, handled=reader.handled())
    dying_again: Counter[str] = Counter()
    with ScanProgress(live=sys.stderr.isatty()) as progress:
        for letter in reader.letters(since_ms=asked.selection.since, tell=progress.show):
            if planner.is_full:
                # It has not looked at all of them.
                planner.tally.not_found.clear()
                break
            plan = planner.plan(letter)
            if plan is not None and (reason := REASONS_BY_CODE.get(letter.reason or "")) and not reason.retryable:
                dying_again[reason.code] += 1
    tally = planner.tally
    _report(session, tally, asked=asked, canary=None, dry_run=True)
    for code, count in dying_again.most_common():
        say(f"{count:,} died of {code}, of which trying again alone does not help: correct its cause first")
    if tally.planned:
        say("dry run: nothing was sent; --yes does it")
    raise typer.Exit(_exit_code(tally, sent=tally.planned.total()))


def _replay(session: Session, reader: DeadLetterReader, asked: _Asked) -> None:
    attempt = Attempt()
    job: ReplayJob | None = None
    by = user_and_host()
    common: dict[str, Any] = {"pool": session.pool, "clock": _CLOCK}
    # Letters that die while the run waits for the lease, or die again after their replay, are not part of it.
    ends = reader.ends()
    with ExitStack() as stack:
        stack.enter_context(attempt)
        progress = Progress(live=sys.stderr.isatty())
        stack.callback(progress.stop)
        opening = _opening(reader, asked, by=by)
        run = stack.enter_context(closing(attempt.open_run(session, clock=_CLOCK, opening=opening, tell=progress.note)))
        tracing = stack.enter_context(closing(make_tracing(session.settings.traces, service="forebay")))
        replayer = Replayer(
            session.connection,
            **common,
            run=run,
            topic_id=reader.topic_id,
            by=by,
            ttl_ms=asked.ttl_ms,
            wait_seconds=session.settings.delivery_timeout_seconds,
            tracing=tracing,
        )
        backlog = stack.enter_context(BacklogReader(session.connection, **common))
        results = None
        if asked.canary:
            results = stack.enter_context(ResultsReader(session.connection, **common, since_ms=None))
        planner = _planner(session, reader, asked, handled=run.handled)
        with attempt.work():
            run.enter()
            job = ReplayJob(
                run=run,
                replayer=replayer,
                planner=planner,
                backlog=backlog,
                results=results,
                canary=asked.canary,
                rate_per_second=asked.rate_per_second,
                clock=_CLOCK,
                interrupted=attempt.interrupted,
                show=progress.show,
                tell=progress.note,
            )
            job.replay(reader.letters(since_ms=asked.selection.since, ends=ends))
        canary = job.canary if job is not None else Canary()
        if not replayer.in_doubt:
            ending, why = _ending(attempt, canary)
            run.end(ending, tally=planner.tally.counts(), error=why)
    if not attempt.is_whole:
        planner.tally.not_found.clear()
    _report(session, planner.tally, asked=asked, canary=canary, dry_run=False, whole=attempt.is_whole)
    attempt.exit_if_cut_short(done=planner.tally.replayed)
    if canary.failed:
        say(f"error: {_canary_words(canary)}; nothing more was sent")
        raise typer.Exit(ExitCode.PARTLY if canary.completed else ExitCode.FAILED)
    raise typer.Exit(_exit_code(planner.tally, sent=planner.tally.replayed))


def _ending(attempt: Attempt, canary: Canary) -> tuple[Ending, str | None]:
    if attempt.is_whole and canary.failed:
        return Ending.CANARY_FAILED, _canary_words(canary)
    return attempt.ending, None if attempt.failure is None else str(attempt.failure)


def _canary_words(canary: Canary) -> str:
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in canary.failed.most_common())
    return f"of {canary.sent:,} canaries {canary.failed.total():,} did not complete: {reasons}"


def _exit_code(tally: Tally, *, sent: int) -> ExitCode:
    """``sent``: replayed by this run, or what would be."""
    if not sent + tally.already + tally.discarded:
        return ExitCode.FAILED
    whole = sent == tally.planned.total() and not tally.refused and not tally.not_found
    return ExitCode.OK if whole else ExitCode.PARTLY


def _planner(session: Session, reader: DeadLetterReader, asked: _Asked, *, handled: Any) -> Planner:
    return Planner(
        selection=asked.selection,
        pool=session.pool,
        clock=_CLOCK,
        topic_id=reader.topic_id,
        handled=handled,
        ttl_ms=asked.ttl_ms,
        replays_max=asked.replays_max,
        limit=asked.limit,
        tier_times=session.settings.tier_times(),
    )


def _opening(reader: DeadLetterReader, asked: _Asked, *, by: str) -> RunStarted:
    return RunStarted(
        at=0,
        run_id="",
        by=by,
        does=Action.REPLAY,
        dead_letter_topic_id=reader.topic_id,
        selection=str(asked.selection),
        ttl_ms=asked.ttl_ms,
        rate_per_second=asked.rate_per_second,
        limit=asked.limit,
        canary=asked.canary or None,
    )


def _report(
    session: Session, tally: Tally, *, asked: _Asked, canary: Canary | None, dry_run: bool, whole: bool = True
) -> None:
    """``whole``: it was neither interrupted nor failed, so that letters it did not meet do not exist."""
    record: dict[str, Any] = {
        "dry_run": dry_run,
        "matched": tally.matched,
        "topics": dict(tally.planned),
        "rate_per_second": asked.rate_per_second,
        "seconds_at_least": round(tally.planned.total() / asked.rate_per_second, 1),
        "replayed": tally.replayed,
        "already_replayed": tally.already,
        "discarded": tally.discarded,
        "refused": {
            refusal.code: {"count": count, "meaning": refusal.meaning, "sample_ids": tally.refused_ids[refusal]}
            for refusal, count in tally.refused.items()
        },
        "not_found": sorted(tally.not_found),
        "canary": None
        if canary is None or not canary.sent
        else {"sent": canary.sent, "completed": canary.completed, "failed": dict(canary.failed)},
    }
    if session.output is Output.JSON:
        sys.stdout.write(to_json(record) + "\n")
    else:
        sys.stdout.writelines(printable(line) + "\n" for line in _lines(record))
    sys.stdout.flush()
    if whole and not tally.matched:
        say(f"error: no dead letter matches {asked.selection}{known_reasons(asked.selection)}")


def _lines(record: dict[str, Any]) -> list[str]:
    if record["dry_run"]:
        lines = [f"{count:,} would be replayed to {topic}" for topic, count in record["topics"].items()]
        if lines:
            lines.append(f"{record['seconds_at_least']:,.1f} s at least, at {record['rate_per_second']:g}/s")
    else:
        lines = [f"{record['replayed']:,} replayed"]
    if record["canary"]:
        lines.append(f"{record['canary']['completed']:,} of {record['canary']['sent']:,} canaries completed")
    if record["already_replayed"]:
        lines.append(f"{record['already_replayed']:,} replayed before")
    if record["discarded"]:
        lines.append(f"{record['discarded']:,} discarded before")
    for code, refused in record["refused"].items():
        samples = " ".join(map(printable, refused["sample_ids"]))
        lines.append(f"{refused['count']:,} cannot be replayed, {code}: {refused['meaning']} ({samples})")
    lines += [f"no dead letter of {printable(name)}" for name in record["not_found"]]
    return lines


def _ttl_ms(text: str) -> int:
    ttl_ms = round(duration_seconds(text, field="--ttl") * 1000)
    if not 0 < ttl_ms <= TTL_MS_MAX:
        raise UsageError("--ttl", f"is {text!r}", fix="give 1ms to 7d")
    return ttl_ms


def _rate_per_second(text: str) -> float:
    per_second = rate_per_second(text)
    if per_second is None or not 0 < per_second <= RATE_PER_SECOND_MAX:
        raise UsageError(
            "--rate",
            f"is {text!r}",
            fix=f"give a number a second, a minute or an hour: 20/s or 600/m; at most {RATE_PER_SECOND_MAX:,.0f}/s",
        )
    return per_second
