"""A pool of its own on a real broker, used as any Kafka client would: plain confluent-kafka and JSON, no code of ours
between. One thread at a time; talks to the broker."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.cimpl import NewTopic

from forebay_sandbox.kafka.access import KafkaAccess
from forebay_schemas.contract.results import Result, decode_result
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.contract.topics import REQUEST_BYTES_MAX, Pool
from harness.waiting import PATIENCE_SECONDS, wait_until

_ANSWER_SECONDS_MAX = 30.0
LOG = logging.getLogger("tests.kafka")


def chat(*, output_tokens: int = 1, **more: Any) -> dict[str, Any]:
    """A payload for the simulated engine: alone in the batch a token takes about 10 ms."""
    return {"messages": [], "max_tokens": output_tokens, **more}


def envelope(request_id: str, **fields: Any) -> dict[str, Any]:
    """An envelope with a minute to live; ``fields`` replace what stands here, None takes it out."""
    whole = {"request_id": request_id, "biz_type": "chat_completion", "ttl_ms": 60_000, "payload": chat(), **fields}
    return {name: value for name, value in whole.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Tier, partition and offset of a request."""

    tier: Tier
    partition: int
    offset: int


@dataclass(slots=True)
class _Reports:
    places: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)


class LivePool:
    """Submits, follows the results, looks at dead letters and commits. Close it."""

    def __init__(self, kafka: KafkaAccess, *, partitions: int = 2) -> None:
        """Makes the pool's topics, under a name that nobody else has."""
        self.kafka = kafka
        self.topics = Pool(f"t-{secrets.token_hex(5)}")
        self.accepted: dict[str, Place] = {}
        """Every request whose delivery the broker confirmed."""
        self._results: dict[str, list[Result]] = {}
        specs = self.topics.specs(partitions=partitions, replication=1)
        admin = kafka.admin()  # must outlive what it was asked
        made = admin.create_topics(
            [NewTopic(spec.name, spec.partitions, spec.replication, config=spec.config) for spec in specs]
        )
        for future in made.values():
            future.result(_ANSWER_SECONDS_MAX)
        # The controller has made them; a broker with much to do hears of it a moment later.
        wait_until("topics that brokers know", lambda: set(made) <= set(admin.list_topics(timeout=10).topics))
        client = {**kafka.connection.properties, "bootstrap.servers": kafka.bootstrap_servers}
        self._producer = Producer(
            {**client, "acks": "all", "linger.ms": 0, "message.max.bytes": REQUEST_BYTES_MAX, "logger": LOG}
        )
        self._reader = Consumer(
            {**client, "group.id": "tests", "enable.auto.commit": False, "fetch.wait.max.ms": 50, "logger": LOG}
        )
        self._reader.assign([TopicPartition(self.topics.results, p, OFFSET_BEGINNING) for p in range(partitions)])

    @property
    def name(self) -> str:
        return self.topics.name

    def close(self) -> None:
        self._reader.close()

    def submit(self, tier: Tier, *envelopes: Mapping[str, Any]) -> list[str]:
        """Returns the ids when the broker has confirmed every request."""
        reports = _Reports()
        for one in envelopes:
            request_id = one["request_id"]
            self._produce(self.topics.requests(tier), json.dumps(one).encode(), request_id.encode(), (), reports)
        self._flush(reports)
        for key, (partition, offset) in reports.places.items():
            self.accepted[key.decode()] = Place(tier=tier, partition=partition, offset=offset)
        return [one["request_id"] for one in envelopes]

    def send(
        self,
        tier: Tier,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> Place:
        """Sends bytes as they are, as a foreign client may."""
        reports = _Reports()
        self._produce(self.topics.requests(tier), value, key, headers, reports)
        self._flush(reports)
        [(partition, offset)] = reports.places.values()
        return Place(tier=tier, partition=partition, offset=offset)

    def tell_workers(self, value: bytes, *, key: bytes) -> None:
        """Writes a record of the coordination topic."""
        reports = _Reports()
        self._produce(self.topics.coordination, value, key, (), reports)
        self._flush(reports)

    def results(self, request_ids: Iterable[str], *, seconds: float = PATIENCE_SECONDS) -> dict[str, Result]:
        """The first result of each of these ids, once all have one."""
        wanted = set(request_ids)

        def missing() -> set[str]:
            self._read_results()
            return wanted - self._results.keys()

        wait_until(f"a result of each of {len(wanted)} requests", lambda: not missing() or None, seconds=seconds)
        return {request_id: self._results[request_id][0] for request_id in wanted}

    def result(self, request_id: str) -> Result:
        """The first result of this id, once there is one."""
        return self.results([request_id])[request_id]

    def ended(self) -> set[str]:
        """The ids that have a result by now."""
        self._read_results()
        return set(self._results)

    def all_results(self, request_id: str) -> list[Result]:
        """Every result that was read of this id so far: more than one when it ran more than once."""
        return self._results.get(request_id, [])

    def dead_letters(self, count: int) -> list[Message]:
        """Waits until there are ``count`` dead letters; returns all."""

        def enough() -> list[Message] | None:
            letters = self.kafka.read_all(self.topics.dead_letter)
            return letters if len(letters) >= count else None

        letters = wait_until(f"{count} dead letters", enough)
        assert letters is not None
        return letters

    def _produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        reports: _Reports,
    ) -> None:
        def delivered(error: Any, message: Message) -> None:
            if error is not None:
                reports.errors.append(error.str())
                return
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            reports.places[key or b""] = (partition, offset)

        self._producer.produce(topic, value, key, headers=list(headers), on_delivery=delivered)

    def _flush(self, reports: _Reports) -> None:
        left = self._producer.flush(_ANSWER_SECONDS_MAX)
        assert left == 0
        assert reports.errors == []

    def _read_results(self) -> None:
        for message in self._reader.consume(1000, 0.05):
            error = message.error()
            if error is not None:
                if error.retriable() or error.code() < 0:
                    continue  # the broker is away for a moment
                raise KafkaException(error)
            result = decode_result(message.value())
            assert message.key() == result.request_id.encode()
            self._results.setdefault(result.request_id, []).append(result)


class NewPool(Protocol):
    """Makes a pool with its topics, on the shared broker or on one of the test's own."""

    def __call__(self, kafka: KafkaAccess | None = None, *, partitions: int = 2) -> LivePool: ...
