"""Admission against a real broker: what would wait in vain is refused before it is sent."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
from confluent_kafka import Producer as KafkaProducer

from forebay_producer import (
    Admission,
    AdmissionPolicy,
    AdmissionRefusedError,
    AsyncProducer,
    Producer,
    ProducerSettings,
    WithoutWorkers,
)
from forebay_schemas.contract.coordination import Capacity, encode_capacity
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.contract.worker_load import WorkerLoad, with_load
from harness.producer_pool import ProducerPool
from simulated.capacities import make_capacity

REQUEST = {"biz_type": "chat_completion", "priority": "high", "ttl_ms": 60_000, "payload": {"model": "m"}}


@contextmanager
def announced(pool: ProducerPool, capacity: Capacity) -> Iterator[None]:
    """Publishes a worker's capacity a few times a second, as the worker would."""
    client = KafkaProducer({"bootstrap.servers": pool.kafka.bootstrap_servers})
    stopping = threading.Event()

    def publish() -> None:
        sequence = 0
        while not stopping.wait(0.2):
            sequence += 1
            said = msgspec.structs.replace(capacity, sequence=sequence)
            client.produce(pool.topics.coordination, encode_capacity(said), key=b"w-1")
            client.poll(0)
        client.flush(10)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def busy(waiting: int) -> Capacity:
    """A worker that serves four requests a second, with requests in its lane and no free slot."""
    capacity = make_capacity(limit_requests=4, share_requests=4, in_flight=4, service_seconds=1.0)
    load = WorkerLoad(
        waiting_requests={Tier.HIGH: waiting},
        work_seconds={Tier.HIGH: waiting / 4},
        wait_correction={Tier.HIGH: (200, 1.0, 1.0)},
    )
    return with_load(capacity, load)


def client(pool: ProducerPool, admission: Admission) -> Producer:
    settings = ProducerSettings(bootstrap_servers=pool.kafka.bootstrap_servers, pool=pool.name)
    return Producer(settings=settings, admission=admission)


def test_what_would_wait_too_long_is_refused_and_not_sent(producer_pool: ProducerPool) -> None:
    with announced(producer_pool, busy(0)), client(producer_pool, Admission()) as producer:
        outcomes = producer.submit_batch([REQUEST] * 40)
    refused = [each for each in outcomes if isinstance(each, AdmissionRefusedError)]
    # 3 s at four a second, and what the drain makes room for while the batch is prepared.
    assert 12 <= len(outcomes) - len(refused) <= 20
    assert {each.code for each in refused} == {"wait_too_long"}
    seconds = [each.retry_after_seconds or 0.0 for each in refused]
    assert seconds == sorted(seconds)
    assert len(producer_pool.records(Tier.HIGH)) == len(outcomes) - len(refused)


def test_a_full_pool_refuses_the_first_request_of_a_new_client(producer_pool: ProducerPool) -> None:
    with announced(producer_pool, busy(400)), client(producer_pool, Admission()) as producer:
        with pytest.raises(AdmissionRefusedError) as caught:
            producer.submit(REQUEST)
        assert (caught.value.code, caught.value.http_status) == ("wait_too_long", 429)
        assert producer.submit({**REQUEST, "priority": "low", "ttl_ms": 3_600_000}).offset == 0
    assert producer_pool.records(Tier.HIGH) == {}


def test_without_workers_the_policy_decides(producer_pool: ProducerPool) -> None:
    with client(producer_pool, Admission()) as producer:
        producer.submit(REQUEST)
    refuses = Admission(policy=AdmissionPolicy(without_workers=WithoutWorkers.REFUSE))
    with client(producer_pool, refuses) as producer, pytest.raises(AdmissionRefusedError) as caught:
        producer.submit(REQUEST)
    assert (caught.value.code, caught.value.http_status) == ("no_worker", 503)


def test_two_clients_share_one_admission_and_the_second_goes_on_after_the_first(producer_pool: ProducerPool) -> None:
    admission = Admission()
    with (
        announced(producer_pool, busy(400)),
        client(producer_pool, admission) as first,
        client(producer_pool, admission) as second,
    ):
        for each in (first, second):
            with pytest.raises(AdmissionRefusedError):
                each.submit(REQUEST)
        first.close()
        with pytest.raises(AdmissionRefusedError):
            second.submit(REQUEST)
        assert admission.is_followed


def test_the_command_refuses_lines_and_says_why(producer_pool: ProducerPool) -> None:
    lines = b"".join(msgspec.json.encode(REQUEST) + b"\n" for _ in range(40))
    with announced(producer_pool, busy(0)):
        some = producer_pool.forebay.run("submit", "-", "--admission", stdin=lines)
    assert some.code == 4
    assert "refused (wait_too_long): a high request would wait up to" in some.err
    with announced(producer_pool, busy(400)):
        none = producer_pool.forebay.run("submit", "-", "--admission", stdin=lines)
    assert none.code == 1
    assert "0 accepted, 40 refused" in none.err


async def submit_asynchronously(pool: ProducerPool) -> list[str]:
    """The codes of refusals of a request that may queue and of one that may not."""
    settings = ProducerSettings(bootstrap_servers=pool.kafka.bootstrap_servers, pool=pool.name)
    codes = []
    async with AsyncProducer(settings=settings, admission=Admission()) as producer:
        for do_not_queue in (False, True):
            try:
                await producer.submit(REQUEST, do_not_queue=do_not_queue)
            except AdmissionRefusedError as error:
                codes.append(error.code)
    return codes


def test_a_request_that_is_not_to_be_queued_is_refused_by_the_client_for_asyncio_too(
    producer_pool: ProducerPool,
) -> None:
    with announced(producer_pool, busy(0)):
        assert asyncio.run(submit_asynchronously(producer_pool)) == ["no_free_slot"]
    assert len(producer_pool.records(Tier.HIGH)) == 1
