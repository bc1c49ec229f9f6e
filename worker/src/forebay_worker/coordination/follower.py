"""Reads other workers' notices, and publishes this worker's own before it releases a partition. Also reads the control
topic: a partition is opened only after both were read up to the barrier.

A thread of its own owns the consumer and runs `step`; `publish` is called by the intakes' threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

import structlog
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from forebay_schemas.clock import Clock, MakeEvent
from forebay_schemas.contract.control import Control, decode_control
from forebay_schemas.contract.coordination import (
    GONE_SECONDS,
    LASTING_KINDS,
    LEASE_SECONDS,
    Capacity,
    Notice,
    decode_capacity,
    decode_notice,
)
from forebay_schemas.kafka.permissions import is_denied
from forebay_worker.intake.client_errors import ClientErrors
from forebay_worker.intake.protocols import TopicIds
from forebay_worker.request.work import Record

POLL_SECONDS = 0.05
AGAIN_SECONDS = 0.2
LOOK_BACK_MS = 600_000
"""As far as the topic reaches: a worker that starts minutes after the last one ended must still receive its notices."""

BROKER_TIMEOUT_SECONDS = 5.0
RECOVERED_SECONDS = 3.0
"""After this time without a failure, earlier errors are over: a denied read fails again within a second."""
PASSING_SECONDS = 3.0
"""A shorter failure is not reported: leadership moves, a broker restarts."""

BATCH_RECORDS_MAX = 1_000
NO_ROOM_SECONDS = 0.005
TELL_SECONDS_MAX = 1.0

log = structlog.get_logger("forebay.coordination")


class FollowingConsumer(Protocol):
    """The part of confluent-kafka's Consumer that is used here."""

    def assign(self, partitions: list[TopicPartition]) -> None: ...
    def offsets_for_times(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]: ...
    def get_watermark_offsets(self, partition: TopicPartition, timeout: float) -> Any: ...
    def list_topics(self, topic: str, timeout: float) -> Any: ...
    def poll(self, timeout: float) -> Record | None: ...
    def consume(self, num_messages: int, timeout: float) -> list[Record]: ...
    def close(self) -> None: ...


_Key = tuple[str, int]

Send = Callable[[Notice, Callable[[bool], None]], None]


class Coordination:
    """Follows the coordination topic from ten minutes ago, or from its beginning, and the control topic from its
    beginning.

    ``receive`` gets each notice and ``receive_capacity`` each capacity, with their age in seconds. ``receive_controls``
    gets batches of controls, each with the broker's timestamp (epoch milliseconds). While ``has_room`` is False,
    nothing is read. ``send`` produces a notice and calls back with whether it was delivered.
    """

    def __init__(
        self,
        *,
        consumer: FollowingConsumer,
        topic: str,
        control_topic: str,
        partitions: Mapping[str, int],
        worker_id: str,
        clock: Clock,
        topic_ids: TopicIds,
        receive: Callable[[Notice, float], None],
        receive_controls: Callable[[list[tuple[Control, int]]], None],
        has_room: Callable[[], bool],
        receive_capacity: Callable[[Capacity, float], None],
        send: Send,
        explain: Callable[[KafkaError, str], str],
        make_event: MakeEvent = threading.Event,
    ) -> None:
        self.worker_id = worker_id
        self._consumer = consumer
        self._topic = topic
        self._control_topic = control_topic
        self._keys: list[_Key] = [
            (each, number) for each in (topic, control_topic) for number in range(partitions[each])
        ]
        self._clock = clock
        self._topic_ids = topic_ids
        self._read_ids: dict[str, int] = {}
        self._receive = receive
        self._receive_controls = receive_controls
        self._has_room = has_room
        self._receive_capacity = receive_capacity
        self._send = send
        self._explain = explain
        self._make_event = make_event
        self._client_errors = ClientErrors()
        self._failed_at = self._failing_since = float("-inf")
        self._failing_topic = topic
        self._is_assigned = False
        self._read_to: dict[_Key, int] | None = None
        self._first_ends: dict[_Key, int] = {}
        self._wanted_until = float("-inf")
        self._ends: dict[_Key, int] | None = None
        self._asked_at = 0.0
        self.read_until = float("-inf")
        self.read_at = float("-inf")
        """When a record for which `read_until` waits was last read, in monotonic seconds."""

    def step(self) -> None:
        """Passes on the received records. Blocks briefly and never raises: failures are retried, and records that were
        freed unseen are read again."""
        now = self._clock.monotonic()
        if not self._has_room():
            self._clock.sleep(NO_ROOM_SECONDS)
            return
        try:
            if self._is_made_anew():
                self._read_to, self._ends, self._is_assigned = None, None, False
            if not self._is_assigned:
                self._assign()
            if self._ends is None and self._wanted_until > self.read_until:
                self._ends, self._asked_at = self._end_offsets(), now
            first = self._consumer.poll(POLL_SECONDS)
            if first is not None:
                # consume() with a timeout would wait for all of it even with records in hand.
                self._pass_on([first, *self._consumer.consume(BATCH_RECORDS_MAX - 1, 0)])
            if self._ends is not None and self._has_reached(self._ends):
                self.read_until, self._ends = self._asked_at, None
            if now - self._failed_at > RECOVERED_SECONDS:
                self._client_errors.recovered()
        except Exception as error:  # noqa: BLE001 - whatever it was, records may have been freed unseen
            self._note(error)
            self._ends = None
            self._is_assigned = False
            self._refresh_leaders()
            self._clock.sleep(AGAIN_SECONDS)

    @property
    def troubles(self) -> list[str]:
        """Why coordination or control cannot be read now. Any thread may ask."""
        lasting = self._clock.monotonic() - self._failing_since > PASSING_SECONDS
        return [f"coordination: {why}" for why in self._client_errors.texts({})] if lasting else []

    def _note(self, error: Exception) -> None:
        cause = error.args[0] if isinstance(error, KafkaException) else None
        topic = self._failing_topic
        why, is_denial = str(error), False
        if isinstance(cause, KafkaError):
            why, is_denial = self._explain(cause, topic), is_denied(cause)
        now = self._clock.monotonic()
        if now - self._failed_at > RECOVERED_SECONDS:
            self._failing_since = now
        self._failed_at = now
        if self._client_errors.note(topic, why, now=self._failed_at, is_denial=is_denial):
            log.warning("coordination not read; trying again", topic=topic, error=why)

    def listen_until(self, now: float) -> None:
        """Asks for `read_until` to reach ``now``: looks up the topic's end and reads up to it."""
        self._wanted_until = max(self._wanted_until, now)

    def publish(self, notices: list[Notice]) -> bool:
        """Publishes a notice and waits up to a second until it is durable. False: it may not be."""
        all_reported = self._make_event()
        delivered: list[bool] = []

        def on_delivery(is_delivered: bool) -> None:
            delivered.append(is_delivered)
            if len(delivered) == len(notices):
                all_reported.set()

        for notice in notices:
            self._send(notice, on_delivery)
        return not notices or (all_reported.wait(TELL_SECONDS_MAX) and all(delivered))

    def close(self) -> None:
        """Closes the consumer."""
        self._consumer.close()

    def _pass_on(self, records: list[Record]) -> None:
        assert self._read_to is not None
        controls: list[tuple[Control, int]] = []
        is_awaited = False
        try:
            for record in records:
                failure: KafkaError | None = record.error()
                key, offset = (record.topic(), record.partition()), record.offset()
                if failure is not None and failure.code() == KafkaError._PARTITION_EOF:
                    # The last offsets may hold no record but a transaction's marker or aborted records.
                    self._read_to[key] = max(self._read_to[key], offset)
                    continue
                if failure is not None:
                    self._failing_topic = record.topic() or self._topic
                    raise KafkaException(failure)  # it can stand in place of records
                self._read_to[key] = offset + 1
                is_awaited = is_awaited or (self._ends is not None and offset < self._ends[key])
                if key[0] != self._control_topic:
                    self._pass_on_notice(record)
                elif (control := decode_control(record.value())) is not None:
                    controls.append((control, int(record.timestamp()[1])))
        finally:
            # Records read before are not read again, whatever followed them.
            if controls:
                self._receive_controls(controls)
            if is_awaited:
                self.read_at = self._clock.monotonic()

    def _pass_on_notice(self, record: Record) -> None:
        age_seconds = self._age_seconds(record)
        capacity = decode_capacity(record.value())
        if capacity is not None:
            if age_seconds < GONE_SECONDS:
                self._receive_capacity(capacity, age_seconds)
            return
        notice = decode_notice(record.value() or b"")
        if notice is not None and (notice.kind in LASTING_KINDS or age_seconds <= LEASE_SECONDS):
            self._receive(notice, age_seconds)

    def _is_made_anew(self) -> bool:
        """Whether one of the topics was recreated. Then both are read from the beginning, which repeats earlier
        notices."""
        made_anew = []
        for topic in (self._topic, self._control_topic):
            topic_id = self._topic_ids.id_of(topic)
            if topic_id is not None and self._read_ids.setdefault(topic, topic_id) != topic_id:
                self._read_ids[topic] = topic_id
                made_anew.append(topic)
        if made_anew:
            log.error("a topic was deleted and made anew; reading it from its first record", topics=made_anew)
        return bool(made_anew)

    def _age_seconds(self, record: Record) -> float:
        """Age of a record when this worker began to follow the topic; later records are received at once."""
        if record.offset() >= self._first_ends[record.topic(), record.partition()]:
            return 0.0
        return max(0.0, (self._clock.wall_ms() - int(record.timestamp()[1])) / 1000)

    def _assign(self) -> None:
        """Assigns both topics, at the last position or, at first, from where records still count."""
        if self._read_to is None:
            self._read_to = self._starts()
        self._consumer.assign([TopicPartition(*key, start) for key, start in self._read_to.items()])
        self._is_assigned = True

    def _starts(self) -> dict[_Key, int]:
        since = self._clock.wall_ms() - LOOK_BACK_MS
        wanted = [TopicPartition(*key, since) for key in self._keys if key[0] == self._topic]
        found = self._consumer.offsets_for_times(wanted, timeout=BROKER_TIMEOUT_SECONDS)
        for each in found:
            if each.error is not None:
                raise KafkaException(each.error)
        bounds = {key: self._bounds(key) for key in self._keys}
        self._first_ends = {key: end for key, (_, end) in bounds.items()}
        starts = {key: first for key, (first, _) in bounds.items()}
        for each in found:
            key = (each.topic, each.partition)
            # For a partition without such a record the client returns a negative offset. This clock may be an hour
            # ahead without knowing it, so all is read.
            starts[key] = max(each.offset, starts[key])
        return starts

    def _refresh_leaders(self) -> None:
        """librdkafka 2.16 keeps asking a lost leader for offsets (seen) until metadata is asked for."""
        for topic in (self._topic, self._control_topic):
            with suppress(KafkaException):
                self._consumer.list_topics(topic, timeout=BROKER_TIMEOUT_SECONDS)

    def _bounds(self, key: _Key) -> tuple[int, int]:
        self._failing_topic = key[0]
        first, end = self._consumer.get_watermark_offsets(TopicPartition(*key), timeout=BROKER_TIMEOUT_SECONDS)
        return first, end

    def _end_offsets(self) -> dict[_Key, int]:
        return {key: self._bounds(key)[1] for key in self._keys}

    def _has_reached(self, ends: dict[_Key, int]) -> bool:
        assert self._read_to is not None
        return all(self._read_to[key] >= end for key, end in ends.items())
