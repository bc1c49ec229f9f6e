"""Reads a partition as a client does that has no more than its language's own library: a socket and gzip.

The Kafka protocol's Fetch, version 4, the oldest that brokers still speak, and record batches of version 2.
"""

from __future__ import annotations

import gzip
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from forebay_sandbox.kafka.access import KafkaAccess

_FETCH, _FETCH_VERSION = 1, 4
_ANSWER_SECONDS_MAX = 10.0
_BYTES_MAX = 16 * 2**20
_BATCH_HEAD = struct.Struct(">qiibIhiqqqhii")
"""Base offset, length, leader epoch, magic, CRC, attributes, last offset delta, two times, producer id and epoch, first
sequence, count of records."""

_CODEC_BITS = 0b111


class Codec(IntEnum):
    """Compression of a batch's records, as its attributes name it."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch as it lies in the log. ``records``: the bytes of its records."""

    codec: Codec
    records: bytes


def fetch_batches(kafka: KafkaAccess, topic: str, *, partition: int = 0) -> list[Batch]:
    """The first batches of a partition. Raises ``ValueError`` for a codec that needs a plugin."""
    metadata = kafka.admin().list_topics(topic, timeout=_ANSWER_SECONDS_MAX)
    leader = metadata.brokers[metadata.topics[topic].partitions[partition].leader]
    with socket.create_connection((leader.host, leader.port), _ANSWER_SECONDS_MAX) as connection:
        connection.sendall(_framed(_question(topic, partition)))
        size = struct.unpack(">i", _read(connection, 4))[0]
        return list(_batches(_records(_read(connection, size), topic)))


def _question(topic: str, partition: int) -> bytes:
    head = struct.pack(">hhi", _FETCH, _FETCH_VERSION, 1) + _text("bare")
    # From no replica, without waiting, at least nothing, what is not committed too; one topic, one partition.
    body = struct.pack(">iiiib", -1, 0, 0, _BYTES_MAX, 0) + struct.pack(">i", 1) + _text(topic)
    return head + body + struct.pack(">iiqi", 1, partition, 0, _BYTES_MAX)


def _records(answer: bytes, topic: str) -> bytes:
    at = 4 + 4 + 4 + 2 + len(topic.encode()) + 4  # correlation, throttle, topics, the topic's name, partitions
    _partition, error, _high, _stable, aborted = struct.unpack_from(">ihqqi", answer, at)
    if error:
        raise ValueError(f"the broker answers with error {error}")
    at += struct.calcsize(">ihqqi") + 16 * max(0, aborted)
    (size,) = struct.unpack_from(">i", answer, at)
    return answer[at + 4 : at + 4 + max(0, size)]


def _batches(data: bytes) -> Iterator[Batch]:
    at = 0
    while at + _BATCH_HEAD.size <= len(data):
        _base, length, _epoch, magic, _crc, attributes, *_ = _BATCH_HEAD.unpack_from(data, at)
        assert magic == 2
        end = at + 12 + length
        if end > len(data):
            return  # the last one is cut where the answer had to end
        codec, packed = Codec(attributes & _CODEC_BITS), data[at + _BATCH_HEAD.size : end]
        if codec not in (Codec.NONE, Codec.GZIP):
            raise ValueError(f"{codec.name} compression not implemented")
        yield Batch(codec=codec, records=gzip.decompress(packed) if codec is Codec.GZIP else packed)
        at = end


def _framed(message: bytes) -> bytes:
    return struct.pack(">i", len(message)) + message


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


def _read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise ConnectionError("the broker closed the connection")
        data += more
    return data
