"""What the audit topic says of dead letters: the records of runs that replay or discard them, and the memory made of
all such records. Pure.

A run says `RunStarted`, then of each batch what it is about to send (`Intent`) and, letter by letter, what was
delivered (`ReplayAudit`), or what it discarded (`DiscardAudit`); in between at least every `ALIVE_SECONDS` anything at
all (`RunAlive`), and at last `RunEnded`. What a run was about to send and never said to be delivered is looked for
where it would lie, so a killed run leaves no doubt behind.
"""

from __future__ import annotations

from enum import StrEnum
from hashlib import blake2b
from typing import Final

import msgspec

from forebay_schemas.bounded import BoundedMap

REMEMBERED_REPLAYS_MAX: Final = 200_000
"""So many replays of requests are kept, 16 bytes of each: 20 MB. All places of dead letters are kept, as bits."""

ALIVE_SECONDS: Final = 2.0
"""A run that has nothing to say says so as often."""

LEASE_SECONDS: Final = 10.0
"""A run that has said nothing for so long is taken for dead by the others, and takes itself for dead well before."""

_BLOCK_BITS: Final = 1 << 16


class Action(StrEnum):
    """What a run does with dead letters."""

    REPLAY = "replay"
    DISCARD = "discard"


class Ending(StrEnum):
    """How a run ended. ``abandoned``: it fell silent, and another run says so, which has cleared up what it left."""

    DONE = "done"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    CANARY_FAILED = "canary_failed"
    ABANDONED = "abandoned"


class _Record(msgspec.Struct, frozen=True, gc=False, kw_only=True, tag_field="action"):
    """``at``: epoch milliseconds on the clock of whoever writes it."""

    at: int


class RunStarted(_Record, tag="run_started", frozen=True, gc=False, kw_only=True):
    """A run asks for its turn: it is the first of those that go on, in the order of these records.

    ``continues``: the run that it is the continuation of, when a run lost touch with the brokers and had to ask for its
    turn anew. ``by``: user and host. ``selection``: the options that chose the letters,
    as they were typed. ``ttl_ms``, ``rate_per_second``, ``limit``, ``canary``: as given, None for none.
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
    """One letter of an intent: its place, which replay of which request, why it died, the topic that it goes to."""

    partition: int
    offset: int
    request_id: str
    replay_count: int
    reason: str | None
    topic: str


class Intent(_Record, tag="intent", frozen=True, gc=False, kw_only=True):
    """These letters are about to be sent; of the run's former intents all is known by now.

    ``ends``: for each topic that they go to, the end offset of each of its partitions, as looked up shortly before:
    none of them lies below. ``by``, ``ttl_ms``: as their `ReplayAudit` is to say.
    """

    run_id: str
    by: str
    dead_letter_topic_id: str
    ttl_ms: int | None
    ends: dict[str, list[int]]
    letters: list[IntendedReplay]


class ReplayAudit(_Record, tag="replay", frozen=True, gc=False, kw_only=True):
    """One replay that was delivered. ``by``: user and host.

    ``dead_letter_topic_id``, ``partition``, ``offset``: which dead letter; the id is Kafka's own, since a topic that is
    made anew counts from 0 again. ``replay_count``: what the replay's header says. ``topic``, ``to_partition``,
    ``to_offset``: where the replay lies. ``ttl_ms``: the time it was given, None when the envelope's own counts.
    ``run_id``: the run that sent it, even when another found it; None in records of versions without runs.
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
    """The record that a letter of an intent was delivered; ``run_id``: of the run that sent it."""
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
    """These letters are not to be listed nor replayed any more. ``places``: (partition, offset) pairs."""

    run_id: str
    by: str
    dead_letter_topic_id: str
    places: list[tuple[int, int]]


class RunAlive(_Record, tag="run_alive", frozen=True, gc=False, kw_only=True):
    """The run goes on, or waits for its turn."""

    run_id: str


class RunEnded(_Record, tag="run_ended", frozen=True, gc=False, kw_only=True):
    """The run is over, and nothing of it is in doubt. ``by``: who says so. ``tally``: how many letters of which fate.

    ``error``: why it failed, or which outcomes the canary had.
    """

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
    """What a record of the audit topic says; None for records of other actions, and for what is none at all."""
    if value is None:
        return None
    try:
        return _decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


class Places:
    """A set of places of one topic, (partition, offset): a bit each, in blocks of 65,536 offsets (8 KiB)."""

    def __init__(self) -> None:
        self._blocks: dict[tuple[int, int], bytearray] = {}

    def add(self, partition: int, offset: int) -> None:
        """Puts one in; what is no offset is left out."""
        if offset < 0:
            return
        block, bit = divmod(offset, _BLOCK_BITS)
        bits = self._blocks.get((partition, block))
        if bits is None:
            bits = self._blocks[partition, block] = bytearray(_BLOCK_BITS // 8)
        bits[bit >> 3] |= 1 << (bit & 7)

    def has(self, partition: int, offset: int) -> bool:
        """Whether it is in."""
        if not self._blocks:
            return False
        block, bit = divmod(offset, _BLOCK_BITS)
        bits = self._blocks.get((partition, block))
        return bits is not None and bool(bits[bit >> 3] >> (bit & 7) & 1)


def _digest(request_id: str, replay_count: int) -> bytes:
    # A pair of string and number takes 90 bytes more (measured).
    return blake2b(f"{replay_count}:{request_id}".encode(errors="surrogatepass"), digest_size=16).digest()


class Turns:
    """A set of replays of requests, the last `REMEMBERED_REPLAYS_MAX` of them."""

    def __init__(self) -> None:
        self._digests: BoundedMap[bytes, None] = BoundedMap(entries_max=REMEMBERED_REPLAYS_MAX)

    def add(self, request_id: str, replay_count: int) -> None:
        """Puts one in."""
        self._digests.add(_digest(request_id, replay_count), None)

    def has(self, request_id: str | None, replay_count: int) -> bool:
        """Whether it is in."""
        # The first look saves a digest of every letter while there is none.
        return bool(self._digests) and request_id is not None and _digest(request_id, replay_count) in self._digests


class Handled:
    """Which dead letters of one topic were replayed or discarded."""

    def __init__(self, *, topic_id: str) -> None:
        """``topic_id``: Kafka's id of the dead-letter topic; records of a topic that was there before do not count."""
        self._topic_id = topic_id
        self._replayed = Places()
        self._discarded = Places()
        self._turns = Turns()

    def add(self, record: AuditRecord) -> None:
        """Takes note of one record of the audit topic, of whatever kind."""
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
        """Whether this replay of the request was made, from whichever of its dead letters: a crash can make two."""
        return self._turns.has(request_id, replay_count)
