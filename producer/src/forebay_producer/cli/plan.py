"""`forebay plan`: engines, workers, partitions and bounds for a load. Pure arithmetic: contacts no broker."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.text import Text

from forebay_producer.cli.common import Session, command, stdout_console, table, to_json
from forebay_producer.cli.values import rate_per_second
from forebay_producer.planning.demand import ALLOWED_SHARE, Demand, Load, Service
from forebay_producer.planning.plan import make_plan, shown_seconds
from forebay_producer.planning.result import Plan, TierPlan
from forebay_schemas.contract.calibration import read_calibration
from forebay_schemas.contract.envelope_problems import shown
from forebay_schemas.contract.tiers import TIERS, TTL_MS_MAX, Tier, TierTimes
from forebay_schemas.errors import UsageError
from forebay_schemas.runtime.durations import UNIT_SECONDS, duration_seconds
from forebay_schemas.runtime.output import Output
from forebay_schemas.runtime.terminal import printable

_PEAK: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)x(.+)")
_BYTES: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(b|kb|kib|mb|mib|)")
_UNIT_BYTES: Final = {"": 1, "b": 1, "kb": 1000, "kib": 1024, "mb": 1000**2, "mib": 1024**2}
_CV: Final = 1.0
_CV_MAX: Final = 100.0
_RATE_MIN: Final = 1 / 86_400.0
_RATE_MAX: Final = 1e6
_PEAK_FACTOR_MAX: Final = 1000.0
_SERVICE_SECONDS_MIN: Final = 1e-4
_COUNT_MAX: Final = 10_000
_LIMIT_MAX: Final = 100_000
_DEADLINE_SECONDS_MIN: Final = 0.001
_BYTES_MAX: Final = 1024**3
"""Bounds of plausible loads; beyond them figures no longer fit into a table."""


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    command(app, "plan")(plan)


def plan(
    session: Session,
    *,
    rate: Annotated[list[str], typer.Option(help="A tier's mean rate over a day: high=5, mid=300/m, low=200000/d.")],
    peak: Annotated[
        list[str] | None,
        typer.Option(help="A tier's daily peak, as a multiple of its mean and a duration: high=4x15m."),
    ] = None,
    deadline: Annotated[
        list[str] | None, typer.Option(help="A tier's deadline; FOREBAY_TIER_TTL_MS unless given: mid=1m.")
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="An engine's capacity: a file of forebay-worker calibrate --write-json.")
    ] = None,
    service_seconds: Annotated[
        float | None, typer.Option(help="Instead of a calibration: the service time at the limit.")
    ] = None,
    service_cv: Annotated[
        float | None, typer.Option(help="Its coefficient of variation. [default: the calibration's, or 1]")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="With --service-seconds: requests in flight at an engine.")] = None,
    engines: Annotated[int | None, typer.Option(help="Number of engines. [default: as many as needed]")] = None,
    partitions: Annotated[
        int | None, typer.Option(help="Partitions of each request topic. [default: as many as needed]")
    ] = None,
    drain: Annotated[
        str | None, typer.Option(help="Time limit for draining low after its peak: 8h, overnight.")
    ] = None,
    request_bytes: Annotated[str, typer.Option(help="Size of a request's body: 4000, 16KiB.")] = "4000",
    result_bytes: Annotated[str, typer.Option(help="Size of a result's body.")] = "2000",
    replication: Annotated[int, typer.Option(help="Replicas of the topics.")] = 3,
) -> None:
    """Compute engines, workers, partitions and bounds from rates and deadlines; the waits; the first bottleneck.

    Exits 1 when the deadlines are not kept with the given engines.
    """
    made = make_plan(
        Demand(
            loads=_loads(rate, peak or [], deadline or [], session.settings.tier_times()),
            service=_service(calibration, seconds=service_seconds, cv=service_cv, limit=limit),
            engines=_count(engines, field="--engines"),
            partitions=_count(partitions, field="--partitions"),
            drain_seconds=None if drain is None else _days(drain, field="--drain"),
            request_bytes=_bytes(request_bytes, field="--request-bytes"),
            result_bytes=_bytes(result_bytes, field="--result-bytes"),
            replication=_count(replication, field="--replication") or 1,
        )
    )
    if session.output is Output.JSON:
        sys.stdout.write(to_json(made) + "\n")
    else:
        _print(made)
    sys.stdout.flush()
    if not all(tier.is_kept for tier in made.tiers.values()):
        raise typer.Exit(1)


def _loads(rates: Sequence[str], peaks: Sequence[str], deadlines: Sequence[str], times: TierTimes) -> dict[Tier, Load]:
    by_rate = _by_tier(rates, field="--rate")
    by_peak = _by_tier(peaks, field="--peak")
    by_deadline = _by_tier(deadlines, field="--deadline")
    for field, given in (("--peak", by_peak), ("--deadline", by_deadline)):
        for tier in given.keys() - by_rate.keys():
            raise UsageError(field, f"is given for {tier}, which has no rate", fix=f"add --rate {tier}=...")
    loads = {}
    for tier in (one for one in TIERS if one in by_rate):
        factor, seconds = _peak(by_peak[tier]) if tier in by_peak else (1.0, 0.0)
        loads[tier] = Load(
            per_second=_rate(by_rate[tier]),
            peak_factor=factor,
            peak_seconds=seconds,
            deadline_seconds=_days(by_deadline[tier], field="--deadline")
            if tier in by_deadline
            else times.ttl_seconds(tier),
            tolerated_seconds=None if tier in by_deadline or _is_usual(tier, times) else times.wait_seconds(tier),
        )
    return loads


def _is_usual(tier: Tier, times: TierTimes) -> bool:
    """Whether the tier tolerates the share of its deadline that it would without a setting."""
    return times.wait_ms[tier] == int(ALLOWED_SHARE * times.ttl_ms[tier])


def _days(text: str, *, field: str) -> float:
    seconds = duration_seconds(text, field=field)
    if not _DEADLINE_SECONDS_MIN <= seconds <= TTL_MS_MAX / 1000:
        fix = f"give 1ms to {TTL_MS_MAX // 86_400_000}d"
        raise UsageError(field, f"is {shown(text)}", fix=fix)
    return seconds


def _by_tier(given: Sequence[str], *, field: str) -> dict[Tier, str]:
    found: dict[Tier, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or name not in set(TIERS):
            raise UsageError(field, f"is {text!r}", fix="give high=..., mid=... or low=...")
        if Tier(name) in found:
            raise UsageError(field, f"is given twice for {name}", fix="give it once")
        found[Tier(name)] = value
    return found


def _rate(text: str) -> float:
    per_second = rate_per_second(text)
    fix = "give requests a second, or with /m, /h or /d: 5, 200000/d"
    if per_second is None:
        raise UsageError("--rate", f"is {shown(text)}", fix=fix)
    # As good as 1/d after the division.
    if not 0.999 * _RATE_MIN <= per_second <= _RATE_MAX:
        raise UsageError("--rate", f"is {shown(text)}", fix=f"{fix}; from 1/d to {_RATE_MAX:,.0f} a second")
    return per_second


def _peak(text: str) -> tuple[float, float]:
    match = _PEAK.fullmatch(text.strip().lower())
    if match is None:
        raise UsageError("--peak", f"is {shown(text)}", fix="give how many times the mean, x, and for how long: 4x15m")
    if not 1 <= float(match[1]) <= _PEAK_FACTOR_MAX:
        fix = f"a peak is at least once the mean, and at most {_PEAK_FACTOR_MAX:,.0f} times: 4x15m"
        raise UsageError("--peak", f"is {shown(text)}", fix=fix)
    seconds = duration_seconds(match[2], field="--peak")
    if seconds > UNIT_SECONDS["d"]:
        raise UsageError("--peak", f"is {shown(text)}", fix="give at most a day: 4x15m")
    return float(match[1]), seconds


def _service(path: Path | None, *, seconds: float | None, cv: float | None, limit: int | None) -> Service:
    if (path is None) == (seconds is None):
        problem = "and --service-seconds are both missing" if path is None else "and --service-seconds are both given"
        raise UsageError("--calibration", problem, fix="give one of them: the plan needs an engine's capacity")
    if cv is not None and not 0 <= cv <= _CV_MAX:
        raise UsageError("--service-cv", f"is {cv}", fix="give standard deviation over mean, 0 to 100")
    if path is not None:
        if limit is not None:
            raise UsageError("--limit", "goes with --service-seconds", fix="leave it out: the calibration says it")
        return _calibrated(path, cv=cv)
    assert seconds is not None
    if not _SERVICE_SECONDS_MIN <= seconds <= UNIT_SECONDS["d"]:
        raise UsageError("--service-seconds", f"is {seconds}", fix="give seconds from 0.0001 to 86400, a day")
    if limit is None:
        raise UsageError("--limit", "is missing", fix="say how many an engine has in flight while a request takes that")
    if not 1 <= limit <= _LIMIT_MAX:
        raise UsageError("--limit", f"is {shown(limit)}", fix=f"give 1 to {_LIMIT_MAX}")
    return Service(seconds=seconds, limit_requests=limit, cv=_CV if cv is None else cv)


def _calibrated(path: Path, *, cv: float | None) -> Service:
    field = "--calibration"
    try:
        text = path.read_bytes()
    except OSError as error:
        raise UsageError(field, f"{path}: {error.strerror}", fix="name a file of calibrate --write-json") from None
    found = read_calibration(text, field=field).recommended
    if found is None:
        raise UsageError(field, f"{path} recommends nothing", fix="calibrate again, with more time or less load")
    is_sane = _SERVICE_SECONDS_MIN <= found.service_seconds <= UNIT_SECONDS["d"]
    if not is_sane or not 1 <= found.limit_requests <= _LIMIT_MAX or not 0 <= found.service_cv <= _CV_MAX:
        problem = f"{path} recommends {found.limit_requests} in flight at {found.service_seconds:g} s each"
        raise UsageError(field, problem, fix="calibrate again: no engine does that")
    return Service(
        seconds=found.service_seconds,
        limit_requests=found.limit_requests,
        cv=found.service_cv if cv is None else cv,
    )


def _count(value: int | None, *, field: str) -> int | None:
    if value is not None and not 1 <= value <= _COUNT_MAX:
        raise UsageError(field, f"is {shown(value)}", fix=f"give 1 to {_COUNT_MAX}")
    return value


def _bytes(text: str, *, field: str) -> int:
    match = _BYTES.fullmatch(text.strip().lower())
    count = float(match[1]) * _UNIT_BYTES[match[2]] if match else math.inf
    if count > _BYTES_MAX:
        raise UsageError(
            field, f"is {shown(text)}", fix="give bytes, or a number with KiB or MiB: 4000, 16KiB; 1 GiB at most"
        )
    return round(count)


def _print(made: Plan) -> None:
    def line(text: str) -> None:
        # Lines of a calibration's file are among them.
        console.print(Text(printable(text)))

    console = stdout_console()
    needed = "no number would do" if made.engines_needed is None else f"{made.engines_needed} needed"
    loss = "yes" if made.survives_loss_of_one_engine else "no"
    for name, value in (
        ("engines", f"{made.engines} ({needed}), {made.engine_per_second:.2f} requests/s each"),
        ("busy", f"{made.busy_share_peak:.0%} at the peak, {made.busy_share_day:.0%} over the day"),
        ("one engine lost", f"deadlines are kept: {loss}"),
        ("workers", f"{made.workers}, {made.workers_max} at most; more than partitions would get no work"),
        ("partitions", f"{made.partitions} for each request topic"),
    ):
        line(f"{name:<16} {value}")
    console.print()
    names = ("tier", "peak/s", "may wait", "P95 wait", "longest", "backlog", "drained", "queue", "kept")
    rows = table(*names, right=frozenset(names[1:-1]))
    for tier, found in made.tiers.items():
        rows.add_row(tier, *_cells(found))
    console.print(rows)
    console.print()
    kafka = made.kafka
    for name, value in (
        ("Kafka", f"{_size(kafka.disk_bytes)} of disk, all replicas"),
        (
            "at the peak",
            f"{_size(kafka.in_bytes_per_second)}/s in, {_size(kafka.between_bytes_per_second)}/s between brokers, "
            f"{_size(kafka.out_bytes_per_second)}/s out",
        ),
        (
            "retention",
            f"{shown_seconds(kafka.retention_needed_seconds)} needed; topics keep requests for "
            f"{shown_seconds(kafka.retention_seconds)}",
        ),
    ):
        line(f"{name:<16} {value}")
    if made.breaks:
        console.print()
        line("What breaks first:")
        for growth in made.breaks:
            line(f"  {growth.factor:.2g} times the load: {growth.what}")
    console.print()
    line("It assumes:")
    for each in made.assumes:
        line(f"  {each}")
    for each in made.warnings:
        line(f"warning: {each}")


def _cells(found: TierPlan) -> tuple[str, ...]:
    return (
        f"{found.peak_per_second:.3g}",
        shown_seconds(found.allowed_wait_seconds),
        "-" if found.wait_p95_seconds is None else shown_seconds(found.wait_p95_seconds),
        "for ever" if found.flood_wait_seconds is None else shown_seconds(found.flood_wait_seconds),
        f"{found.backlog_requests:,.0f}",
        "never" if found.drained_seconds is None else shown_seconds(found.drained_seconds),
        "-" if found.queue_requests is None else f"{found.queue_requests:,}",
        "yes" if found.is_kept else "NO",
    )


def _size(count: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"
