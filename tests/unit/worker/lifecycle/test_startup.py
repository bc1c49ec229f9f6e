"""A worker that starts while Kafka is away: it waits, says so, and ends for what no waiting mends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from forebay_schemas.clock import SystemClock
from forebay_schemas.contract.topics import Pool
from forebay_schemas.errors import BrokerUnreachableError, ForebayError, TopicMissingError
from forebay_schemas.kafka.connection import KafkaConnection
from forebay_worker.cluster.startup import Cluster
from forebay_worker.lifecycle import startup
from forebay_worker.lifecycle.startup import find_cluster
from forebay_worker.settings import load_worker_settings
from forebay_worker.wiring.parts import Parts, build
from simulated.world import empty_world, pages_of

AWAY = BrokerUnreachableError("no broker answers at kafka:9092")
HERE = {"a-topic": 3}
OPS_PORT = 8081


class AnsweringCluster(Cluster):
    """Answers so, one after the other; the last of them for ever."""

    def __init__(self, *answers: ForebayError | dict[str, int]) -> None:
        connection = KafkaConnection(bootstrap_servers="kafka:9092", properties={})
        super().__init__(connection, pool=Pool("default"), worker_id="w")
        self._answers = list(answers)

    def require_usable(self) -> dict[str, int]:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, ForebayError):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "UNREACHABLE_AGAIN_SECONDS", 0.001)


def parts_with(*answers: ForebayError | dict[str, int], **settings: Any) -> Parts:
    """A worker's parts. To be called in an event loop."""
    loaded = load_worker_settings(flags={"backend_url": "http://engine", **settings}, config=None)
    return build(loaded, empty_world(loaded, cluster=AnsweringCluster(*answers), clock=SystemClock()))


def not_ready(parts: Parts) -> list[str]:
    return pages_of(parts).not_ready()


def not_alive(parts: Parts) -> list[str]:
    return pages_of(parts).not_alive()


def test_brokers_that_are_away_are_waited_for_and_named_once() -> None:
    async def run() -> None:
        parts = parts_with(*[AWAY] * 5, HERE)
        before = parts.state.name
        with capture_logs() as lines:
            assert await find_cluster(parts, ops_port=OPS_PORT) == HERE
        assert [(line["event"], line["error"]) for line in lines] == [("waiting for Kafka", str(AWAY))]
        assert (before, parts.state.name) == ("waiting_for_kafka", "working")

    asyncio.run(run())


def test_who_asks_meanwhile_is_told_what_it_waits_for_and_that_it_lives() -> None:
    async def run() -> None:
        parts = parts_with(AWAY)
        finding = asyncio.create_task(find_cluster(parts, ops_port=OPS_PORT))
        await asyncio.sleep(0.1)
        assert not_ready(parts) == [f"waiting for Kafka: {AWAY}"]
        assert not_alive(parts) == []
        parts.state.drain.set()
        assert await finding is None
        assert not_ready(parts) == ["draining"]

    asyncio.run(run())


def test_a_worker_is_not_ready_before_every_group_has_assigned_it_its_share() -> None:
    async def run() -> None:
        parts = parts_with(HERE)
        await find_cluster(parts, ops_port=OPS_PORT)
        # The intakes join their groups a little later, and a group takes seconds to answer.
        assert not_ready(parts) == [
            f"{name}: the group has not assigned partitions yet" for name in ("high", "mid", "low", "retry")
        ]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("answer", "settings"),
    [
        (TopicMissingError(["forebay.default.results"], pool="default"), {}),
        (AWAY, {"kafka_wait_seconds": 0}),
        (AWAY, {"kafka_wait_seconds": 0.01}),
    ],
)
def test_what_no_waiting_mends_ends_it_and_so_does_the_end_of_patience(
    answer: ForebayError, settings: dict[str, Any]
) -> None:
    async def run() -> None:
        parts = parts_with(AWAY, answer, **settings)
        with pytest.raises(type(answer)):
            await find_cluster(parts, ops_port=OPS_PORT)

    asyncio.run(run())
