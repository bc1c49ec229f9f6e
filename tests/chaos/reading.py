"""Reads what a run left behind: the topics, the logs of engine and workers. Talks to the brokers; reads files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import msgspec
from confluent_kafka import Message

from chaos.acts import Ask
from chaos.facts import Asked, Discarded, Execution, Letter, Outcome, OwnerChange, PartitionKey, Replayed, RequestRecord
from forebay_producer.dead_letters.audit import DiscardAudit, ReplayAudit, decode_audit
from forebay_sandbox.kafka.access import KafkaAccess
from forebay_schemas.contract.control import decode_control
from forebay_schemas.contract.envelope import Request, priority_in
from forebay_schemas.contract.headers import REASON, read_history, record_headers
from forebay_schemas.contract.results import decode_result
from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_schemas.contract.topics import RETRY_DELAYS_SECONDS, Pool

_READ_SECONDS_MAX = 120.0


def read_records(kafka: KafkaAccess, pool: Pool) -> list[RequestRecord]:
    """The decodable records of the request topics and all of the retry topics."""
    found = []
    for tier in TIERS:
        found += [
            _record(each, 0, tier) for each in _read(kafka, pool.requests(tier)) if not _key(each).startswith("junk-")
        ]
        for delay_seconds in RETRY_DELAYS_SECONDS:
            found += [_record(each, delay_seconds, tier) for each in _read(kafka, pool.retry(tier, delay_seconds))]
    # Nobody else submits to two tiers.
    lower = {record.turn for record in found if record.topic in _topics(pool, Tier.MID) | _topics(pool, Tier.LOW)}
    high = pool.requests(Tier.HIGH)
    return [replace(record, is_copy=record.topic == high and record.turn in lower) for record in found]


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
                replay_count=result.replay_count,
            )
        )
    return found


def read_letters(kafka: KafkaAccess, pool: Pool) -> list[Letter]:
    """The dead letters."""
    return [_letter(message) for message in _read(kafka, pool.dead_letter)]


def read_audit(kafka: KafkaAccess, pool: Pool) -> tuple[list[Replayed], list[Discarded]]:
    """The audit topic's records of dead letters."""
    replayed, discarded = [], []
    for message in _read(kafka, pool.audit):
        record = decode_audit(message.value())
        if isinstance(record, ReplayAudit):
            replayed.append(
                Replayed(
                    partition=record.partition,
                    offset=record.offset,
                    turn=(record.request_id, record.replay_count),
                    topic=record.topic,
                    to_partition=record.to_partition,
                    to_offset=record.to_offset,
                )
            )
        elif isinstance(record, DiscardAudit):
            discarded += [Discarded(partition=partition, offset=offset) for partition, offset in record.places]
    return replayed, discarded


def read_asked(kafka: KafkaAccess, pool: Pool, answers: Mapping[tuple[Ask, str], str]) -> list[Asked]:
    """The orders in the control topic. ``answers``: workers' answers to each."""
    found = []
    for message in _read(kafka, pool.control):
        control = decode_control(message.value())
        assert control is not None
        ask = Ask(control.action.value)
        answer = answers.get((ask, control.request_id))
        found.append(Asked(ask=ask, request_id=control.request_id, at_ms=_timestamp_ms(message), answer=answer))
    return found


def read_executions(log_path: Path) -> list[Execution]:
    """All executions in the engine's log that name their worker."""
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
            replay_count=int(line["replay_count"]),
        )
        for line in map(json.loads, lines)
    ]


_OWNER_EVENTS = {"partitions assigned": True, "partitions released": False, "partitions lost": False}


def read_owner_changes(worker: str, log_path: Path) -> list[OwnerChange]:
    """Partitions assigned and revoked, by a worker's log."""
    found = []
    for line in log_path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            said = json.loads(line)
        except ValueError:
            continue  # what was written when it was killed, or not by the worker's own log
        is_gain = _OWNER_EVENTS.get(said.get("event", "")) if isinstance(said, dict) else None
        if is_gain is None:
            continue
        at_ms = round(datetime.fromisoformat(said["timestamp"]).timestamp() * 1000)
        found += [
            OwnerChange(at_ms=at_ms, worker=worker, key=_partition_key(each), is_gain=is_gain)
            for each in said["partitions"]
        ]
    return found


def _partition_key(written: str | list[str | int]) -> PartitionKey:
    """Written as ``topic/0``, or as a list of both."""
    topic, number = written.rsplit("/", 1) if isinstance(written, str) else written
    return str(topic), int(number)


def _topics(pool: Pool, tier: Tier) -> set[str]:
    return {pool.requests(tier), *(pool.retry(tier, delay_seconds) for delay_seconds in RETRY_DELAYS_SECONDS)}


def _read(kafka: KafkaAccess, topic: str) -> list[Message]:
    return kafka.read_all(topic, timeout_seconds=_READ_SECONDS_MAX)


def _record(message: Message, delay_seconds: int, tier: Tier) -> RequestRecord:
    history = read_history(record_headers(message))
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    written_ms = _timestamp_ms(message)
    latest_ms = written_ms + delay_seconds * 1000
    not_before_ms = latest_ms if history.not_before is None else history.not_before
    return RequestRecord(
        request_id=_key(message),
        attempt=history.attempt,
        replay_count=history.replay_count,
        topic=topic,
        partition=partition,
        offset=offset,
        written_ms=written_ms,
        # No clock makes a retry wait for longer than its topic's delay, though the one who wrote it were ahead.
        due_ms=max(written_ms, min(not_before_ms, latest_ms)),
        tier=tier,
        priority=priority_in(msgspec.json.decode(message.value() or b"", type=Request), tier=tier),
    )


def _letter(message: Message) -> Letter:
    headers = record_headers(message)
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return Letter(
        partition=partition,
        offset=offset,
        key=_key(message),
        reason=(dict(headers).get(REASON) or b"").decode(),
        replay_count=read_history(headers).replay_count,
        at_ms=_timestamp_ms(message),
    )


def _key(message: Message) -> str:
    return (message.key() or b"").decode()


def _timestamp_ms(message: Message) -> int:
    return message.timestamp()[1]
