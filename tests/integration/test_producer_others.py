"""A client's wait for its own outcomes where others write much more: a worker in memory answers, the broker is a real
one."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from confluent_kafka import Consumer
from confluent_kafka import Producer as KafkaProducer

from forebay_producer import AsyncProducer, Handle, ProducerSettings, Result
from forebay_sandbox.engine.process import running_engine
from forebay_schemas.contract.results import encode_result
from forebay_schemas.contract.tiers import TIERS
from harness.producer_pool import ProducerPool
from harness.waiting import wait_until
from harness.written_results import result_of, write_records

if TYPE_CHECKING:
    from harness.live_pool import LivePool
    from harness.workers import NewWorker

REQUEST = {"biz_type": "x", "payload": {}}
PAGE = Path(__file__).parents[2] / "docs" / "python-client.md"
THEIRS = 40_000
THREADS = 30


@contextmanager
def answering(pool: ProducerPool) -> Iterator[None]:
    """Writes an outcome for each request of the pool as soon as it comes."""
    kafka, stop = pool.kafka, threading.Event()
    config = {**kafka.connection.properties, "bootstrap.servers": kafka.bootstrap_servers}

    def run() -> None:
        producer = KafkaProducer({**config, "linger.ms": 0, "partitioner": "murmur2_random"})
        consumer = Consumer({**config, "group.id": f"{pool.name}-fake", "auto.offset.reset": "earliest"})
        consumer.subscribe([pool.topics.requests(tier) for tier in TIERS])
        while not stop.is_set():
            request = consumer.poll(0.05)
            if request is not None and request.error() is None:
                key = request.key()
                assert isinstance(key, bytes)
                producer.produce(pool.topics.results, encode_result(result_of(key.decode())), key)
                producer.poll(0)
        producer.flush(10)
        consumer.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def write_theirs(pool: ProducerPool, *, round_number: int) -> None:
    """Results of 2 kB of somebody else's requests."""
    for first in range(0, THEIRS, 2_000):
        ids = [f"theirs-{round_number}-{number}" for number in range(first, first + 2_000)]
        write_records(pool, *((one.encode(), encode_result(result_of(one, body="x" * 1_900))) for one in ids))


def test_results_of_others_make_nobody_wait_longer_and_cost_no_memory(producer_pool: ProducerPool) -> None:
    process = psutil.Process()
    with producer_pool.producer() as producer, answering(producer_pool):

        def run(_: int) -> float:
            began = time.monotonic()
            producer.submit(REQUEST).outcome(timeout_seconds=60)
            return time.monotonic() - began

        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(run, range(THREADS)))  # all threads are there
            fresh = list(threads.map(run, range(THREADS)))
            write_theirs(producer_pool, round_number=0)
            wait_until("their results passed", lambda: run(0) < 5)
            before_bytes = process.memory_info().rss
            write_theirs(producer_pool, round_number=1)
            list(threads.map(run, range(THREADS)))
            later = list(threads.map(run, range(THREADS)))
        grown_mb = (process.memory_info().rss - before_bytes) / 1e6
        # 8.0 s and 1,856 MiB, and for each wait from then on, when a full memory meant reading all again.
        assert min(later) < 1.0 + min(fresh), later
        assert median(later) < 3.0 + median(fresh), later
        assert grown_mb < 50
        assert producer._core.watch._kept_bytes < 1_000_000, "nothing of theirs is kept"


def test_the_outcome_of_an_old_request_is_searched_for_from_its_submit_on_by_one_reader_for_all(
    producer_pool: ProducerPool,
) -> None:
    write_records(producer_pool, (b"older", encode_result(result_of("older"))))
    with producer_pool.producer() as submitter, answering(producer_pool):
        batch = [one for one in submitter.submit_batch([REQUEST] * 100) if isinstance(one, Handle)]
        assert len(list(submitter.outcomes(batch, timeout_seconds=60))) == 100
    with producer_pool.producer() as other, ThreadPoolExecutor(THREADS) as threads:
        found = list(threads.map(lambda one: other.outcome(one, timeout_seconds=60), batch))
        assert [result.request_id for result in found] == [one.request_id for one in batch]
        assert other.outcome(batch[0].request_id, since_ms=0, timeout_seconds=60) == found[0]


def test_a_handle_and_an_id_are_taken_by_every_question(producer_pool: ProducerPool) -> None:
    with producer_pool.producer() as producer, answering(producer_pool):
        first, second = producer.submit(REQUEST), producer.submit(REQUEST)
        assert (
            first.outcome(timeout_seconds=60)
            == producer.outcome(first, timeout_seconds=60)
            == producer.outcome(first.request_id, timeout_seconds=60)
        )
        told = producer.outcomes([first, second.request_id], timeout_seconds=60)
        assert {result.request_id for result in told} == {first.request_id, second.request_id}


def page_example(word: str, pool: ProducerPool | LivePool) -> dict[str, Any]:
    """The names of the page's own example that has the word in it, for this pool."""
    [example] = [block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if word in block]
    example = example.replace("127.0.0.1:9092", pool.kafka.bootstrap_servers).replace("default", pool.name)
    names: dict[str, Any] = {}
    exec(compile(example.replace("asyncio.run(main())", ""), PAGE.name, "exec"), names)  # noqa: S102 - our own page
    return names


def test_the_recipe_for_asyncio_serves_hundreds_at_once_and_leaves_the_loop_alone(producer_pool: ProducerPool) -> None:
    """The page's own lines, against a pool whose requests are answered at once."""
    infer = page_example("async def infer", producer_pool)["infer"]
    held_seconds = 0.0

    async def serve() -> list[Result]:
        nonlocal held_seconds
        settings = ProducerSettings(bootstrap_servers=producer_pool.kafka.bootstrap_servers, pool=producer_pool.name)
        async with AsyncProducer(settings=settings) as producer:
            tasks = [asyncio.create_task(infer(producer, {"model": "m", "messages": []})) for _ in range(300)]
            while not all(task.done() for task in tasks):
                began = time.monotonic()
                await asyncio.sleep(0.01)
                held_seconds = max(held_seconds, time.monotonic() - began)
            return [task.result() for task in tasks]

    with answering(producer_pool):
        began = time.monotonic()
        results = asyncio.run(serve())
        took_seconds = time.monotonic() - began
    assert {result.status.value for result in results} == {"completed"}
    assert took_seconds < 20, "one after the other would take minutes"
    assert held_seconds < 5


def test_the_pages_streamed_answer_is_printed(
    pool: LivePool, new_worker: NewWorker, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_engine() as engine:
        new_worker(pool, backend_url=engine.url)
        asyncio.run(page_example("producer.stream(", pool)["main"]())
    out = capsys.readouterr().out
    text, last = out.strip().rsplit("\n", 1)
    assert len(text) > 20
    assert last.startswith(" completed 0.")
