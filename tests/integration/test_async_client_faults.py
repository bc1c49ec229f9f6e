"""The asyncio client under faults, on a real broker: a broker restarted, wrong clocks, a replica that is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from forebay_producer import AsyncHandle, AsyncProducer, OutcomeTimeoutError, ProducerSettings
from forebay_producer.cluster.topic_admin import TopicAdmin
from forebay_producer.replies import claims
from forebay_sandbox.kafka.local import LocalKafka, local_kafka
from forebay_schemas.clock import SystemClock
from forebay_schemas.contract.fronts import Front
from harness.producer_pool import ProducerPool, made_pool
from harness.waiting import PATIENCE_SECONDS, wait_until
from harness.written_results import result_of, write_results

if TYPE_CHECKING:
    from pathlib import Path

REQUEST = {"biz_type": "x", "payload": {}}
HOUR_MS = 3_600_000


class WrongClock(SystemClock):
    """A client's clock."""

    __slots__ = ("_ahead_ms",)

    def __init__(self, ahead_ms: int) -> None:
        self._ahead_ms = ahead_ms

    def wall_ms(self) -> int:
        return super().wall_ms() + self._ahead_ms


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[LocalKafka]:
    """A broker that may be maltreated."""
    with local_kafka(log_dir=tmp_path / "kafka-log") as kafka:
        yield kafka


def settings_of(pool: ProducerPool, front: str | None = None) -> ProducerSettings:
    return ProducerSettings(bootstrap_servers=pool.kafka.bootstrap_servers, pool=pool.name, front=front)


def make_front(pool: ProducerPool) -> str:
    name = f"f-{pool.name}"
    admin = TopicAdmin(pool.kafka.admin(), connection=pool.kafka.connection)
    admin.create(Front(name).specs(replication=1))
    return name


def partition_of(producer: AsyncProducer) -> int:
    reply = producer._core.reply
    assert reply is not None
    return int(reply["partition"])


def test_a_broker_restarted_while_many_wait_loses_no_outcome(own_kafka: LocalKafka) -> None:
    pool = made_pool(own_kafka)
    front = make_front(pool)

    async def main() -> None:
        async with AsyncProducer(settings=settings_of(pool, front)) as producer:
            batch = await producer.submit_batch([REQUEST] * 300)
            handles = [each for each in batch if isinstance(each, AsyncHandle)]
            waits = [asyncio.create_task(each.outcome(timeout_seconds=PATIENCE_SECONDS)) for each in handles]
            await asyncio.sleep(0.5)
            before, after = handles[:100], handles[100:]
            await asyncio.to_thread(write_results, pool, *(result_of(each.request_id) for each in before))
            await asyncio.to_thread(own_kafka.brokers[0].stop)
            during = asyncio.create_task(producer.submit(REQUEST))
            await asyncio.to_thread(own_kafka.brokers[0].start)
            await asyncio.to_thread(write_results, pool, *(result_of(each.request_id) for each in after))
            told = [(await each).request_id for each in waits]
            assert told == [each.request_id for each in handles]
            late = await during
            await asyncio.to_thread(write_results, pool, result_of(late.request_id))
            assert (await late.outcome(timeout_seconds=PATIENCE_SECONDS)).request_id == late.request_id

    asyncio.run(main())


@pytest.mark.parametrize("ahead_ms", [HOUR_MS, -HOUR_MS], ids=["an hour ahead", "an hour behind"])
def test_a_clock_that_is_an_hour_wrong_changes_nothing(ahead_ms: int, producer_pool: ProducerPool) -> None:
    front = make_front(producer_pool)

    async def main() -> None:
        clock = WrongClock(ahead_ms)
        async with (
            AsyncProducer(settings=settings_of(producer_pool, front), clock=clock) as one,
            AsyncProducer(settings=settings_of(producer_pool, front)) as two,
        ):
            mine, other = await one.submit(REQUEST), await two.submit(REQUEST)
            assert partition_of(one) != partition_of(two), "leases count on the brokers' clock"
            await asyncio.to_thread(write_results, producer_pool, result_of(mine.request_id))
            await asyncio.to_thread(write_results, producer_pool, result_of(other.request_id))
            began = time.monotonic()
            assert (await one.outcome(mine, timeout_seconds=PATIENCE_SECONDS)).request_id == mine.request_id
            assert (await one.outcome(other, timeout_seconds=PATIENCE_SECONDS)).request_id == other.request_id
            assert time.monotonic() - began < PATIENCE_SECONDS

    asyncio.run(main())


REPLICA = """
import asyncio, sys
from forebay_producer import AsyncProducer, ProducerSettings

async def main():
    settings = ProducerSettings(bootstrap_servers=sys.argv[1], pool=sys.argv[2], front=sys.argv[3])
    async with AsyncProducer(settings=settings) as producer:
        await producer.submit({"biz_type": "x", "payload": {}})
        print(producer._core.reply["partition"], flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


def test_the_partition_of_a_replica_that_was_killed_is_free_after_its_lease(
    producer_pool: ProducerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    front = make_front(producer_pool)
    command = [sys.executable, "-c", REPLICA, producer_pool.kafka.bootstrap_servers, producer_pool.name, front]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        dead = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)

    async def replicas() -> set[int]:
        """The partitions of three replicas, as many as there are."""
        producers = [AsyncProducer(settings=settings_of(producer_pool, front)) for _ in range(3)]
        try:
            for producer in producers:  # one after another, so that each reads the claims of those before
                await producer.require_topics()
            return {partition_of(producer) for producer in producers}
        finally:
            for producer in producers:
                await producer.close()

    assert dead in range(3)
    monkeypatch.setattr(claims, "LEASE_MS", 2_000)
    monkeypatch.setattr("forebay_producer.replies.presence.RENEW_SECONDS", 0.3)
    # With no lease left of the dead one, three live replicas have three partitions.
    wait_until("a partition that is free", lambda: asyncio.run(replicas()) == {0, 1, 2})


def test_outcomes_of_thousands_come_in_seconds_and_all_that_lack_are_named(producer_pool: ProducerPool) -> None:
    count = 5_000

    async def main() -> None:
        async with AsyncProducer(settings=settings_of(producer_pool)) as producer:
            batch = await producer.submit_batch([REQUEST] * count)
            handles = [each for each in batch if isinstance(each, AsyncHandle)]
            *come, lacks, too = handles
            results = [result_of(each.request_id) for each in come]
            writer = threading.Thread(target=write_results, args=(producer_pool, *results))
            writer.start()
            told = producer.outcomes(handles, timeout_seconds=20)
            assert {(await anext(told)).request_id for _ in come} == {each.request_id for each in come}
            await asyncio.to_thread(writer.join)
            with pytest.raises(OutcomeTimeoutError) as caught:
                await anext(told)
            assert caught.value.missing == sorted([lacks.request_id, too.request_id])

    asyncio.run(main())
