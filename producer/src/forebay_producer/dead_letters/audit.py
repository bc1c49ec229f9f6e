"""Records of the audit topic: what runs write while they replay or discard dead letters, and the index made of these
records. Pure.

A run writes `RunStarted`; before each batch an `Intent` with the letters it is about to send; a `ReplayAudit` for each
delivered letter, or a `DiscardAudit`; a `RunAlive` if it has written nothing for `ALIVE_SECONDS`; at last `RunEnded`.
After a killed run, the letters of its last intent without a `ReplayAudit` are looked up in the request topics, so that
no letter stays in doubt.
"""

from __future__ import annotations

from enum import StrEnum
from hashlib import blake2b
from typing import Final

import msgspec

from forebay_schemas.bounded import BoundedMap

REMEMBERED_REPLAYS_MAX: Final = 200_000
"""Remembered replays, 16 bytes each: 20 MB. Places of dead letters are all kept, as bits."""

ALIVE_SECONDS: Final = 2.0
"""Interval at which an idle run writes a sign of life."""

LEASE_SECONDS: Final = 10.0
"""A run that has been silent this long is dead to the others. It gives up well before."""

_BLOCK_BITS: Final = 1 << 16


class Action(StrEnum):
    """The action of a run."""

    REPLAY = "replay"
    DISCARD = "discard"


class Ending(StrEnum):
    """How a run ended. ``abandoned``: it fell silent; a later run cleared up after it and wrote this."""

    DONE = "done"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    CANARY_FAILED = "canary_failed"
    ABANDONED = "abandoned"


class _Record(msgspec.Struct, frozen=True, gc=False, kw_only=True, tag_field="action"):
    """``at``: epoch milliseconds on the writer's clock."""

    at: int


class RunStarted(_Record, tag="run_started", frozen=True, gc=False, kw_only=True):
    """A run requests the lease. Runs get it in the order of these records.

    ``continues``: the earlier id of a run that lost contact with the brokers and had to request the lease again.
    ``by``: user and host. ``selection``: the options that selected the letters, as typed. ``ttl_ms``,
    ``rate_per_second``, ``limit``, ``canary``: as given, None if not.
    """

    run_id: str
    by: str
    does: Action
    dead_letter_topic_id: str
    selection: str
    ttl_ms: int | None = None
    rate_per_second: float | None = None
    limit: int | None = None
    canary: int | None = None
    continues: str | None = None


class IntendedReplay(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One letter of an intent: its place, request id and replay count, why it died, and the topic it goes to."""

    partition: int
    offset: int
    request_id: str
    replay_count: int
    reason: str | None
    topic: str


class Intent(_Record, tag="intent", frozen=True, gc=False, kw_only=True):
    """The letters that are sent next. The outcome of the run's earlier intents is known.

    ``ends``: the end offset of each partition of the target topics, looked up shortly before; every replay lies at or
    behind it. ``by``, ``ttl_ms``: as in the later `ReplayAudit`.
    """

    run_id: str
    by: str
    dead_letter_topic_id: str
    ttl_ms: int | None
    ends: dict[str, list[int]]
    letters: list[IntendedReplay]


class ReplayAudit(_Record, tag="replay", frozen=True, gc=False, kw_only=True):
    """One delivered replay. ``by``: user and host.

    ``dead_letter_topic_id``, ``partition``, ``offset``: the dead letter. The id is Kafka's own, as a recreated topic
    counts offsets from 0 again. ``replay_count``: the replay's header. ``topic``, ``to_partition``, ``to_offset``: the
    position of the replay. ``ttl_ms``: its time to live, None if the envelope's own counts. ``run_id``: the run that
    sent it, even if another run found it; None in records written before runs existed.
    """

    by: str
    dead_letter_topic_id: str
    partition: int
    offset: int
    request_id: str
    replay_count: int
    reason: str | None
    topic: str
    to_partition: int
    to_offset: int
    ttl_ms: int | None
    run_id: str | None = None


def audit_of(
    intent: Intent, letter: IntendedReplay, *, at: int, run_id: str, to_partition: int, to_offset: int
) -> ReplayAudit:
    """The record of a delivered letter of an intent. ``run_id``: of the run that sent it."""
    return ReplayAudit(
        at=at,
        by=intent.by,
        dead_letter_topic_id=intent.dead_letter_topic_id,
        partition=letter.partition,
        offset=letter.offset,
        request_id=letter.request_id,
        replay_count=letter.replay_count,
        reason=letter.reason,
        topic=letter.topic,
        to_partition=to_partition,
        to_offset=to_offset,
        ttl_ms=intent.ttl_ms,
        run_id=run_id,
    )


class DiscardAudit(_Record, tag="discard", frozen=True, gc=False, kw_only=True):
    """Letters that are no longer listed or replayed. ``places``: (partition, offset) pairs."""

    run_id: str
    by: str
    dead_letter_topic_id: str
    places: list[tuple[int, int]]


class RunAlive(_Record, tag="run_alive", frozen=True, gc=False, kw_only=True):
    """A sign of life: the run is active, or waits for the lease."""

    run_id: str


class RunEnded(_Record, tag="run_ended", frozen=True, gc=False, kw_only=True):
    """The run has ended and leaves no letter in doubt. ``by``: the writer. ``tally``: the number of letters by result.
    ``error``: the cause of a failure, or the outcomes of failed canaries."""

    run_id: str
    by: str
    ending: Ending
    tally: dict[str, int]
    error: str | None = None


AuditRecord = RunStarted | Intent | ReplayAudit | DiscardAudit | RunAlive | RunEnded

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[AuditRecord] = msgspec.json.Decoder(AuditRecord)


def encode_audit(record: AuditRecord) -> bytes:
    """The record value."""
    return _encoder.encode(record)


def decode_audit(value: bytes | None) -> AuditRecord | None:
    """Decodes a record of the audit topic; None for unknown actions and invalid records."""
    if value is None:
        return None
    try:
        return _decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


class Places:
    """A set of places (partition, offset) of one topic: a bit each, in blocks of 65,536 offsets (8 KiB)."""

    def __init__(self) -> None:
        self._blocks: dict[tuple[int, int], bytearray] = {}

    def add(self, partition: int, offset: int) -> None:
        """Adds a place; ignores invalid offsets."""
        if offset < 0:
            return
        block, bit = divmod(offset, _BLOCK_BITS)
        bits = self._blocks.get((partition, block))
        if bits is None:
            bits = self._blocks[partition, block] = bytearray(_BLOCK_BITS // 8)
        bits[bit >> 3] |= 1 << (bit & 7)

    def has(self, partition: int, offset: int) -> bool:
        """Whether the place is in the set."""
        if not self._blocks:
            return False
        block, bit = divmod(offset, _BLOCK_BITS)
        bits = self._blocks.get((partition, block))
        return bits is not None and bool(bits[bit >> 3] >> (bit & 7) & 1)


def _digest(request_id: str, replay_count: int) -> bytes:
    # A pair of string and number takes 90 bytes more (measured).
    return blake2b(f"{replay_count}:{request_id}".encode(errors="surrogatepass"), digest_size=16).digest()


class Turns:
    """A set of replays of requests: the last `REMEMBERED_REPLAYS_MAX`."""

    def __init__(self) -> None:
        self._digests: BoundedMap[bytes, None] = BoundedMap(entries_max=REMEMBERED_REPLAYS_MAX)

    def add(self, request_id: str, replay_count: int) -> None:
        """Adds a replay."""
        self._digests.add(_digest(request_id, replay_count), None)

    def has(self, request_id: str | None, replay_count: int) -> bool:
        """Whether the replay is in the set."""
        # Checked first, to skip the digest while the set is empty.
        return bool(self._digests) and request_id is not None and _digest(request_id, replay_count) in self._digests


class AuditIndex:
    """Index of the dead letters of one topic that were replayed or discarded."""

    def __init__(self, *, topic_id: str) -> None:
        """``topic_id``: Kafka's id of the dead-letter topic; records about an earlier topic of the same name are
        ignored."""
        self._topic_id = topic_id
        self._replayed = Places()
        self._discarded = Places()
        self._turns = Turns()

    def add(self, record: AuditRecord) -> None:
        """Adds a record of the audit topic, of any kind."""
        if isinstance(record, ReplayAudit):
            if record.dead_letter_topic_id == self._topic_id:
                self._replayed.add(record.partition, record.offset)
                self._turns.add(record.request_id, record.replay_count)
        elif isinstance(record, DiscardAudit) and record.dead_letter_topic_id == self._topic_id:
            for place in record.places:
                self._discarded.add(*place)

    def was_replayed_from(self, partition: int, offset: int) -> bool:
        """Whether the dead letter at this place was replayed."""
        return self._replayed.has(partition, offset)

    def was_discarded(self, partition: int, offset: int) -> bool:
        """Whether the dead letter at this place was discarded."""
        return self._discarded.has(partition, offset)

    def has_request(self, request_id: str | None, replay_count: int) -> bool:
        """Whether this replay of the request was made, from any of its dead letters: a crash can write two."""
        return self._turns.has(request_id, replay_count)
