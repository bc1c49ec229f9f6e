"""A worker that starts while Kafka is away: it waits, says so, and ends for what no waiting mends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from forebay_schemas.errors import BrokerUnreachableError, ForebayError, TopicMissingError
from forebay_worker import worker as worker_module
from forebay_worker.cluster.startup import Cluster
from forebay_worker.settings import load_worker_settings
from forebay_worker.worker import Worker

AWAY = BrokerUnreachableError("no broker answers at kafka:9092")
HERE = {"a-topic": 3}


def starting(monkeypatch: pytest.MonkeyPatch, *answers: ForebayError | dict[str, int], **settings: Any) -> Worker:
    """A worker whose cluster answers so, the last of them for ever."""
    left = list(answers)

    def require_usable(_: Cluster) -> dict[str, int]:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, ForebayError):
            raise answer
        return answer

    monkeypatch.setattr(Cluster, "require_usable", require_usable)
    monkeypatch.setattr(worker_module, "UNREACHABLE_AGAIN_SECONDS", 0.001)
    return Worker(load_worker_settings(flags={"backend_url": "http://engine", **settings}, config=None))


def test_brokers_that_are_away_are_waited_for_and_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = starting(monkeypatch, *[AWAY] * 5, HERE)
    assert worker._state == "waiting_for_kafka"
    with capture_logs() as lines:
        assert asyncio.run(worker._find_cluster()) == HERE
    assert [(line["event"], line["error"]) for line in lines] == [("waiting for Kafka", str(AWAY))]
    assert worker._state == "working"


def test_who_asks_meanwhile_is_told_what_it_waits_for_and_that_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = starting(monkeypatch, AWAY)

    async def run() -> None:
        finding = asyncio.create_task(worker._find_cluster())
        await asyncio.sleep(0.1)
        assert worker._not_ready() == [f"waiting for Kafka: {AWAY}"]
        assert worker._not_alive() == []
        worker._drain.set()
        assert await finding is None
        assert worker._not_ready() == ["draining"]

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
    monkeypatch: pytest.MonkeyPatch, answer: ForebayError, settings: dict[str, Any]
) -> None:
    worker = starting(monkeypatch, AWAY, answer, **settings)
    with pytest.raises(type(answer)):
        asyncio.run(worker._find_cluster())
