"""A rolling restart under load: each worker in turn gets SIGTERM, another takes its place at once. On real parts."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from chaos.cluster import create_topics
from chaos.facts import Facts, Life, RunError
from chaos.ledger import Ledger, make_ledger
from chaos.load import TOKEN_SECONDS, Load, Mix
from chaos.reading import read_executions, read_letters, read_outcomes, read_records
from chaos.stalls import longest_stillness
from chaos.workers import Workers, now_ms
from forebay_sandbox.engine.physics import EnginePhysics
from forebay_sandbox.engine.process import running_engine
from forebay_sandbox.kafka.access import KafkaAccess
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.contract.topics import Pool

_WORKERS = 4
_PARTITIONS = 8
_SETTLE_SECONDS = 3.0
_READY_SECONDS_MAX = 90.0
_END_SECONDS_MAX = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RollingReport:
    """``run_twice``: ids with more than one execution. ``high_still_seconds``: the longest time in which high-tier
    requests waited and none was started, from the first restart on."""

    ledger: Ledger
    run_twice: list[str]
    high_still_seconds: float
    exit_codes: list[int | None]
    restart_seconds: float


def roll(kafka: KafkaAccess, *, folder: Path, seed: int, per_second: float, work_seconds_max: float) -> RollingReport:
    """Restarts four workers one after the other while requests of 0.2 s to ``work_seconds_max`` come."""
    pool = Pool(f"rolling-{secrets.token_hex(4)}")
    create_topics(kafka, pool, partitions=_PARTITIONS, replication=1)
    mix = Mix(per_second=per_second, work_seconds=(0.2, work_seconds_max), ttl_ms={900_000: 1})
    engine_log = folder / "engine.jsonl"
    with ExitStack() as stack:
        physics = EnginePhysics(a_seconds=TOKEN_SECONDS, b_seconds=0.0, c_seconds=0.0)
        engine = stack.enter_context(running_engine(physics=physics, log_path=engine_log))
        workers = Workers(
            folder=folder,
            settings={
                "FOREBAY_POOL": pool.name,
                "FOREBAY_BACKEND_URL": engine.url,
                # No limit comes into it: what stands still stands still because of the restart.
                "FOREBAY_LIMIT_MAX": "200",
                "FOREBAY_DRAIN_SECONDS": str(work_seconds_max + 15),
            },
        )
        stack.callback(workers.kill_all)
        _await_ready(workers, [workers.start(slot, bootstrap_servers=kafka.bootstrap_servers) for slot in range(1, 5)])
        with Load(kafka, pool, mix, seed=seed) as load:
            time.sleep(_SETTLE_SECONDS)
            began_ms = now_ms()
            for slot in range(1, _WORKERS + 1):
                old = workers.of_slot(slot)
                assert old is not None
                workers.terminate(old)
                _await_ready(workers, [workers.start(slot, bootstrap_servers=kafka.bootstrap_servers)])
                time.sleep(_SETTLE_SECONDS)
        ended_ms = now_ms()
        _await_outcomes(kafka, pool, load.accepted)
        workers.end_all()
        records = read_records(kafka, pool)
        facts = Facts(
            accepted=frozenset(load.accepted),
            undecodable=frozenset(load.junk),
            records=tuple(records),
            outcomes=tuple(read_outcomes(kafka, pool)),
            letters=tuple(read_letters(kafka, pool)),
            executions=tuple(read_executions(engine_log)),
            lives=tuple(workers.lives),
            windows=(),
            commits={},
            end_ms=now_ms(),
        )
    counts = Counter(execution.request_id for execution in facts.executions)
    high = {record.request_id: record.due_ms for record in records if record.topic == pool.requests(Tier.HIGH)}
    due = [at for at in high.values() if began_ms <= at <= ended_ms]
    starts = [each.started_ms for each in facts.executions if began_ms <= high.get(each.request_id, 0) <= ended_ms]
    return RollingReport(
        ledger=make_ledger(facts),
        run_twice=[request_id for request_id, count in counts.items() if count > 1],
        high_still_seconds=longest_stillness(due_ms=due, started_ms=starts),
        exit_codes=[life.exit_code for life in workers.lives],
        restart_seconds=(ended_ms - began_ms) / 1000,
    )


def _await_ready(workers: Workers, lives: list[Life]) -> None:
    deadline = time.monotonic() + _READY_SECONDS_MAX
    while not all(workers.is_ready(life) for life in lives):
        if time.monotonic() > deadline:
            raise RunError(f"not ready in time: {', '.join(life.worker for life in lives)}")
        time.sleep(0.1)


def _await_outcomes(kafka: KafkaAccess, pool: Pool, accepted: set[str]) -> None:
    deadline = time.monotonic() + _END_SECONDS_MAX
    while accepted - {outcome.request_id for outcome in read_outcomes(kafka, pool)} and time.monotonic() < deadline:
        time.sleep(1.0)
