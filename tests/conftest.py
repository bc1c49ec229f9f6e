"""Fixtures for tests of the worker: a pool of its own, worker processes, and one set of all three for the whole run.

Nothing is imported before a test asks for a fixture: unit tests need no Kafka client.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay_sandbox.kafka.access import KafkaAccess
    from harness.live_pool import LivePool, NewPool
    from harness.served import Served
    from harness.workers import NewWorker


@pytest.fixture
def new_pool(kafka: KafkaAccess) -> Iterator[NewPool]:
    from harness.live_pool import LivePool

    shared = kafka
    with ExitStack() as stack:

        def make(kafka: KafkaAccess | None = None, *, partitions: int = 2) -> LivePool:
            return stack.enter_context(closing(LivePool(kafka or shared, partitions=partitions)))

        yield make


@pytest.fixture
def pool(new_pool: NewPool) -> LivePool:
    """A pool of the test's own on the shared broker: two partitions a tier."""
    return new_pool()


@pytest.fixture
def new_worker(tmp_path: Path) -> Iterator[NewWorker]:
    from harness.workers import running_workers

    with running_workers(tmp_path) as start:
        yield start


@pytest.fixture(scope="session")
def session_served(kafka: KafkaAccess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The set that `served` hands out."""
    from harness.served import serving

    with serving(kafka, folder=tmp_path_factory.mktemp("served")) as served:
        yield served


@pytest.fixture
def served(session_served: Served) -> Iterator[Served]:
    """An engine without faults, a pool, and a worker with a limit of 4 and no retries; other tests use them too."""
    yield session_served
    session_served.engine.faults()
    assert session_served.worker.get("/livez")[0] == 200
