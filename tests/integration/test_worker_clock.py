"""Clocks an hour wrong, the worker's or its client's: nothing expires by them, and what is late still does."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs leave these names out
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from forebay_producer.client.client import Producer
from forebay_schemas.clock import SystemClock
from forebay_schemas.contract.tiers import Tier
from harness.live_pool import LivePool, envelope
from harness.waiting import wait_until
from harness.workers import running_workers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay_sandbox.kafka.access import KafkaAccess
    from harness.worker_process import WorkerProcess

HOUR_SECONDS = 3_600
HOUR_MS = HOUR_SECONDS * 1000
LATE_MS = 1_000
"""Upper bound on a few milliseconds on a busy machine."""

NOW = SystemClock()


class WrongClock(SystemClock):
    """A client's clock."""

    __slots__ = ("_ahead_ms",)

    def __init__(self, *, ahead_ms: int) -> None:
        self._ahead_ms = ahead_ms

    def wall_ms(self) -> int:
        return super().wall_ms() + self._ahead_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Skewed:
    """A pool with one request in it before its worker came, whose clock is ``ahead_ms`` wrong."""

    pool: LivePool
    worker: WorkerProcess
    ahead_ms: int
    began_ms: int


@pytest.fixture(scope="module", params=[HOUR_SECONDS, -HOUR_SECONDS], ids=["an hour ahead", "an hour behind"])
def skewed(
    request: pytest.FixtureRequest, kafka: KafkaAccess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Skewed]:
    ahead_seconds: int = request.param
    with closing(LivePool(kafka)) as pool, running_workers(tmp_path_factory.mktemp("skewed")) as new_worker:
        began_ms = NOW.wall_ms()
        pool.submit(Tier.MID, answered("waited"))
        worker = new_worker(
            pool, handler="harness.handlers:obey", max_retries=1, wall_ahead_seconds=float(ahead_seconds)
        )
        yield Skewed(pool=pool, worker=worker, ahead_ms=ahead_seconds * 1000, began_ms=began_ms)


def use_clients_time(kafka: KafkaAccess, topic: str) -> None:
    entry = ConfigEntry("message.timestamp.type", "CreateTime", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = kafka.admin()  # must outlive what it was asked
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


def answered(request_id: str, **fields: object) -> dict[str, object]:
    return envelope(request_id, payload={"do": "answer"}, **fields)


def test_what_waited_for_a_worker_with_a_wrong_clock_is_run(skewed: Skewed) -> None:
    result = skewed.pool.result("waited")
    assert (result.status, result.reason) == ("completed", "completed")


def test_a_wrong_clock_expires_nothing_that_says_how_long_it_may_take_or_when_it_was_sent(skewed: Skewed) -> None:
    now_ms = NOW.wall_ms()
    ids = skewed.pool.submit(
        Tier.HIGH,
        answered("ttl", ttl_ms=5_000),
        answered("default", ttl_ms=None),
        *(
            answered(name, ttl_ms=None, sent_at=sent_at, expire_at=sent_at + 5_000)
            for name, sent_at in (("behind", now_ms - HOUR_MS), ("ahead", now_ms + HOUR_MS), ("right", now_ms))
        ),
    )
    results = skewed.pool.results(ids)
    assert {name: result.status for name, result in results.items()} == dict.fromkeys(ids, "completed")
    for result in results.values():
        assert skewed.began_ms <= result.finished_at <= NOW.wall_ms() + LATE_MS, "finished_at is the brokers' time"
        assert result.queue_seconds is not None
        assert result.queue_seconds < 5


@pytest.mark.parametrize("client_ahead_ms", [HOUR_MS, -HOUR_MS])
def test_the_client_may_be_wrong_too(skewed: Skewed, client_ahead_ms: int) -> None:
    clock = WrongClock(ahead_ms=client_ahead_ms)
    with Producer(
        bootstrap_servers=skewed.pool.kafka.bootstrap_servers, pool=skewed.pool.name, clock=clock
    ) as producer:
        submitted = producer.submit(
            {
                "biz_type": "x",
                "priority": "high",
                "expire_at": clock.wall_ms() + 5_000,
                "payload": {"do": "answer"},
            }
        )
        result = producer.outcome(submitted.request_id, timeout_seconds=30)
    assert result.status == "completed"


def test_a_retry_is_neither_early_nor_expired(skewed: Skewed) -> None:
    skewed.pool.submit(Tier.MID, envelope("again", ttl_ms=20_000, payload={"do": "raise"}))
    result = skewed.pool.result("again")
    assert (result.status, result.reason, result.attempt) == ("failed", "handler_failed", 2)
    assert result.queue_seconds is not None
    assert 1 <= result.queue_seconds < 15


def test_what_is_late_on_the_brokers_clock_still_expires(skewed: Skewed) -> None:
    began_ms = NOW.wall_ms()
    skewed.pool.submit(
        Tier.HIGH,
        answered("long-past", ttl_ms=None, expire_at=began_ms - 10_000),
        envelope("too-slow", ttl_ms=2_000, payload={"do": "sleep", "seconds": 30}),
    )
    past, slow = skewed.pool.result("long-past"), skewed.pool.result("too-slow")
    assert (past.status, past.reason) == ("expired", "deadline_passed_waiting")
    assert (slow.status, slow.reason) == ("expired", "deadline_passed_running")
    assert began_ms + 1_900 <= slow.finished_at <= began_ms + 2_000 + 10_000


def test_the_worker_says_how_wrong_its_clock_is(skewed: Skewed) -> None:
    clock = skewed.worker.status()["clock"]
    assert clock["skew_ms"] == pytest.approx(skewed.ahead_ms, abs=LATE_MS)
    assert clock["is_corrected"] is True
    assert clock["samples"] >= 2
    shown = skewed.worker.metric("forebay_clock_skew_seconds")
    assert shown == pytest.approx(skewed.ahead_ms / 1000, abs=LATE_MS / 1000)
    [line] = skewed.worker.logged("this machine's clock is wrong; going by the brokers'")
    assert line["level"] == "warning"


def test_a_coordination_topic_without_the_brokers_time_is_told_and_results_give_it(
    pool: LivePool, kafka: KafkaAccess, tmp_path_factory: pytest.TempPathFactory
) -> None:
    use_clients_time(kafka, pool.topics.coordination)
    with running_workers(tmp_path_factory.mktemp("untold")) as new_worker:
        worker = new_worker(pool, handler="harness.handlers:obey", wall_ahead_seconds=float(HOUR_SECONDS))
        assert worker.status()["clock"]["skew_ms"] is None
        [line] = worker.logged(
            "the brokers' time is not known; deadlines go by this machine's clock until a result is written"
        )
        assert pool.topics.coordination in line["fix"]
        pool.submit(Tier.HIGH, answered("first", ttl_ms=5_000))
        assert pool.result("first").status == "completed"
        skew_ms = wait_until("the brokers' time", lambda: worker.status()["clock"]["skew_ms"])
        assert skew_ms == pytest.approx(HOUR_MS, abs=LATE_MS)
