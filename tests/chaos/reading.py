"""Reads what a run left behind: the pool's topics and the engine's log. Talks to the brokers; reads files."""

from __future__ import annotations

import json
from pathlib import Path

from confluent_kafka import Message

from chaos.facts import Execution, Outcome, RequestRecord
from forebay_sandbox.kafka_access import KafkaAccess
from forebay_schemas.headers import read_history, record_headers
from forebay_schemas.results import decode_result
from forebay_schemas.tiers import TIERS
from forebay_schemas.topics import RETRY_DELAYS_SECONDS, Pool

_READ_SECONDS_MAX = 120.0


def read_records(kafka: KafkaAccess, pool: Pool) -> list[RequestRecord]:
    """The decodable records of the request topics and all of the retry topics."""
    found = []
    for tier in TIERS:
        found += [_record(each, 0) for each in _read(kafka, pool.requests(tier)) if not _key(each).startswith("junk-")]
        for delay_seconds in RETRY_DELAYS_SECONDS:
            found += [_record(each, delay_seconds) for each in _read(kafka, pool.retry(tier, delay_seconds))]
    return found


def read_outcomes(kafka: KafkaAccess, pool: Pool) -> list[Outcome]:
    """The results topic."""
    found = []
    for message in _read(kafka, pool.results):
        result = decode_result(message.value())
        found.append(
            Outcome(
                request_id=result.request_id,
                attempt=result.attempt,
                status=result.status,
                reason=result.reason,
                worker=result.worker,
                at_ms=_timestamp_ms(message),
            )
        )
    return found


def read_dead_letter_keys(kafka: KafkaAccess, pool: Pool) -> list[str]:
    """The key of every dead letter."""
    return [_key(message) for message in _read(kafka, pool.dead_letter)]


def read_executions(log_path: Path) -> list[Execution]:
    """All that the engine has logged; those of workers that say who they are."""
    lines = log_path.read_text(encoding="utf-8").splitlines()
    return [
        Execution(
            request_id=line["request_id"],
            attempt=int(line["attempt"]),
            worker=line["worker"],
            started_ms=line["started_at_ms"],
            ended_ms=line["ended_at_ms"],
            outcome=line["outcome"],
            fault=line["fault"],
        )
        for line in map(json.loads, lines)
    ]


def _read(kafka: KafkaAccess, topic: str) -> list[Message]:
    return kafka.read_all(topic, timeout_seconds=_READ_SECONDS_MAX)


def _record(message: Message, delay_seconds: int) -> RequestRecord:
    history = read_history(record_headers(message))
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    written_ms = _timestamp_ms(message)
    return RequestRecord(
        request_id=_key(message),
        attempt=history.attempt,
        topic=topic,
        partition=partition,
        offset=offset,
        written_ms=written_ms,
        due_ms=max(written_ms, history.not_before or written_ms + delay_seconds * 1000),
    )


def _key(message: Message) -> str:
    return (message.key() or b"").decode()


def _timestamp_ms(message: Message) -> int:
    return message.timestamp()[1]
