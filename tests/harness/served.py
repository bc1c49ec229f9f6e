"""An engine, a pool and a worker of it, running together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from forebay_sandbox.engine.process import EngineProcess, running_engine
from forebay_sandbox.kafka.access import KafkaAccess
from harness.live_pool import LivePool
from harness.worker_process import WorkerProcess
from harness.workers import running_workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """``engine_log`` is the engine's own list of what it ran."""

    engine: EngineProcess
    engine_log: Path
    pool: LivePool
    worker: WorkerProcess


@contextmanager
def serving(kafka: KafkaAccess, *, folder: Path) -> Iterator[Served]:
    """A worker with a limit of 4, for which a failure is final, on an engine with the default physics.

    Logs lie in ``folder``.
    """
    engine_log = folder / "engine.jsonl"
    with (
        running_engine(log_path=engine_log) as engine,
        closing(LivePool(kafka)) as pool,
        running_workers(folder) as new_worker,
    ):
        worker = new_worker(pool, backend_url=engine.url, limit_max=4, max_retries=0)
        yield Served(engine=engine, engine_log=engine_log, pool=pool, worker=worker)
