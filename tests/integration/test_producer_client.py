"""The client library on a real broker: what was acknowledged lies where it says, whatever else happens."""

from __future__ import annotations

import gc
import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Message

from forebay_producer import Producer, ProducerClosedError, RecordTooLargeError, Submitted
from forebay_sandbox.testing.pytest_plugin import NewKafka
from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_schemas.contract.topics import REQUEST_BYTES_MAX
from forebay_schemas.errors import BrokerUnreachableError, EnvelopeError, ForebayError, TopicMissingError, UsageError
from harness.producer_pool import ProducerPool, made_pool
from harness.waiting import wait_until


def body(**more: Any) -> dict[str, Any]:
    return {"biz_type": "chat_completion", "payload": {"model": "m", "messages": []}, **more}


def decoded(record: Message) -> dict[str, Any]:
    value = record.value()
    assert value is not None
    fields: dict[str, Any] = json.loads(value)
    return fields


@pytest.fixture
def producer(producer_pool: ProducerPool) -> Iterator[Producer]:
    with producer_pool.producer() as made:
        yield made


def test_what_is_acknowledged_lies_where_it_says(producer_pool: ProducerPool, producer: Producer) -> None:
    accepted = {tier: producer.submit(body(extra=[1], tenant="acme"), tier=tier) for tier in TIERS}
    for tier, one in accepted.items():
        assert one.topic == producer_pool.topics.requests(tier)
        record = producer_pool.records(tier)[one.partition, one.offset]
        assert record.key() == one.request_id.encode()
        assert record.timestamp()[1] == one.enqueued_at
        assert record.headers() == [("forebay-tenant", b"acme")]
        fields = decoded(record)
        assert fields["request_id"] == one.request_id
        assert fields["extra"] == [1]


def test_the_traceparent_is_passed_through(producer_pool: ProducerPool, producer: Producer) -> None:
    one = producer.submit(body(), traceparent="00-abc-def-01")
    assert producer_pool.records(Tier.MID)[one.partition, one.offset].headers() == [("traceparent", b"00-abc-def-01")]


def test_a_batch_comes_back_in_order_with_an_error_for_each_bad_one(
    producer_pool: ProducerPool, producer: Producer
) -> None:
    requests: list[dict[str, Any]] = [body(request_id=f"r{number}", priority=number % 11) for number in range(5000)]
    requests[7] = body(priority="urgent")
    requests[8] = body(payload={"x": "y" * (REQUEST_BYTES_MAX + 1)})
    requests[4999] = body(payload=[])
    outcomes = producer.submit_batch(requests)
    assert len(outcomes) == 5000
    errors = {number: one for number, one in enumerate(outcomes) if isinstance(one, ForebayError)}
    assert {number: type(one) for number, one in errors.items()} == {
        7: EnvelopeError,
        8: RecordTooLargeError,
        4999: EnvelopeError,
    }
    records = {tier: producer_pool.records(tier) for tier in TIERS}
    assert sum(map(len, records.values())) == 4997
    for number, one in enumerate(outcomes):
        if isinstance(one, Submitted):
            tier = Tier(one.topic.rpartition(".")[2])
            assert records[tier][one.partition, one.offset].key() == f"r{number}".encode()


def test_requests_of_one_key_keep_their_order(producer_pool: ProducerPool, producer: Producer) -> None:
    outcomes = producer.submit_batch([body(request_id="same", number=number) for number in range(3000)])
    assert len({one.partition for one in outcomes if isinstance(one, Submitted)}) == 1
    numbers = [decoded(record)["number"] for record in producer_pool.records(Tier.MID).values()]
    assert numbers == list(range(3000))


def test_a_full_local_queue_is_waited_for(producer_pool: ProducerPool, tmp_path: Path) -> None:
    properties = tmp_path / "kafka.properties"
    given = {**producer_pool.kafka.connection.properties, "queue.buffering.max.messages": "1", "linger.ms": "20"}
    properties.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
    servers = producer_pool.kafka.bootstrap_servers
    with Producer(bootstrap_servers=servers, pool=producer_pool.name, kafka_properties=properties) as producer:
        outcomes = producer.submit_batch([body() for _ in range(50)])
    assert [one for one in outcomes if not isinstance(one, Submitted)] == []
    assert len(producer_pool.records(Tier.MID)) == 50


def test_many_threads_share_a_producer(producer_pool: ProducerPool, producer: Producer) -> None:
    with ThreadPoolExecutor(16) as threads:
        singles = list(threads.map(lambda number: producer.submit(body(request_id=f"s{number}")), range(400)))
        batches = list(threads.map(lambda _: producer.submit_batch([body() for _ in range(200)]), range(8)))
    places = [(one.partition, one.offset) for one in singles]
    places += [(one.partition, one.offset) for batch in batches for one in batch if isinstance(one, Submitted)]
    assert len(set(places)) == 400 + 1600
    assert set(places) == set(producer_pool.records(Tier.MID))


def test_the_largest_record_is_taken_and_one_above_it_names_the_sizes(
    producer_pool: ProducerPool, producer: Producer
) -> None:
    def request(filling: int) -> dict[str, Any]:
        return body(payload={"x": "y" * filling})

    room = REQUEST_BYTES_MAX - 1000
    assert producer.submit(request(room)).offset >= 0
    with pytest.raises(
        RecordTooLargeError, match=r"payload: makes a record of 8,\d{3},\d{3} bytes; .* 8,388,608"
    ) as caught:
        producer.submit(request(REQUEST_BYTES_MAX))
    assert caught.value.record_bytes > caught.value.bytes_max == REQUEST_BYTES_MAX
    assert producer.submit(request(1)).offset >= 0
    assert len(producer_pool.records(Tier.MID)) == 2


def test_a_missing_topic_is_named_at_once_and_used_once_it_is_made(producer_pool: ProducerPool) -> None:
    name = f"t-{uuid.uuid4().hex[:10]}"
    with Producer(bootstrap_servers=producer_pool.kafka.bootstrap_servers, pool=name) as producer:
        for attempt in (lambda: producer.submit(body()), lambda: producer.submit_batch([body()])):
            with pytest.raises(TopicMissingError, match=rf"forebay\.{name}\.requests\.high, .* topics create --pool"):
                attempt()
        for tier in TIERS:
            producer_pool.kafka.create_topic(f"forebay.{name}.requests.{tier}")
        assert producer.submit(body()).offset == 0


def test_a_deadline_in_the_past_is_not_sent(producer: Producer) -> None:
    with pytest.raises(UsageError, match="expire_at: past deadline"):
        producer.submit(body(request_id="same", expire_at=1_735_689_600_000))
    assert producer.submit(body(request_id="same")).offset == 0


def tasks() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_closing_leaves_no_thread(producer_pool: ProducerPool) -> None:
    gc.collect()
    before = tasks()
    with Producer(bootstrap_servers=producer_pool.kafka.bootstrap_servers, pool=producer_pool.name) as producer:
        one = producer.submit(body())
        producer.submit_batch([body()])
        with pytest.raises(ForebayError):
            producer.outcome(one.request_id, timeout_seconds=0.1)
        assert tasks() > before
    wait_until("no more threads than before", lambda: tasks() <= before)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("forebay-producer")]


_FORGETFUL = """
import os, sys
from forebay_producer import Producer, ProducerClosedError
producer = Producer(bootstrap_servers=sys.argv[1], pool=sys.argv[2])
request = {"biz_type": "x", "payload": {}}
one = producer.submit(request)
try:
    producer.outcome(one.request_id, timeout_seconds=0.1)
except Exception as error:
    print(type(error).__name__, flush=True)
child = os.fork()
if child == 0:
    try:
        producer.submit(request)
    except ProducerClosedError as error:
        print(error, flush=True)
    del producer
    with Producer(bootstrap_servers=sys.argv[1], pool=sys.argv[2]) as own:
        print(own.submit(request).topic, flush=True)
    sys.exit(0)
print(os.waitpid(child, 0)[1], producer.submit(request).topic, flush=True)
"""


def test_a_fork_and_an_exit_without_close_hang_nothing(
    producer_pool: ProducerPool, run_python: Callable[..., str]
) -> None:
    out = run_python(_FORGETFUL, producer_pool.kafka.bootstrap_servers, producer_pool.name)
    topic = producer_pool.topics.requests(Tier.MID)
    assert out.splitlines() == [
        "OutcomeTimeoutError",
        "this producer was made before a fork; make a new one in this process",
        topic,
        f"0 {topic}",
    ]


@pytest.fixture
def run_python() -> Callable[..., str]:
    import subprocess
    import sys

    def run(program: str, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout

    return run


def test_an_unreachable_broker_is_said_to_all_within_ten_seconds() -> None:
    with Producer(bootstrap_servers="127.0.0.1:1", pool="p") as unreachable, ThreadPoolExecutor(4) as threads:

        def submit(_: int) -> str:
            with pytest.raises(BrokerUnreachableError) as caught:
                unreachable.submit(body())
            return str(caught.value)

        started = time.monotonic()
        [message] = set(threads.map(submit, range(4)))
        assert time.monotonic() - started < 25
    assert message.startswith("no broker answered at 127.0.0.1:1 ")
    assert "FOREBAY_BOOTSTRAP_SERVERS" in message


def test_a_broker_that_dies_is_an_error_in_time_and_its_return_is_noticed(new_kafka: NewKafka) -> None:
    cluster = new_kafka()
    pool = made_pool(cluster)
    with pool.producer(delivery_timeout_seconds=2.0) as producer:
        producer.submit(body(request_id="before"))
        producer.submit_batch([body(request_id="before too")])
        cluster.kill()
        started = time.monotonic()
        with pytest.raises(BrokerUnreachableError, match=r"no acknowledgement .* within 2 s"):
            producer.submit(body())
        assert {type(one) for one in producer.submit_batch([body() for _ in range(10)])} == {BrokerUnreachableError}
        assert time.monotonic() - started < 20
        cluster.start()

        def submitted() -> Submitted | None:
            try:
                return producer.submit(body(request_id="after"))
            except BrokerUnreachableError:
                return None

        wait_until("a submit that works again", submitted)
    found = Counter(record.key() for record in pool.records(Tier.MID).values())
    assert {b"before", b"before too", b"after"} <= set(found)


def test_closing_says_what_was_not_delivered(new_kafka: NewKafka) -> None:
    cluster = new_kafka()
    pool = made_pool(cluster)
    producer = pool.producer(delivery_timeout_seconds=3.0)
    producer.submit(body())
    cluster.kill()
    errors: list[ForebayError] = []

    def submit() -> None:
        try:
            producer.submit(body(request_id="left behind"))
        except ForebayError as error:
            errors.append(error)

    thread = threading.Thread(target=submit)
    thread.start()
    wait_until("a record on its way", lambda: producer._core.single.in_flight())
    assert producer.close() == ["left behind"]
    thread.join(10)
    assert [type(error) for error in errors] == [BrokerUnreachableError]
    with pytest.raises(ProducerClosedError):
        producer.submit(body())


def test_a_decoded_request_can_be_submitted(producer_pool: ProducerPool, producer: Producer) -> None:
    from forebay_schemas.contract.envelope import Request

    request = Request(request_id="r1", biz_type="x", payload=msgspec.Raw(b'{"a": 1}'), priority=9)
    one = producer.submit(request)
    assert decoded(producer_pool.records(Tier.HIGH)[one.partition, one.offset])["payload"] == {"a": 1}
