"""The asyncio client on a real broker with a real worker: outcomes, commands, streamed answers, fronts."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]  # its stubs leave this name out

from forebay_producer import (
    AnswerEvent,
    AsyncHandle,
    AsyncProducer,
    EnvelopeError,
    OutcomeTimeoutError,
    ProducerClosedError,
    ProducerSettings,
    TopicMissingError,
)
from forebay_producer.cluster.topic_admin import TopicAdmin
from forebay_sandbox.engine.process import running_engine
from forebay_schemas.contract.control import ControlOutcome
from forebay_schemas.contract.fronts import Front
from forebay_schemas.contract.results import encode_result
from forebay_schemas.contract.tiers import Tier
from harness.live_pool import chat, envelope
from harness.waiting import PATIENCE_SECONDS
from harness.written_results import result_of, write_results

if TYPE_CHECKING:
    from harness.live_pool import LivePool
    from harness.producer_pool import ProducerPool
    from harness.workers import NewWorker

REQUEST = {"biz_type": "x", "payload": {}}


@asynccontextmanager
async def client_of(pool: ProducerPool | LivePool, **settings: Any) -> AsyncIterator[AsyncProducer]:
    made = ProducerSettings(bootstrap_servers=pool.kafka.bootstrap_servers, pool=pool.name, **settings)
    async with AsyncProducer(settings=made) as producer:
        yield producer


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(2 * PATIENCE_SECONDS):
            await main()

    asyncio.run(bounded())


def make_front(pool: ProducerPool, name: str) -> None:
    admin = TopicAdmin(pool.kafka.admin(), connection=pool.kafka.connection)
    admin.create(Front(name).specs(replication=1))


def partition_of(producer: AsyncProducer) -> int:
    reply = producer._core.reply
    assert reply is not None
    return int(reply["partition"])


def write_to(pool: ProducerPool, partition: int, *request_ids: str) -> None:
    """Results as workers write them for requests that name a partition."""
    kafka = pool.kafka
    producer = Producer({**kafka.connection.properties, "bootstrap.servers": kafka.bootstrap_servers, "acks": "all"})
    for request_id in request_ids:
        producer.produce(pool.topics.results, encode_result(result_of(request_id)), request_id, partition)
    assert producer.flush(30) == 0


def text_of(events: list[AnswerEvent]) -> str:
    choices = [choice for event in events for choice in event.json().get("choices", ())]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def test_outcomes_of_many_requests_come_to_whoever_waits_for_them(producer_pool: ProducerPool) -> None:
    async def main() -> None:
        async with client_of(producer_pool) as producer:
            batch = await producer.submit_batch([REQUEST] * 500 + [{"payload": 1}])
            assert isinstance(batch[-1], EnvelopeError)
            handles = [each for each in batch if isinstance(each, AsyncHandle)]
            assert len({(each.topic, each.partition, each.offset) for each in handles}) == 500
            waits = [asyncio.ensure_future(each.outcome(timeout_seconds=PATIENCE_SECONDS)) for each in handles[:100]]
            await asyncio.sleep(0)
            await asyncio.to_thread(write_results, producer_pool, *(result_of(each.request_id) for each in handles))
            assert [(await each).request_id for each in waits] == [each.request_id for each in handles[:100]]
            found = {each.request_id async for each in producer.outcomes(handles, timeout_seconds=PATIENCE_SECONDS)}
            assert found == {each.request_id for each in handles}
            with pytest.raises(OutcomeTimeoutError):
                await producer.outcome(await producer.submit(REQUEST), timeout_seconds=0.2)
        with pytest.raises(ProducerClosedError):
            await producer.submit(REQUEST)

    run(main)


def test_a_wait_that_is_cancelled_disturbs_no_other(producer_pool: ProducerPool) -> None:
    async def main() -> None:
        async with client_of(producer_pool) as producer:
            handle = await producer.submit(REQUEST)
            waits = [asyncio.ensure_future(handle.outcome(timeout_seconds=PATIENCE_SECONDS)) for _ in range(3)]
            await asyncio.sleep(0.1)
            waits[0].cancel()
            await asyncio.to_thread(write_results, producer_pool, result_of(handle.request_id))
            assert {(await each).request_id for each in waits[1:]} == {handle.request_id}
            assert waits[0].cancelled()

    run(main)


def test_commands_and_streamed_answers_with_a_worker(pool: LivePool, new_worker: NewWorker) -> None:
    async def main() -> None:
        async with client_of(pool) as producer:
            # One slot: what comes second waits.
            first = await producer.submit(envelope("first", payload=chat(output_tokens=300)), tier=Tier.MID)
            second = await producer.submit(envelope("second", payload=chat(output_tokens=300)), tier=Tier.MID)
            answers = await asyncio.gather(second.cancel(), producer.cancel("nowhere", wait_seconds=0.5))
            assert [each.outcome for each in answers] == [ControlOutcome.CANCELLED, None]
            assert (await second.outcome(timeout_seconds=PATIENCE_SECONDS)).status == "cancelled"
            assert (await first.outcome(timeout_seconds=PATIENCE_SECONDS)).status == "completed"
            stream = await producer.stream(
                envelope("streamed", payload=chat(output_tokens=40, stream=True)), timeout_seconds=PATIENCE_SECONDS
            )
            events = [event async for event in stream]
            assert stream.result is not None
            assert stream.result.status == "completed"
            assert text_of(events) == stream.result.body["choices"][0]["message"]["content"]
            assert len(events) > 20, "piece by piece"
            failed = await producer.stream(
                envelope("wrong", biz_type="nothing", payload={"stream": True}), timeout_seconds=PATIENCE_SECONDS
            )
            assert [event async for event in failed] == []
            assert failed.result is not None
            assert failed.result.status == "rejected"

    with running_engine() as engine:
        new_worker(pool, backend_url=engine.url, limit_max=1, limit_start=1, limit_min=1)
        run(main)


def test_without_a_streams_topic_an_answer_comes_whole(pool: LivePool, new_worker: NewWorker) -> None:
    async def main() -> None:
        async with client_of(pool) as producer:
            stream = await producer.stream(
                envelope("s", payload=chat(output_tokens=10, stream=True)), timeout_seconds=PATIENCE_SECONDS
            )
            events = [event async for event in stream]
            assert stream.result is not None
            assert len(events) == 1
            assert text_of(events) == stream.result.body["choices"][0]["message"]["content"]

    admin = pool.kafka.admin()
    admin.delete_topics([pool.topics.streams])[pool.topics.streams].result(30)
    with running_engine() as engine:
        new_worker(pool, backend_url=engine.url)
        run(main)


def test_replicas_of_a_front_follow_partitions_of_their_own(producer_pool: ProducerPool) -> None:
    make_front(producer_pool, front := f"f-{producer_pool.name}")

    async def main() -> None:
        async with client_of(producer_pool, front=front) as one, client_of(producer_pool, front=front) as two:
            mine, other = await one.submit(REQUEST), await two.submit(REQUEST)
            assert partition_of(one) != partition_of(two)
            await asyncio.to_thread(write_to, producer_pool, partition_of(one), mine.request_id)
            await asyncio.to_thread(write_to, producer_pool, partition_of(two), other.request_id)
            assert (await mine.outcome(timeout_seconds=PATIENCE_SECONDS)).request_id == mine.request_id
            assert (await other.outcome(timeout_seconds=PATIENCE_SECONDS)).request_id == other.request_id
            # A request of another replica, and one whose worker went by the key.
            assert (await one.outcome(other, timeout_seconds=PATIENCE_SECONDS)).request_id == other.request_id
            late = await one.submit(REQUEST)
            wait = asyncio.ensure_future(late.outcome(timeout_seconds=PATIENCE_SECONDS))
            await asyncio.sleep(0.2)
            elsewhere = next(number for number in range(3) if number != partition_of(one))
            await asyncio.to_thread(write_to, producer_pool, elsewhere, late.request_id)
            assert (await wait).request_id == late.request_id
        async with client_of(producer_pool, front=front) as third, client_of(producer_pool, front=front) as fourth:
            await asyncio.gather(third.require_topics(), fourth.require_topics())
            assert partition_of(third) != partition_of(fourth), "those that left are free at once"

    run(main)


def test_a_front_without_its_topic_says_what_makes_it(producer_pool: ProducerPool) -> None:
    async def main() -> None:
        async with client_of(producer_pool, front="absent") as producer:
            with pytest.raises(TopicMissingError, match="forebay topics create --front absent"):
                await producer.submit(REQUEST)

    run(main)


def test_partitions_of_results_may_be_added_while_somebody_waits(producer_pool: ProducerPool) -> None:
    make_front(producer_pool, front := f"f-{producer_pool.name}")

    async def main() -> None:
        async with client_of(producer_pool, front=front) as producer:
            handle = await producer.submit(REQUEST)
            wait = asyncio.ensure_future(handle.outcome(timeout_seconds=PATIENCE_SECONDS))
            await asyncio.sleep(0.2)
            topic = producer_pool.topics.results
            admin = producer_pool.kafka.admin()  # must outlive what it was asked
            await asyncio.to_thread(admin.create_partitions([NewPartitions(topic, 6)])[topic].result, 30)
            await asyncio.to_thread(write_to, producer_pool, partition_of(producer), handle.request_id)
            assert (await wait).request_id == handle.request_id

    run(main)


KILLED = """
import asyncio, sys
from forebay_producer import AsyncProducer, ProducerSettings

async def main():
    settings = ProducerSettings(bootstrap_servers=sys.argv[1], pool=sys.argv[2], front=sys.argv[3])
    async with AsyncProducer(settings=settings) as producer:
        handle = await producer.submit({"biz_type": "x", "payload": {}})
        print(handle.request_id, handle.enqueued_at, producer._core.reply["partition"], flush=True)
        await handle.outcome(timeout_seconds=600)

asyncio.run(main())
"""


def test_after_kill_9_another_process_gets_the_outcome(producer_pool: ProducerPool) -> None:
    make_front(producer_pool, front := f"f-{producer_pool.name}")
    command = [sys.executable, "-c", KILLED, producer_pool.kafka.bootstrap_servers, producer_pool.name, front]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        request_id, enqueued_at, partition = process.stdout.readline().split()
        os.kill(process.pid, signal.SIGKILL)

    async def main() -> None:
        async with client_of(producer_pool, front=front) as successor:
            wait = asyncio.ensure_future(
                successor.outcome(request_id, since_ms=int(enqueued_at) - 5_000, timeout_seconds=PATIENCE_SECONDS)
            )
            await asyncio.sleep(0.2)
            assert partition_of(successor) != int(partition), "its lease lasts"
            await asyncio.to_thread(write_to, producer_pool, int(partition), request_id)
            assert (await wait).request_id == request_id

    run(main)
