"""Speed and memory of `forebay dead-letters list`, beside a loop that only counts. Runs children.

Each is a process of its own and is watched to its end. Its start-up is taken off: the time that it takes without a
letter. Then the audit topic gets records of replays, and the list is read once more: that costs memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import msgspec

from benchmarks.cluster import PARTITIONS, Cluster
from benchmarks.programs import BenchError, Program, Usage, counting_program, list_program
from benchmarks.records import FAR_EXPIRE_AT, envelopes
from forebay_producer.dead_letters.audit import ReplayAudit, encode_audit
from forebay_schemas.contract import headers as h
from forebay_schemas.contract.reasons import Reason
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.contract.topics import Pool

AUDIT_RECORDS = 200_000

_REASONS = (Reason.BACKEND_ERROR.code, Reason.BACKEND_REJECTED.code, Reason.BACKEND_TIMEOUT.code)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """One pass over all letters, without the start-up of the process; ``most_mb``: resident at most, in 10^6 bytes."""

    per_second: float
    cpu_microseconds_per_letter: float
    most_mb: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterScans:
    """``raw`` and ``listed``: in turns, with an empty audit topic. ``audited``: with `AUDIT_RECORDS` in it."""

    letters: int
    raw: list[Scan]
    listed: list[Scan]
    audited: Scan

    @property
    def raw_per_second(self) -> float:
        return median(scan.per_second for scan in self.raw)

    @property
    def per_second(self) -> float:
        return median(scan.per_second for scan in self.listed)

    @property
    def ratio(self) -> float:
        return self.per_second / self.raw_per_second

    @property
    def most_mb(self) -> float:
        return max(scan.most_mb for scan in (*self.listed, self.audited))


def measure_dead_letters(
    cluster: Cluster, *, pool_name: str, letters: int, rounds: int, logs: Path, say: Callable[[str], None]
) -> DeadLetterScans:
    """Fills a pool's dead letters and lets both sides read them. Raises ``BenchError`` for a letter not counted."""
    pool = cluster.make_pool(pool_name)
    kafka = cluster.kafka
    listing = partial(list_program, kafka, pool=pool.name, logs=logs)
    # Each once before: what is compiled and cached then is not start-up of every time.
    started = [_run(listing()) for _ in range(2)][-1]
    raw_started = [_run(counting_program(kafka, source=pool.dead_letter, records=0, logs=logs)) for _ in range(2)][-1]
    say(f"dead letters: writing {letters:,}, each of 800 bytes and 12 headers")
    cluster.fill(pool.dead_letter, envelopes(letters), headers=partial(_headers, pool))
    raw, listed = [], []
    for number in range(1, rounds + 1):
        raw.append(
            _scan(
                _run(counting_program(kafka, source=pool.dead_letter, records=letters, logs=logs)), raw_started, letters
            )
        )
        say(f"dead letters: raw loop {number} of {rounds}: {raw[-1].per_second:,.0f}/s")
        listed.append(_scan(_run(listing(), letters=letters), started, letters))
        say(f"dead letters: list {number} of {rounds}: {listed[-1].per_second:,.0f}/s")
    say(f"dead letters: writing {AUDIT_RECORDS:,} audit records")
    cluster.fill(pool.audit, _audit_records(pool, topic_id=cluster.topic_id(pool.dead_letter)))
    audited = _scan(_run(listing(), letters=letters), started, letters)
    say(f"dead letters: list, {AUDIT_RECORDS:,} audit records: {audited.per_second:,.0f}/s, {audited.most_mb:.0f} MB")
    return DeadLetterScans(letters=letters, raw=raw, listed=listed, audited=audited)


def _run(starting: AbstractContextManager[Program], *, letters: int = 0) -> Usage:
    with starting as program:
        usage = program.watch_to_end()
        if letters and (counted := _counted(program.lines())) != letters:
            raise BenchError(f"{counted} of {letters} dead letters were listed")
    return usage


def _counted(lines: list[str]) -> int:
    groups = [msgspec.json.decode(line) for line in lines if line.startswith("{")]
    return sum(group["open"] + group["replayed"] for group in groups)


def _scan(usage: Usage, started: Usage, letters: int) -> Scan:
    seconds = usage.seconds - started.seconds
    if seconds <= 0:
        raise BenchError(f"{letters:,} letters took no longer than the start-up of {started.seconds:.2f} s: take more")
    return Scan(
        per_second=letters / seconds,
        cpu_microseconds_per_letter=(usage.cpu_seconds - started.cpu_seconds) / letters * 1e6,
        most_mb=usage.most_bytes / 1e6,
    )


def _headers(pool: Pool, number: int) -> list[tuple[str, str | bytes | None]]:
    """The headers that a worker writes, and one that the request had."""
    reason = _REASONS[number % len(_REASONS)]
    texts = {
        h.TRACEPARENT: f"00-0af7651916cd43dd8448eb211c80319c-{number:016x}-01",
        h.REASON: reason,
        h.ATTEMPT: "4",
        h.FIRST_ENQUEUED_AT: str(FAR_EXPIRE_AT),
        h.WORKER: "worker-7d9c5b6f4-x2x5k",
        h.DLT_ORIGINAL_TOPIC: pool.requests(Tier.MID),
        h.DLT_ORIGINAL_PARTITION: str(number % PARTITIONS),
        h.DLT_ORIGINAL_OFFSET: str(number // PARTITIONS),
        h.DLT_ORIGINAL_TIMESTAMP: str(FAR_EXPIRE_AT),
        h.DLT_ORIGINAL_CONSUMER_GROUP: pool.group(Tier.MID),
        h.DLT_EXCEPTION_FQCN: f"forebay.{reason}",
        h.DLT_EXCEPTION_MESSAGE: f"HTTP 500: CUDA out of memory, {number % 9973} MiB were asked for on device 0",
    }
    return [(name, text.encode()) for name, text in texts.items()]


def _audit_records(pool: Pool, *, topic_id: str) -> Iterator[tuple[str, bytes]]:
    for number in range(AUDIT_RECORDS):
        request_id = f"{number:032x}"
        record = ReplayAudit(
            at=FAR_EXPIRE_AT,
            by="bench@bench",
            dead_letter_topic_id=topic_id,
            partition=number % PARTITIONS,
            offset=number // PARTITIONS,
            request_id=request_id,
            replay_count=1,
            reason=_REASONS[0],
            topic=pool.requests(Tier.MID),
            to_partition=0,
            to_offset=number,
            ttl_ms=None,
        )
        yield request_id, encode_audit(record)
