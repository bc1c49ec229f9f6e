"""Dead letters: what one says, how many there are of which kind, and which record a replay of one would be. Pure.

A replay is the original record again: key, value and foreign headers as the bytes that came. What the hops wrote is
taken off, so attempts and the deadline start anew, and its replay count is one more.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any, Final, Protocol

from forebay_producer.dead_letters_audit import Handled
from forebay_schemas import headers as h
from forebay_schemas.envelope import Request, deadline_ms, payload_hints
from forebay_schemas.envelope_problems import is_request_id
from forebay_schemas.envelope_reader import EnvelopeReader, NoSchemas
from forebay_schemas.errors import EnvelopeError
from forebay_schemas.headers import Header, History, read_history, record_headers, replace_headers
from forebay_schemas.tiers import TIERS, Tier
from forebay_schemas.topics import RETRY_DELAYS_SECONDS, Pool

SAMPLES_MAX: Final = 3
GROUPS_MAX: Final = 1_000
OTHERS: Final = "(others)"
"""What all groups beyond `GROUPS_MAX` are counted as together."""

_SPRING_PREFIX: Final = "kafka_dlt-"
_HOPS: Final = frozenset((h.ATTEMPT, h.FIRST_ENQUEUED_AT, h.NOT_BEFORE, h.REASON, h.WORKER))

_JSON_AND_OUR_AVRO: Final = EnvelopeReader(NoSchemas())


class Record(Protocol):
    """A record as confluent-kafka's Message gives it."""

    def partition(self) -> Any: ...
    def offset(self) -> Any: ...
    def key(self) -> Any: ...
    def value(self) -> Any: ...
    def headers(self) -> Any: ...
    def set_headers(self, value: Any, /) -> Any: ...
    def timestamp(self) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One dead letter, decoded. ``at_ms``: its own timestamp. ``tier``: that of the topic it died in, if it is known.

    ``request`` is None when the value is no envelope: then ``problem`` says why. ``envelopes`` has read it.
    """

    partition: int
    offset: int
    at_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[Header]
    history: History
    tier: Tier | None
    request: Request | None
    problem: EnvelopeError | None
    envelopes: EnvelopeReader

    @property
    def place(self) -> str:
        """Where it lies, as the commands name it."""
        return f"{self.partition}:{self.offset}"

    @property
    def request_id(self) -> str | None:
        """The envelope's id, if it could be read."""
        if self.request is not None:
            return self.request.request_id
        return self.problem.request_id if self.problem is not None else None

    @property
    def name(self) -> str:
        """What people call it: the request's id, else a key that can be one, else its place."""
        return self.request_id or self._key_text or self.place

    @property
    def _key_text(self) -> str | None:
        text = (self.key or b"").decode(errors="replace")
        return text if is_request_id(text) and "\ufffd" not in text else None

    def is_called(self, names: frozenset[str]) -> set[str]:
        """Which of these names are its own: its request id, its key or its place."""
        own = (self.request_id, self._key_text, self.place)
        return {name for name in own if name is not None and name in names}

    def header(self, name: str) -> str | None:
        """The last header of this name as text."""
        value = dict(self.headers).get(name)
        return None if value is None else value.decode(errors="replace")

    @property
    def reason(self) -> str | None:
        """The code of the reason it died for."""
        return self.header(h.REASON)

    @property
    def error_class(self) -> str | None:
        """The class of the error, as Spring's header has it."""
        return self.header(h.DLT_EXCEPTION_FQCN)

    @property
    def error(self) -> str | None:
        """What the error said."""
        return self.header(h.DLT_EXCEPTION_MESSAGE)

    @property
    def tenant(self) -> str | None:
        """Whose request it was: by the envelope, else by the header."""
        if self.request is not None and self.request.tenant is not None:
            return self.request.tenant
        return self.history.tenant

    @property
    def biz_type(self) -> str | None:
        """What kind of request it was."""
        return None if self.request is None else self.request.biz_type

    @property
    def model(self) -> str | None:
        """The model that the payload asks for."""
        return None if self.request is None else payload_hints(self.request).model


class LetterDecoder:
    """Decodes the dead letters of a pool."""

    def __init__(self, pool: Pool, *, envelopes: EnvelopeReader = _JSON_AND_OUR_AVRO) -> None:
        """``envelopes`` reads the values; without it, those that are framed for a Schema Registry cannot be read."""
        self._envelopes = envelopes
        self._tiers: dict[str | None, Tier] = {pool.requests(tier): tier for tier in TIERS}
        self._tiers |= {pool.retry(tier, delay): tier for tier in TIERS for delay in RETRY_DELAYS_SECONDS}

    def decode(self, record: Record) -> Letter:
        """Never raises, whatever the record holds."""
        headers = record_headers(record)
        topic = dict(headers).get(h.DLT_ORIGINAL_TOPIC)
        history = read_history(headers)
        value = record.value()
        request, problem = None, None
        try:
            request = self._envelopes.read(value, content_type=history.content_type)
        except EnvelopeError as error:
            problem = error
        return Letter(
            partition=record.partition(),
            offset=record.offset(),
            at_ms=record.timestamp()[1],
            key=record.key(),
            value=value,
            headers=headers,
            history=history,
            tier=self._tiers.get((topic or b"").decode(errors="replace")),
            request=request,
            problem=problem,
            envelopes=self._envelopes,
        )


class By(StrEnum):
    """What dead letters are grouped by."""

    REASON = "reason"
    TIER = "tier"
    TENANT = "tenant"
    BIZ_TYPE = "biz_type"
    MODEL = "model"
    ERROR_CLASS = "error-class"


def _group_of(letter: Letter, by: By) -> str | None:
    match by:
        case By.REASON:
            return letter.reason
        case By.TIER:
            return letter.tier
        case By.TENANT:
            return letter.tenant
        case By.BIZ_TYPE:
            return letter.biz_type
        case By.MODEL:
            return letter.model
        case By.ERROR_CLASS:
            return letter.error_class


@dataclass(slots=True, kw_only=True)
class Group:
    """Counts of one kind. ``open``: not replayed. Times: epoch milliseconds. ``sample_ids``: the last ones seen."""

    name: str | None
    open: int = 0
    replayed: int = 0
    first_seen: int
    last_seen: int
    sample_ids: deque[str] = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX))


class Groups:
    """Counts dead letters by kind, in memory that does not grow with their number."""

    def __init__(self, by: By) -> None:
        self._by = by
        self._groups: dict[str | None, Group] = {}

    def add(self, letter: Letter, *, replayed: bool) -> None:
        """Counts one."""
        name = _group_of(letter, self._by)
        if name not in self._groups and len(self._groups) >= GROUPS_MAX:
            name = OTHERS
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = Group(name=name, first_seen=letter.at_ms, last_seen=letter.at_ms)
        group.first_seen = min(group.first_seen, letter.at_ms)
        group.last_seen = max(group.last_seen, letter.at_ms)
        if replayed:
            group.replayed += 1
        else:
            group.open += 1
            group.sample_ids.append(letter.name)

    def ranked(self) -> list[Group]:
        """Those with the most that are not replayed first."""
        return sorted(self._groups.values(), key=lambda group: (-group.open, -group.replayed, group.name or ""))


def was_replayed(letter: Letter, handled: Handled) -> bool:
    """Whether the letter, or another one of the same death, was replayed."""
    return handled.was_replayed_from(letter.partition, letter.offset) or handled.has_request(
        letter.request_id, letter.history.replay_count + 1
    )


class Refusal(Enum):
    """Why a dead letter cannot be replayed: code, and what it means and asks for."""

    UNDECODABLE = ("undecodable", "no envelope, so no worker could run it: correct the sender, and submit it anew")
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
    TOO_LARGE = ("too_large", "with the replay count's header, or the new ttl_ms, it is larger than a request may be")

    def __init__(self, code: str, meaning: str) -> None:
        self.code = code
        self.meaning = meaning


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The record that a replay of ``letter`` is; ``replay_count`` is what its header says.

    ``ttl_ms``: how long it may take from when it is sent.
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


def plan_replay(
    letter: Letter, *, pool: Pool, topic_id: str, now_ms: int, ttl_ms: int | None, replays_max: int
) -> Replay | Refusal:
    """What a replay at ``now_ms`` (epoch milliseconds) would send, or why there cannot be one.

    ``topic_id``: Kafka's id of the dead-letter topic, for the header that says which letter it is the replay of.
    ``replays_max``: how often a request may be replayed, this time included.

    The deadline restarts: ``ttl_ms`` in the envelope counts from the replay's own enqueue. With ``ttl_ms`` given, the
    envelope says that instead; its other fields, unknown ones too, stay as they were.
    """
    if letter.value is None and letter.reason != "undecodable":
        return Refusal.CONTENT_MISSING
    if letter.request is None or letter.value is None:
        return Refusal.UNDECODABLE
    if letter.tier is None:
        return Refusal.FOREIGN_TOPIC
    left_ms = ttl_ms
    if left_ms is None:
        left_ms = deadline_ms(letter.request, tier=letter.tier, first_enqueued_at=now_ms) - now_ms
    if left_ms <= 0:
        return Refusal.PAST_DEADLINE
    count = letter.history.replay_count + 1
    if count > replays_max:
        return Refusal.REPLAYED_TOO_OFTEN
    kept = [(name, value) for name, value in letter.headers if not _is_of_hops(name)]
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
    """What the header of a replay says: which dead letter it is the replay of. There is one replay of each."""
    return f"{topic_id}/{partition}/{offset}"


def _is_of_hops(name: str) -> bool:
    return name in _HOPS or name.startswith(_SPRING_PREFIX)
