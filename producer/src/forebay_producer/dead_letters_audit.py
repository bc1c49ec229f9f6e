"""Which dead letters were replayed: the record of it on the audit topic, and the memory made of all such records. Pure.

A replay is delivered first and its record right after it. A run that is killed between the two has replayed what no
record tells of, and the next run sends it again, with the same replay count: workers skip it by request id and replay
count when they know the outcome, and of two results with both equal the first counts. There is no other way to a
repeat, but for two runs at the same time.
"""

from __future__ import annotations

from typing import Final

import msgspec

REMEMBERED_REPLAYS_MAX: Final = 200_000
"""So many (request id, replay count) pairs are kept: 30 MB. All places of replayed dead letters are kept, as bits."""

_BLOCK_BITS: Final = 1 << 16


class ReplayAudit(msgspec.Struct, frozen=True, gc=False, kw_only=True, tag_field="action", tag="replay"):
    """One replay. ``at``: epoch milliseconds. ``by``: user and host.

    ``dead_letter_topic_id``, ``partition``, ``offset``: which dead letter; the id is Kafka's own, since a topic that is
    made anew counts from 0 again. ``replay_count``: what the replay's header says. ``topic``, ``to_partition``,
    ``to_offset``: where the replay lies. ``ttl_ms``: the time it was given, None when the envelope's own counts.
    """

    at: int
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


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(ReplayAudit)


def encode_audit(audit: ReplayAudit) -> bytes:
    """The record value."""
    return _encoder.encode(audit)


def decode_audit(value: bytes | None) -> ReplayAudit | None:
    """The replay that a record tells of; None for records of other actions, and for what is none at all."""
    if value is None:
        return None
    try:
        return _decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


class Replayed:
    """Which dead letters of one topic were replayed."""

    def __init__(self, *, topic_id: str) -> None:
        self._topic_id = topic_id
        self._blocks: dict[tuple[int, int], bytearray] = {}
        self._requests: dict[tuple[str, int], None] = {}

    def add(self, audit: ReplayAudit) -> None:
        """Takes note of one, unless it is of a topic that was there before this one."""
        if audit.dead_letter_topic_id != self._topic_id or audit.offset < 0:
            return
        block, bit = divmod(audit.offset, _BLOCK_BITS)
        bits = self._blocks.get((audit.partition, block))
        if bits is None:
            bits = self._blocks[audit.partition, block] = bytearray(_BLOCK_BITS // 8)
        bits[bit >> 3] |= 1 << (bit & 7)
        self.add_request(audit.request_id, audit.replay_count)

    def add_request(self, request_id: str, replay_count: int) -> None:
        """This replay of the request is on its way."""
        self._requests[request_id, replay_count] = None
        if len(self._requests) > REMEMBERED_REPLAYS_MAX:
            del self._requests[next(iter(self._requests))]

    def has_place(self, partition: int, offset: int) -> bool:
        """Whether the dead letter at this place was replayed."""
        block, bit = divmod(offset, _BLOCK_BITS)
        bits = self._blocks.get((partition, block))
        return bits is not None and bool(bits[bit >> 3] >> (bit & 7) & 1)

    def has_request(self, request_id: str | None, replay_count: int) -> bool:
        """Whether this replay of the request was made, from whichever of its dead letters: a crash can make two."""
        return request_id is not None and (request_id, replay_count) in self._requests
