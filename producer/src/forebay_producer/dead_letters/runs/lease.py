"""One run that replays or discards dead letters: its lease among other runs, and its records on the audit topic. Talks
to the brokers; one thread.

A run may act while it holds the lease: while at most `HOLD_SECONDS` have passed since it sent its last record that
reached the audit topic. Other runs declare it dead after at least `LEASE_SECONDS` of silence; records that it sent
before were written by then, or never will be (`ACT_SECONDS`, `DELIVERY_SECONDS`). A run that lost its lease (stopped,
brokers unreachable) requests it again, and first looks up the replays of its last intent.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from forebay_producer.client.sender import QUEUED_KBYTES_MAX
from forebay_producer.dead_letters.audit import (
    ALIVE_SECONDS,
    AuditIndex,
    AuditRecord,
    Ending,
    Places,
    ReplayAudit,
    RunAlive,
    RunEnded,
    RunStarted,
    audit_of,
    encode_audit,
)
from forebay_producer.dead_letters.runs.audit_reader import AUDIT_PARTITION, AuditReader
from forebay_producer.dead_letters.runs.interruptions import (
    TRANSIENT_ERRORS,
    InterruptedRunError,
    LostTurnError,
    is_transient_failure,
)
from forebay_producer.dead_letters.runs.journal import Journal, OpenRun
from forebay_producer.dead_letters.runs.readback import ReadBack
from forebay_producer.dead_letters.views import rfc3339
from forebay_schemas.clock import Clock
from forebay_schemas.contract.topics import REQUEST_BYTES_MAX, Pool
from forebay_schemas.errors import ForebayError
from forebay_schemas.kafka.clients import create_client, make_admin
from forebay_schemas.kafka.configs import producer_config
from forebay_schemas.kafka.connection import KafkaConnection
from forebay_schemas.kafka.errors import as_forebay_error
from forebay_schemas.kafka.permissions import Operation, on_topic
from forebay_schemas.kafka.topic_ids import TopicIdentity

CLIENT_ID: Final = "forebay-dead-letters"

HOLD_SECONDS: Final = 5.0
ACT_SECONDS: Final = 1.5
"""Time between an intent and handing its records to the client; later the intent is written again."""
DELIVERY_SECONDS: Final = 5.0
"""Delivery timeout of the client. With `ACT_SECONDS` it leaves 3.5 s of the lease for records in transit."""

_POLL_SECONDS: Final = 0.05
_LOOK_SECONDS: Final = 0.5
_SAID_BEFORE: Final = -1
"""Offset of records of a deleted topic: before all others."""


class Run:
    """Must be closed. The run may act only after `enter` has returned, and no longer after a ``LostTurnError``.

    ``opening``: its first record; id and time are filled in. ``wait_seconds``: how long it retries unreachable brokers.
    ``interrupted``: whether it should stop. ``tell``: receives lines for the user.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        *,
        pool: Pool,
        clock: Clock,
        opening: RunStarted,
        wait_seconds: float,
        interrupted: Callable[[], bool],
        tell: Callable[[str], None],
    ) -> None:
        self._connection = connection
        self._pool = pool
        self._clock = clock
        self._opening = opening
        self._wait_seconds = wait_seconds
        self._interrupted = interrupted
        self._tell = tell
        self._journal = Journal()
        self._said = Journal()
        """This run's own records, for a recreated topic, in which those of other runs are gone."""
        self.handled = AuditIndex(topic_id=opening.dead_letter_topic_id)
        """The index of handled dead letters; complete once `enter` has returned."""
        self.own_replays = Places()
        """The dead letters that this run has replayed."""
        self.run_id = ""
        self._own: set[str] = set()
        self._client: Producer | None = None
        self._broken: ForebayError | None = None
        self._unsaid = 0
        self._confirmed_at = self._said_at = clock.monotonic()
        self._is_another = False
        self._reader = AuditReader(connection, pool=pool, client_id=CLIENT_ID, clock=clock)
        try:
            self._identity = TopicIdentity(
                partial(make_admin, connection, client_id=CLIENT_ID), topic=pool.audit, clock=clock
            )
            self._reader.open()
        except BaseException:
            self._reader.close()
            raise

    # What the run does while it holds the lease.

    def enter(self) -> None:
        """Requests the lease, waits for it, and clears up after dead runs.

        Raises an error that persists for longer than ``wait_seconds``, and ``InterruptedRunError``.
        """
        give_up_at = self._clock.monotonic() + self._wait_seconds
        while True:
            try:
                self._leave()
                self.catch_up()
                self._open()
                self._wait_for_turn()
                # Waiting for other runs does not count.
                give_up_at = self._clock.monotonic() + self._wait_seconds
                self._clear_up()
                return
            except TRANSIENT_ERRORS as error:
                if self._clock.monotonic() > give_up_at:
                    raise (error.cause or error) if isinstance(error, LostTurnError) else error from None
                self._check_interrupted()
                self._clock.sleep(_LOOK_SECONDS)

    def say(self, record: AuditRecord) -> None:
        """Sends a record to the audit topic; `confirm` waits for its delivery.

        Sends nothing after the lease was lost: a run that others have declared dead must not look alive.
        """
        sent_at = self._clock.monotonic()
        if self._broken is None and sent_at - self._confirmed_at > HOLD_SECONDS:
            self._broken = LostTurnError(None)
        if self._broken is not None:
            return

        # Records about another run are no sign of life of this one.
        own = record.run_id == self.run_id
        if own or record.run_id in self._own:
            self._said.add(record, offset=_SAID_BEFORE, now=sent_at)
        if isinstance(record, ReplayAudit):
            # The replay was delivered, whether or not its audit record is.
            self._take_note(record)

        def delivered(error: KafkaError | None, _message: Message) -> None:
            self._unsaid -= 1
            if error is None:
                self._confirmed_at = max(self._confirmed_at, sent_at) if own else self._confirmed_at
            else:
                self.failed(error, topic=self._pool.audit)

        value = encode_audit(record)
        key = record.request_id if isinstance(record, ReplayAudit) else record.run_id
        client = self.client
        while True:
            try:
                client.produce(
                    self._pool.audit, value, (key or "").encode(), partition=AUDIT_PARTITION, on_delivery=delivered
                )
                break
            except BufferError:
                client.poll(_POLL_SECONDS)
            except KafkaException as error:
                self.failed(error.args[0], topic=self._pool.audit)
                return
        self._unsaid += 1
        self._said_at = sent_at if own else self._said_at

    def confirm(self) -> None:
        """Waits until all records are on the audit topic.

        Raises ``LostTurnError`` for transient errors, ``ForebayError`` for others.
        """
        while self._unsaid and self._broken is None:
            self.client.poll(_POLL_SECONDS)
        self._raise_if_broken()

    def tick(self) -> None:
        """Polls the client, and writes a sign of life when due. Must be called often."""
        now = self._clock.monotonic()
        self._look_whether_anew()
        if self._client is not None:
            self._client.poll(0)
            if self.run_id and self._broken is None and now - self._said_at >= ALIVE_SECONDS:
                self.say(RunAlive(at=self._clock.wall_ms(), run_id=self.run_id))

    def pause(self, seconds: float) -> None:
        """Waits; the run stays alive. Raises ``InterruptedRunError``."""
        until = self._clock.monotonic() + seconds
        while True:
            self._check_interrupted()
            self.tick()
            left = until - self._clock.monotonic()
            if left <= 0:
                return
            self._clock.sleep(min(left, _POLL_SECONDS))

    def require_turn(self) -> None:
        """Raises ``LostTurnError`` unless the run holds the lease."""
        self._look_whether_anew()
        self._raise_if_broken()
        if not self.run_id or self._clock.monotonic() - self._confirmed_at > HOLD_SECONDS:
            # Permanent: later records do not restore the lease.
            self._broken = LostTurnError(None)
            raise LostTurnError(None)

    def end(self, ending: Ending, *, tally: dict[str, int], error: str | None) -> None:
        """Writes that the run has ended and left no letter in doubt. If that record is lost, the next run makes up for
        it."""
        if not self.run_id:
            return
        self.say(self._ended(self.run_id, ending, tally=tally, error=error))
        try:
            self.confirm()
        except ForebayError:
            return

    def close(self) -> None:
        """Closes the clients. Queued records are not sent."""
        self._forget_client()
        self._reader.close()

    @property
    def client(self) -> Producer:
        """The client that sends the run's records; replaced by each `enter`."""
        if self._client is None:
            config = producer_config(self._connection, client_id=CLIENT_ID, record_bytes_max=REQUEST_BYTES_MAX)
            config.pop("delivery.timeout.ms", None)
            config.setdefault("queue.buffering.max.kbytes", QUEUED_KBYTES_MAX)
            config |= {"message.timeout.ms": int(DELIVERY_SECONDS * 1000), "linger.ms": 0}
            self._client = create_client(Producer, config)
        return self._client

    def failed(self, error: KafkaError, *, topic: str) -> None:
        """Handles a failed delivery: the run must enter again, or give up."""
        needs = on_topic(Operation.WRITE, topic)
        doing = f"writing to {topic}"
        failure = as_forebay_error(error, connection=self._connection, doing=doing, needs=needs, known=True)
        if not is_transient_failure(error):
            self._broken = failure
        elif self._broken is None:
            self._broken = LostTurnError(failure)

    # How it gets the lease.

    def _leave(self) -> None:
        self._forget_client()
        if self.run_id:
            self._own.add(self.run_id)
            self._opening = msgspec.structs.replace(self._opening, continues=self.run_id)
        self.run_id = ""

    def _open(self) -> None:
        self.run_id = secrets.token_hex(6)
        self.say(msgspec.structs.replace(self._opening, at=self._clock.wall_ms(), run_id=self.run_id))
        self.confirm()
        self.catch_up()
        if not self._journal.is_open(self.run_id):
            raise LostTurnError(None)

    def _wait_for_turn(self) -> None:
        told: str | None = None
        while True:
            now = self._clock.monotonic()
            self.catch_up()
            self.require_turn()
            other = self._journal.holding_up(self.run_id, own=self._own, now=now)
            if other is None:
                return
            if other.run_id != told:
                told = other.run_id
                self._tell(_waits_for(other))
            self.pause(_LOOK_SECONDS)

    def _clear_up(self) -> None:
        read_back = ReadBack(
            self._connection, pool=self._pool.name, clock=self._clock, client_id=CLIENT_ID, pause=self.pause
        )
        for run in self._journal.ahead_of(self.run_id):
            found = 0
            doubts = dict(run.doubts)
            if doubts and run.intent is not None:
                intent = run.intent
                self._tell(
                    f"{_whose(run)} stopped with {len(doubts):,} replays under way: checking which of them were written"
                )
                places = read_back.find(intent, doubts)
                self.require_turn()
                for place, (to_partition, to_offset) in places.items():
                    self.say(
                        audit_of(
                            intent,
                            doubts[place],
                            at=self._clock.wall_ms(),
                            run_id=run.run_id,
                            to_partition=to_partition,
                            to_offset=to_offset,
                        )
                    )
                found = len(places)
                self.confirm()
            tally = {"found_written": found, "found_not_written": len(doubts) - found} if doubts else {}
            self.say(self._ended(run.run_id, Ending.ABANDONED, tally=tally, error=None))
            self.confirm()
            self.tick()
        self.catch_up()

    def _ended(self, run_id: str, ending: Ending, *, tally: dict[str, int], error: str | None) -> RunEnded:
        return RunEnded(
            at=self._clock.wall_ms(), run_id=run_id, by=self._opening.by, ending=ending, tally=tally, error=error
        )

    def catch_up(self) -> None:
        """Reads the audit topic up to its present end."""
        self._look_whether_anew()
        if self._is_another:
            self._reader.start_over()
            self._journal, self._is_another = copy.deepcopy(self._said), False
            self._tell(f"{self._pool.audit} was deleted and made anew; reading it from its first record")
        self._reader.read_to_end(self._read, meanwhile=self.tick)

    def _read(self, record: AuditRecord, offset: int, now: float) -> None:
        self._journal.add(record, offset=offset, now=now)
        self._take_note(record)

    def _take_note(self, record: AuditRecord) -> None:
        self.handled.add(record)
        if not isinstance(record, ReplayAudit) or record.run_id not in self._own | {self.run_id}:
            return
        if record.dead_letter_topic_id == self._opening.dead_letter_topic_id:
            self.own_replays.add(record.partition, record.offset)

    def _look_whether_anew(self) -> None:
        if self._identity.was_made_anew():
            # Other runs cannot see this run in the recreated topic.
            self._is_another = True
            self._broken = self._broken or LostTurnError(None)

    def _raise_if_broken(self) -> None:
        if self._broken is not None:
            raise self._broken.with_traceback(None)

    def _forget_client(self) -> None:
        if self._client is not None:
            self._client.purge(in_queue=True, in_flight=True, blocking=True)
            self._client.close()
        self._client = None
        self._broken = None
        self._unsaid = 0
        self._confirmed_at = self._said_at = self._clock.monotonic()

    def _check_interrupted(self) -> None:
        if self._interrupted():
            raise InterruptedRunError("interrupted")


def _whose(run: OpenRun) -> str:
    return f"the run of {run.by} since {rfc3339(run.started_at // 1000 * 1000)}"


def _waits_for(run: OpenRun) -> str:
    return f"{_whose(run)} has not ended: waiting for its end, or until it has been silent for 10 s"
