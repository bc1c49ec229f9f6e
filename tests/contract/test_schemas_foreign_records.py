"""Records by strangers, over Kafka's own protocol: what any client in any language may write, read as workers read it.

The broker is librdkafka's mock, inside the process; one writer is librdkafka's C interface, which checks nothing.
"""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import time
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from forebay_schemas.contract.envelope import JsonCodec, deadline_ms, tier_for
from forebay_schemas.contract.headers import NO_HISTORY, read_history, record_headers, replace_headers
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.errors import EnvelopeError
from forebay_schemas.formats.envelope_reader import EnvelopeReader, NoSchemas
from forebay_schemas.kafka.clients import create_client
from forebay_schemas.kafka.configs import reader_config
from forebay_schemas.kafka.connection import KafkaConnection

TOPIC = "forebay.default.requests.high"
READER = EnvelopeReader(NoSchemas())
ENVELOPE = b'{"request_id": "r-1", "biz_type": "chat_completion", "priority": 10, "payload": {"messages": []}}'


class Broker:
    """The mock broker, a plain producer beside it, and what was last written."""

    def __init__(self) -> None:
        self._producer = Producer(
            {"bootstrap.servers": "127.0.0.1:1", "test.mock.num.brokers": 1}, logger=logging.getLogger("mock")
        )
        broker = next(iter(self._producer.list_topics(timeout=10).brokers.values()))
        self.servers = f"{broker.host}:{broker.port}"

    def write(self, value: bytes | None, *, key: bytes | None = None, headers: Any = None) -> Message:
        """Writes with a client that is not ours, and reads it as ours do."""
        self._producer.produce(TOPIC, value, key, headers=headers, partition=0)
        assert self._producer.flush(10) == 0
        return self.newest()

    def newest(self) -> Message:
        to = KafkaConnection(bootstrap_servers=self.servers, properties={})
        consumer = create_client(Consumer, reader_config(to, client_id="test"))
        try:
            _, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=10)
            consumer.assign([TopicPartition(TOPIC, 0, end - 1)])
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                message = consumer.poll(0.2)
                if message is not None and message.error() is None:
                    return message
            raise AssertionError("the record did not come back")
        finally:
            consumer.close()


@pytest.fixture(scope="module")
def broker() -> Broker:
    made = Broker()
    made.write(b"makes the topic")
    return made


def test_a_bare_envelope_with_a_null_key_and_no_headers_is_a_request(broker: Broker) -> None:
    message = broker.write(ENVELOPE)
    assert message.key() is None
    assert read_history(record_headers(message)) == NO_HISTORY
    request = READER.read(message.value())
    _, timestamp = message.timestamp()
    assert (request.request_id, tier_for(request)) == ("r-1", Tier.HIGH)
    assert deadline_ms(request, tier=Tier.HIGH, first_enqueued_at=timestamp) == timestamp + 5_000


def test_a_null_value_is_a_bad_envelope_and_nothing_worse(broker: Broker) -> None:
    message = broker.write(None, key=b"\xff\x00")
    assert message.key() == b"\xff\x00"
    with pytest.raises(EnvelopeError, match="is a null value"):
        JsonCodec().decode(message.value())


def test_what_strangers_put_into_headers_comes_out_of_a_hop_as_it_was(broker: Broker) -> None:
    foreign = [
        ("__TypeId__", b"com.example.Order"),
        ("Ünïcode", b"\xff\xfe"),
        ("none", None),
        ("twice", b"1"),
        ("twice", b""),
    ]
    message = broker.write(ENVELOPE, headers=foreign)
    assert record_headers(message) == foreign
    assert read_history(record_headers(message)) == NO_HISTORY
    hopped = broker.write(ENVELOPE, headers=replace_headers(record_headers(message), {"forebay-attempt": "2"}))
    assert record_headers(hopped) == [*foreign, ("forebay-attempt", b"2")]
    assert read_history(record_headers(hopped)).attempt == 2


def test_headers_that_only_look_like_ours_do_not_stop_a_record(broker: Broker) -> None:
    strange = [("forebay-attempt", b"\xff"), ("forebay-first-enqueued-at", b"yesterday"), ("content-type", None)]
    history = read_history(record_headers(broker.write(ENVELOPE, headers=strange)))
    assert history == NO_HISTORY
    assert READER.read(ENVELOPE, content_type=history.content_type).request_id == "r-1"


def test_unknown_fields_go_on_untouched(broker: Broker) -> None:
    value = b'{"later":{"a":[1e400]},"request_id":"r-1","biz_type":"b","payload":{"later":1.0},"payload_ref":null}'
    message = broker.write(value)
    assert JsonCodec().decode(message.value()).request_id == "r-1"
    assert message.value() == value


def test_a_header_name_that_is_not_utf_8_costs_its_record_the_headers_and_nothing_else(broker: Broker) -> None:
    # The interpreter treats code that has run often otherwise, so the record comes after many good ones.
    good = broker.write(ENVELOPE, headers=[("a", b"1")])
    for _ in range(1_000):
        assert record_headers(good) == [("a", b"1")]
    write_in_c(broker.servers, ENVELOPE, header_name=b"bad\xff\xfe")
    for _ in range(20):
        message = broker.newest()
        assert record_headers(message) == []
        assert record_headers(message) == []
        gc.collect()
        assert json.loads(message.value() or b"") == json.loads(ENVELOPE)


def write_in_c(servers: str, value: bytes, *, header_name: bytes) -> None:
    """One record by librdkafka's own interface, as a program in C or Go writes it."""
    folder = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
    found = sorted(folder.glob("librdkafka*.so*"))
    if not found:
        pytest.skip("confluent-kafka was not installed from a wheel that brings librdkafka with it")
    lib = ctypes.CDLL(str(found[0]))
    for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_headers_new"):
        getattr(lib, name).restype = ctypes.c_void_p
    text = ctypes.create_string_buffer(512)
    conf = ctypes.c_void_p(lib.rd_kafka_conf_new())
    assert lib.rd_kafka_conf_set(conf, b"bootstrap.servers", servers.encode(), text, 512) == 0
    assert lib.rd_kafka_conf_set(conf, b"log_level", b"0", text, 512) == 0
    producer = ctypes.c_void_p(lib.rd_kafka_new(0, conf, text, 512))
    assert producer.value is not None, text.value
    headers = ctypes.c_void_p(lib.rd_kafka_headers_new(1))
    size = ctypes.c_ssize_t
    assert lib.rd_kafka_header_add(headers, header_name, size(len(header_name)), b"v", size(1)) == 0
    # Pairs of a tag and what belongs to it, as rdkafka.h numbers them.
    topic, partition, content, flags, header_list, end = 1, 3, 4, 7, 10, 0
    copy = 2
    error = lib.rd_kafka_producev(
        producer,
        *(ctypes.c_int(topic), TOPIC.encode()),
        *(ctypes.c_int(partition), ctypes.c_int(0)),
        *(ctypes.c_int(content), value, ctypes.c_size_t(len(value))),
        *(ctypes.c_int(flags), ctypes.c_int(copy)),
        *(ctypes.c_int(header_list), headers),
        ctypes.c_int(end),
    )
    assert error == 0
    assert lib.rd_kafka_flush(producer, 10_000) == 0
    lib.rd_kafka_destroy(producer)
