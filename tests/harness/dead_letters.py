"""The dead letters of a pool, written as a worker writes them, and the commands that look after them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Message, Producer

from forebay_schemas.contract.tiers import Tier
from harness.forebay_command import ForebayCommand
from harness.live_pool import LOG, LivePool, envelope

FOREIGN: list[tuple[str, bytes | None]] = [("x-bytes", b"\x00\xff"), ("x-none", None)]


def command_of(pool: LivePool, *, bootstrap_servers: str | None = None) -> ForebayCommand:
    return ForebayCommand(bootstrap_servers=bootstrap_servers or pool.kafka.bootstrap_servers, pool=pool.name)


def letters(pool: LivePool, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    """The command's JSON output."""
    done = command_of(pool).run("dead-letters", *arguments, "--output", "json")
    assert done.code == code, done.err
    return done.records


def replay(pool: LivePool, *arguments: str, code: int = 0) -> dict[str, Any]:
    [record] = letters(pool, "replay", *arguments, code=code)
    return record


def requests(pool: LivePool, tier: Tier = Tier.MID) -> list[Message]:
    return pool.kafka.read_all(pool.topics.requests(tier))


def write_letters(
    pool: LivePool,
    values: Iterable[tuple[str, bytes | None]],
    *,
    reason: str = "backend_error",
    replay_count: int = 0,
    tier: Tier = Tier.MID,
    at_ms: int | None = None,
) -> None:
    """Dead letters of a tier as a worker writes them, by a plain client; returns when the broker has them."""
    client = {**pool.kafka.connection.properties, "bootstrap.servers": pool.kafka.bootstrap_servers}
    producer = Producer({**client, "acks": "all", "partitioner": "murmur2_random", "logger": LOG})
    headers: list[tuple[str, str | bytes | None]] = [
        *FOREIGN,
        ("forebay-reason", reason.encode()),
        ("forebay-attempt", b"4"),
        ("forebay-first-enqueued-at", b"1800000000000"),
        ("kafka_dlt-original-topic", pool.topics.requests(tier).encode()),
    ]
    if replay_count:
        headers.append(("forebay-replay-count", str(replay_count).encode()))
    for key, value in values:
        # 0 is the client's word for now.
        producer.produce(pool.topics.dead_letter, value, key.encode(), headers=headers, timestamp=at_ms or 0)
        producer.poll(0)
    assert producer.flush(30) == 0


def value_of(request_id: str, **fields: Any) -> bytes:
    return json.dumps(envelope(request_id, **fields)).encode()
