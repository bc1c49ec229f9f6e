"""Starts the workers of a test and ends them with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from harness.live_pool import LivePool
from harness.worker_process import WorkerProcess

TESTS = Path(__file__).parents[1]
"""Working directory of workers, where handlers of the harness are found."""


class NewWorker(Protocol):
    """Starts a worker of a pool and waits until it is ready; settings are FOREBAY_ variables without the prefix.

    Its wall clock goes ``wall_ahead_seconds`` before this machine's.
    """

    def __call__(
        self, pool: LivePool, *, wait: bool = True, wall_ahead_seconds: float = 0.0, **settings: object
    ) -> WorkerProcess: ...


@contextmanager
def running_workers(folder: Path) -> Iterator[NewWorker]:
    """A function that starts workers, named worker-1 and on, with their logs in ``folder``; the end kills them all."""
    started: list[WorkerProcess] = []

    def start(
        pool: LivePool, *, wait: bool = True, wall_ahead_seconds: float = 0.0, **settings: object
    ) -> WorkerProcess:
        name = f"worker-{len(started) + 1}"
        given = {
            "bootstrap_servers": pool.kafka.bootstrap_servers,
            "pool": pool.name,
            "worker_id": name,
            **_properties_file(pool, folder / "kafka.properties"),
            **settings,
        }
        worker = WorkerProcess(
            settings={f"FOREBAY_{setting.upper()}": str(value) for setting, value in given.items()},
            log_path=folder / f"{name}.log",
            folder=TESTS,
            wall_ahead_seconds=wall_ahead_seconds,
        )
        started.append(worker)
        if wait:
            worker.wait_ready()
        return worker

    try:
        yield start
    finally:
        for worker in started:
            worker.kill()


def _properties_file(pool: LivePool, path: Path) -> dict[str, Path]:
    """The setting that lets a worker into a cluster that asks for more than an address."""
    properties = pool.kafka.connection.properties
    if not properties:
        return {}
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()), encoding="utf-8")
    return {"kafka_properties": path}
