"""Plans the replay of a dead letter: the record to send, or the reason why there is none. Pure.

A replay is the original record: key, value and foreign headers with the same bytes. Headers written by hops are
removed, so that attempts and the deadline start again, and the replay count is increased.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from forebay_producer.dead_letters.letter import Letter
from forebay_schemas.contract import headers as h
from forebay_schemas.contract.envelope import deadline_ms
from forebay_schemas.contract.headers import Header, replace_headers
from forebay_schemas.contract.tiers import DEFAULT_TTL_MS, Tier
from forebay_schemas.contract.topics import REQUEST_BYTES_MAX, Pool


class Refusal(Enum):
    """Why a dead letter cannot be replayed: code, and what it means and requires."""

    NO_ENVELOPE = ("no_envelope", "no envelope, so no worker could run it: correct the sender, and submit it anew")
    CONTENT_MISSING = (
        "content_missing",
        "too large to be kept: its content lies only in the topic it was first in (see show), until that forgets it",
    )
    PAST_DEADLINE = ("past_deadline", "its expire_at has passed, so it would expire at once: give it time with --ttl")
    FOREIGN_TOPIC = ("foreign_topic", "it names no topic of this pool as the one it died in, so its tier is not known")
    REPLAYED_TOO_OFTEN = (
        "replayed_too_often",
        "it died again as often as it was replayed: look why (see show), or allow more with --replays-max",
    )
    TOO_LARGE = (
        "too_large",
        "larger than a request may be, or just so with the replay count's header or the new ttl_ms: submit less of it",
    )

    def __init__(self, code: str, meaning: str) -> None:
        self.code = code
        self.meaning = meaning


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The record that replays ``letter``. ``replay_count``: as in its header.

    ``ttl_ms``: its time to live from the send on.
    """

    letter: Letter
    tier: Tier
    ttl_ms: int
    request_id: str
    replay_count: int
    topic: str
    key: bytes | None
    value: bytes
    headers: list[Header]

    @property
    def reason(self) -> str | None:
        """The reason code the letter died for."""
        return self.letter.reason


def plan_replay(
    letter: Letter,
    *,
    pool: Pool,
    topic_id: str,
    now_ms: int,
    ttl_ms: int | None,
    replays_max: int,
    default_ttl_ms: Mapping[Tier, int] = DEFAULT_TTL_MS,
) -> Replay | Refusal:
    """The record of a replay at ``now_ms`` (epoch milliseconds), or the reason why there is none.

    ``topic_id``: Kafka's id of the dead-letter topic, for the header that identifies the letter. ``replays_max``: the
    most replays of a request, this one included.

    The deadline restarts: ``ttl_ms`` in the envelope counts from the enqueue of the replay. A given ``ttl_ms`` is
    written into the envelope; all its other fields, unknown ones included, are kept.
    """
    if letter.value is None and letter.reason != "undecodable":
        return Refusal.CONTENT_MISSING
    if letter.request is None or letter.value is None:
        return Refusal.NO_ENVELOPE
    if len(letter.value) > REQUEST_BYTES_MAX:
        return Refusal.TOO_LARGE
    if letter.tier is None:
        return Refusal.FOREIGN_TOPIC
    left_ms = ttl_ms
    if left_ms is None:
        ends_ms = deadline_ms(letter.request, tier=letter.tier, first_enqueued_at=now_ms, default_ttl_ms=default_ttl_ms)
        left_ms = ends_ms - now_ms
    if left_ms <= 0:
        return Refusal.PAST_DEADLINE
    count = letter.history.replay_count + 1
    if count > replays_max:
        return Refusal.REPLAYED_TOO_OFTEN
    kept = [(name, value) for name, value in letter.headers if not h.is_of_hops(name)]
    return Replay(
        letter=letter,
        tier=letter.tier,
        ttl_ms=left_ms,
        request_id=letter.request.request_id,
        replay_count=count,
        topic=pool.requests(letter.tier),
        key=letter.key,
        value=letter.value if ttl_ms is None else letter.envelopes.replace(letter.value, {"ttl_ms": ttl_ms}),
        headers=replace_headers(
            kept, {h.REPLAY_COUNT: str(count), h.REPLAY_OF: replay_of(topic_id, letter.partition, letter.offset)}
        ),
    )


def replay_of(topic_id: str, partition: int, offset: int) -> str:
    """The value of the header that identifies the replayed dead letter."""
    return f"{topic_id}/{partition}/{offset}"
