"""A long outage: the engine refuses for minutes while thousands of requests wait; then it is back. On real parts."""

from __future__ import annotations

import json
import secrets
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from chaos.cluster import create_topics
from chaos.facts import Execution, RunError
from chaos.load import TOKEN_SECONDS
from chaos.reading import read_executions, read_letters, read_outcomes
from chaos.report import GROWTH_MB_MAX, growth_mb
from chaos.workers import Workers, now_ms
from forebay_sandbox.engine.physics import EnginePhysics
from forebay_sandbox.engine.process import running_engine
from forebay_sandbox.kafka.access import KafkaAccess
from forebay_sandbox.kafka.local import running_kafka
from forebay_schemas.contract.tiers import TIERS
from forebay_schemas.contract.topics import Pool

REQUESTS = 10_000
FULL_RATE_SECONDS_MAX = 10.0

_PARTITIONS = 6
_WORKERS = 2
_TOKENS = 10
_TTL_MS = 24 * 60 * 60 * 1000
_READY_SECONDS_MAX = 120.0
_FINISH_SECONDS_MAX = 900.0
_FULL_SHARE = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class OutageReport:
    """``seconds_to_full_rate``: from the engine's return until starts a second were as many as later on."""

    outage_seconds: float
    accepted: int
    outcomes: dict[str, int]
    dead_letters: int
    attempts_max: int
    seconds_to_full_rate: float
    peak_rss_mb: float
    rss_growth_mb: float
    folder: Path

    @property
    def broken_promises(self) -> list[str]:
        """In words; empty when all are kept."""
        broken = []
        if self.outcomes != {"completed": self.accepted}:
            broken.append(f"of {self.accepted} accepted not all completed: {self.outcomes}")
        if self.dead_letters:
            broken.append(f"{self.dead_letters} dead letters")
        if self.attempts_max > 1:
            broken.append(f"an attempt was charged: {self.attempts_max} counted")
        if self.seconds_to_full_rate > FULL_RATE_SECONDS_MAX:
            broken.append(f"the full rate came back after {self.seconds_to_full_rate:.1f} s")
        if self.rss_growth_mb > GROWTH_MB_MAX:
            broken.append(f"a worker's memory grew by {self.rss_growth_mb:.0f} MB")
        return broken

    def as_document(self) -> dict[str, Any]:
        """The JSON object."""
        completed = self.outcomes.get("completed", 0)
        return {
            "outage_seconds": self.outage_seconds,
            "accepted": self.accepted,
            "completed": completed,
            "lost": self.accepted - sum(self.outcomes.values()),
            "dead_letters": self.dead_letters,
            "seconds_to_full_rate": round(self.seconds_to_full_rate, 1),
            "peak_rss_mb": round(self.peak_rss_mb, 1),
            "rss_growth_mb": round(self.rss_growth_mb, 1),
            "broken_promises": self.broken_promises,
            "folder": str(self.folder),
        }


def run_outage(*, seconds: float, folder: Path | None = None) -> OutageReport:
    """Runs for the outage and two or three minutes more."""
    folder = folder or Path(tempfile.mkdtemp(prefix="forebay-outage-"))
    folder.mkdir(parents=True, exist_ok=True)
    engine_log = folder / "engine.jsonl"
    pool = Pool(f"outage-{secrets.token_hex(4)}")
    physics = EnginePhysics(a_seconds=TOKEN_SECONDS, b_seconds=0.0, c_seconds=0.0)
    with ExitStack() as stack:
        kafka = stack.enter_context(running_kafka(log_dir=folder))
        create_topics(kafka, pool, partitions=_PARTITIONS, replication=1)
        engine = stack.enter_context(running_engine(physics=physics, log_path=engine_log))
        engine.faults({"kind": "refuse"})
        settings = {"FOREBAY_POOL": pool.name, "FOREBAY_BACKEND_URL": engine.url, "FOREBAY_LIMIT_MAX": "48"}
        workers = Workers(folder=folder, settings=settings)
        stack.callback(workers.kill_all)
        lives = [workers.start(slot, bootstrap_servers=kafka.bootstrap_servers) for slot in range(1, _WORKERS + 1)]
        _wait_for(lambda: all(workers.is_ready(life) for life in lives), _READY_SECONDS_MAX, "workers that are ready")
        _submit(kafka, pool)
        _say(f"{REQUESTS} requests wait; the engine refuses for {seconds:.0f} s; logs are in {folder}")
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            workers.look()
            time.sleep(1.0)
        back_ms = now_ms()
        engine.faults()
        _say("the engine is back")
        _wait_for(
            lambda: (workers.look(), len(read_outcomes(kafka, pool)) >= REQUESTS)[1], _FINISH_SECONDS_MAX, "outcomes"
        )
        workers.end_all()
        executions = [each for each in read_executions(engine_log) if each.ran]
        first = {outcome.request_id: outcome for outcome in reversed(read_outcomes(kafka, pool))}
        samples = [[sample for sample in life.rss_mb if sample[0] <= back_ms] for life in lives]
        return OutageReport(
            outage_seconds=seconds,
            accepted=REQUESTS,
            outcomes=dict(Counter(outcome.status for outcome in first.values())),
            dead_letters=len(read_letters(kafka, pool)),
            attempts_max=max(outcome.attempt for outcome in first.values()),
            seconds_to_full_rate=seconds_to_full_rate(executions, back_ms),
            peak_rss_mb=max(mb for life in lives for _, mb in life.rss_mb),
            rss_growth_mb=max(growth_mb(each) for each in samples),
            folder=folder,
        )


def seconds_to_full_rate(executions: list[Execution], back_ms: int) -> float:
    """The full rate is the median of the starts per second while most of them were started."""
    per_second = Counter((each.started_ms - back_ms) // 1000 for each in executions)
    busy = sorted(per_second.values())[len(per_second) // 4 :]
    full = busy[len(busy) // 2]
    return float(min(second for second, count in per_second.items() if count >= _FULL_SHARE * full))


def _submit(kafka: KafkaAccess, pool: Pool) -> None:
    config = {**kafka.connection.properties, "bootstrap.servers": kafka.bootstrap_servers}
    producer = Producer({**config, "acks": "all", "enable.idempotence": True, "linger.ms": 20})
    payload = {"messages": [], "max_tokens": _TOKENS}
    for number in range(REQUESTS):
        request_id = f"outage-{number}"
        envelope = {"request_id": request_id, "biz_type": "chat_completion", "ttl_ms": _TTL_MS, "payload": payload}
        producer.produce(pool.requests(TIERS[number % len(TIERS)]), json.dumps(envelope).encode(), request_id.encode())
        producer.poll(0)
    if producer.flush(_READY_SECONDS_MAX):
        raise RunError("not all requests were accepted")


def _wait_for(done: Any, seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise RunError(f"not within {seconds:.0f} s: {what}")
        time.sleep(1.0)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - the command's progress
