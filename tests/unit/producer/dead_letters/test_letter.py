"""Dead letters by the table: what one says, what a replay sends, what cannot be replayed."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import dataclass, field
from typing import Any

import pytest

from forebay_producer.dead_letters.audit import AuditIndex, DiscardAudit, ReplayAudit
from forebay_producer.dead_letters.letter import Letter, LetterDecoder
from forebay_producer.dead_letters.replay_plan import Refusal, Replay, plan_replay
from forebay_producer.dead_letters.state import State, state_of
from forebay_producer.dead_letters.views import view_of, view_text
from forebay_schemas.contract.headers import Header
from forebay_schemas.contract.topics import REQUEST_BYTES_MAX, Pool
from forebay_schemas.formats.avro import AvroCodec

POOL = Pool("p")
NOW_MS = 1_900_000_000_000
FOREIGN: list[Header] = [("x-a", b"\x00\xff"), ("x-none", None), ("x-a", b"2"), ("traceparent", b"00-aa-bb-01")]
ENVELOPE: dict[str, Any] = {"request_id": "r", "biz_type": "chat_completion", "payload": {"model": "m"}, "own": [1.50]}


@dataclass
class StoredRecord:
    """A record as it was read."""

    stored_value: bytes | None
    stored_headers: list[Header]
    stored_key: bytes | None = b"r"
    stored_at: tuple[int, int] = (0, 7)
    timestamp_ms: int = NOW_MS
    replaced: list[Any] = field(default_factory=list)

    def partition(self) -> int:
        return self.stored_at[0]

    def offset(self) -> int:
        return self.stored_at[1]

    def key(self) -> bytes | None:
        return self.stored_key

    def value(self) -> bytes | None:
        return self.stored_value

    def headers(self) -> list[Header]:
        return self.stored_headers

    def set_headers(self, value: Any, /) -> None:
        self.replaced.append(value)

    def timestamp(self) -> tuple[int, int]:
        return 1, self.timestamp_ms


def letter(
    envelope: object = ENVELOPE,
    *,
    value: bytes | None = b"",
    reason: str = "backend_error",
    topic: str = "forebay.p.requests.high",
    error: str = "boom\x1b[31m",
    more: list[Header] | None = None,
    **record: Any,
) -> Letter:
    """A dead letter as a worker writes it; ``value`` as it is, or ``envelope`` as JSON."""
    headers: list[Header] = [
        *FOREIGN,
        *(more or []),
        ("forebay-reason", reason.encode()),
        ("forebay-attempt", b"4"),
        ("forebay-first-enqueued-at", b"1800000000000"),
        ("forebay-not-before", b"1800000001000"),
        ("forebay-worker", b"w-1"),
        ("kafka_dlt-original-topic", topic.encode()),
        ("kafka_dlt-original-partition", b"2"),
        ("kafka_dlt-original-offset", b"11"),
        ("kafka_dlt-exception-fqcn", b"forebay.backend_error"),
        ("kafka_dlt-exception-message", error.encode()),
    ]
    whole = json.dumps(envelope).encode() if value == b"" else value
    return LetterDecoder(POOL).decode(StoredRecord(stored_value=whole, stored_headers=headers, **record))


def plan(one: Letter, ttl_ms: int | None = None, replays_max: int = 3) -> Replay | Refusal:
    return plan_replay(one, pool=POOL, topic_id="id", now_ms=NOW_MS, ttl_ms=ttl_ms, replays_max=replays_max)


@pytest.mark.parametrize(
    ("topic", "to"),
    [
        ("forebay.p.requests.high", "forebay.p.requests.high"),
        ("forebay.p.requests.low", "forebay.p.requests.low"),
        ("forebay.p.retry.mid.5s", "forebay.p.requests.mid"),
    ],
)
def test_a_replay_is_the_original_record_with_its_hops_taken_off(topic: str, to: str) -> None:
    one = letter(topic=topic, stored_key=b"\x00key")
    replay = plan(one)
    assert isinstance(replay, Replay)
    assert (replay.topic, replay.key, replay.value) == (to, b"\x00key", one.value)
    assert replay.headers == [*FOREIGN, ("forebay-replay-count", b"1"), ("forebay-replay-of", b"id/0/7")]
    assert replay.replay_count == 1


def test_the_replay_count_grows_and_stands_once() -> None:
    before: list[Header] = [("forebay-replay-count", b"2"), ("forebay-replay-of", b"id/3/4")]
    replay = plan(letter(more=[*before, ("forebay-tenant", b"acme")]))
    assert isinstance(replay, Replay)
    ours = [("forebay-replay-count", b"3"), ("forebay-replay-of", b"id/0/7")]
    assert replay.headers == [*FOREIGN, ("forebay-tenant", b"acme"), *ours]


@pytest.mark.parametrize(
    ("count", "replays_max", "refused"), [(0, 1, False), (1, 1, True), (2, 3, False), (3, 3, True)]
)
def test_what_died_again_so_often_is_not_replayed_once_more(count: int, replays_max: int, refused: bool) -> None:
    found = plan(letter(more=[("forebay-replay-count", str(count).encode())]), replays_max=replays_max)
    assert (found is Refusal.REPLAYED_TOO_OFTEN) is refused


@pytest.mark.parametrize(
    ("fields", "ttl_ms", "left_ms"),
    [
        ({}, None, 5_000),
        ({"ttl_ms": 700}, None, 700),
        ({"ttl_ms": 700}, 9_000, 9_000),
        ({"expire_at": NOW_MS + 60}, None, 60),
    ],
)
def test_a_replay_has_its_own_time_to_live_or_its_tiers_or_what_it_is_given(
    fields: dict[str, Any], ttl_ms: int | None, left_ms: int
) -> None:
    replay = plan(letter({**ENVELOPE, **fields}), ttl_ms)
    assert isinstance(replay, Replay)
    assert replay.ttl_ms == left_ms


LATE = NOW_MS - 1


@pytest.mark.parametrize(
    ("one", "ttl_ms", "refusal"),
    [
        (letter(), None, None),
        (letter(value=b"garbage", reason="undecodable"), None, Refusal.NO_ENVELOPE),
        (letter(value=b"garbage", reason="undecodable"), 1_000, Refusal.NO_ENVELOPE),
        (letter(value=None, reason="undecodable"), None, Refusal.NO_ENVELOPE),
        (letter(value=None), None, Refusal.CONTENT_MISSING),
        (letter(topic="forebay.other.requests.high"), None, Refusal.FOREIGN_TOPIC),
        (letter({**ENVELOPE, "expire_at": LATE}), None, Refusal.PAST_DEADLINE),
        (letter({**ENVELOPE, "expire_at": LATE}), 1_000, None),
        (letter({**ENVELOPE, "expire_at": LATE, "ttl_ms": 5}), None, None),
        (letter({**ENVELOPE, "expire_at": LATE, "sent_at": LATE - 5_000}), None, None),
        (letter({**ENVELOPE, "expire_at": NOW_MS + 60_000}), None, None),
    ],
)
def test_what_cannot_be_replayed_says_why(one: Letter, ttl_ms: int | None, refusal: Refusal | None) -> None:
    found = plan(one, ttl_ms)
    assert (found if isinstance(found, Refusal) else None) is refusal


def test_a_new_ttl_changes_nothing_else_in_the_envelope() -> None:
    value = b'{"request_id":"r","ttl_ms":5,"biz_type":"x","payload":{"a":1.50,"b":"\\u00e9"},"own":{"z":[1e2]}}'
    replay = plan(letter(value=value), ttl_ms=60_000)
    assert isinstance(replay, Replay)
    assert replay.value == value.replace(b'"ttl_ms":5', b'"ttl_ms":60000')


def test_a_letter_is_shown_without_its_payload_unless_asked() -> None:
    hidden = view_of(letter(), state=State.OPEN, deeds=[], payload=False)
    assert "payload" not in hidden["envelope"]
    assert (hidden["reason"], hidden["attempt"], hidden["error_class"]) == ("backend_error", 4, "forebay.backend_error")
    assert ["x-a", {"base64": "AP8="}] in hidden["headers"]
    assert (
        bytes(view_of(letter(), state=State.OPEN, deeds=[], payload=True)["envelope"]["payload"]) == b'{"model": "m"}'
    )
    garbage = view_of(letter(value=b"\xff"), state=State.OPEN, deeds=[], payload=False)
    assert "value" not in garbage
    assert garbage["problem"]


def test_what_a_stranger_sent_does_not_steer_the_terminal() -> None:
    text = view_text(view_of(letter(), state=State.OPEN, deeds=[], payload=True))
    assert "\x1b" not in text
    assert "boom\\x1b[31m" in text


def test_people_are_shown_times_in_utc_and_programs_epoch_milliseconds() -> None:
    view = view_of(letter(timestamp_ms=1_769_850_000_000), state=State.OPEN, deeds=[], payload=False)
    assert view["at"] == 1_769_850_000_000
    view |= {"first_enqueued_at": 1_769_850_000_123}
    view["original"] |= {"timestamp": "1769850001000", "offset": "1769850001000"}
    lines = [" ".join(line.split()) for line in view_text(view).splitlines()]
    assert "at 2026-01-31T09:00:00Z" in lines
    assert "first_enqueued_at 2026-01-31T09:00:00.123Z" in lines
    assert "original timestamp 2026-01-31T09:00:01Z" in lines
    assert "original offset 1769850001000" in lines


@pytest.mark.parametrize("said", ["-1e9", "99999999999999999", "soon\x1b[0m", "", None])
def test_a_time_that_is_none_is_shown_as_it_is(said: str | None) -> None:
    view = view_of(letter(), state=State.OPEN, deeds=[], payload=False)
    view["original"] |= {"timestamp": said}
    [line] = [line for line in view_text(view).splitlines() if line.startswith("original timestamp")]
    assert line.removeprefix("original timestamp").strip() == ("-" if said is None else said.replace("\x1b", "\\x1b"))


@pytest.mark.parametrize(
    ("one", "name"),
    [
        (letter(), "r"),
        (letter(value=b"?", stored_key=b"the key"), "the key"),
        (letter(value=b"?", stored_key=b"\xff"), "0:7"),
        (letter(value=b"?", stored_key=None), "0:7"),
    ],
)
def test_a_letter_has_a_name_and_answers_to_it(one: Letter, name: str) -> None:
    assert one.name == name
    assert one.is_called(frozenset({name, "other"})) == {name}
    assert one.is_called(frozenset({"0:7"})) == {"0:7"}
    assert one.is_called(frozenset({""})) == set()


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (letter({**ENVELOPE, "tenant": "acme"}), ("r", "m", "acme", "chat_completion")),
        (letter(more=[("forebay-tenant", b"of the header")]), ("r", "m", "of the header", "chat_completion")),
        (letter({**ENVELOPE, "priority": "wrong"}), ("r", "m", None, "chat_completion")),
        (letter({**ENVELOPE, "payload": [1]}), ("r", None, None, "chat_completion")),
        (letter({**ENVELOPE, "payload": {"model": {}}}), ("r", None, None, "chat_completion")),
        (letter({"request_id": 5, "biz_type": [], "tenant": ""}), (None, None, None, None)),
        (letter({**ENVELOPE, "payload": {"model": "x" * 9_999}}), ("r", "x" * 200, None, "chat_completion")),
        (letter(value=b'{"request_id": "half", "biz_type": "x", "payl'), ("half", None, None, None)),
        (letter(value=b"\xff\x00"), (None, None, None, None)),
        (letter(value=b"[" * 100_000), (None, None, None, None)),
        (letter(value=None), (None, None, None, None)),
    ],
)
def test_what_a_letter_says_of_itself_is_read_even_where_it_is_no_envelope(
    one: Letter, said: tuple[str | None, ...]
) -> None:
    assert (one.request_id, one.model, one.tenant, one.biz_type) == said
    assert (one.request is None) is (one.problem is not None)


@pytest.mark.parametrize("field", ["request_id", "biz_type", "tenant", "payload", "model"])
def test_looking_at_a_letter_makes_nothing_of_what_stands_in_the_place_of_a_name(field: str) -> None:
    """8 MiB of empty lists there were 190 MB of Python objects, of each letter that was listed. Here: an eighth."""
    lists: list[list[None]] = [[] for _ in range(125_000)]
    fields: dict[str, Any] = (
        {**ENVELOPE, "payload": {"model": lists}} if field == "model" else {**ENVELOPE, field: lists}
    )
    one = letter(fields)
    tracemalloc.start()
    try:
        assert [one.request_id, one.model, one.tenant, one.biz_type].count(None) >= 1
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_letter_that_is_too_large_to_be_sent_again_is_refused_before_it_is_sent() -> None:
    large = letter({**ENVELOPE, "payload": {"x": "y" * REQUEST_BYTES_MAX}})
    assert plan_replay(large, pool=POOL, topic_id="t", now_ms=NOW_MS, ttl_ms=None, replays_max=3) is Refusal.TOO_LARGE


def test_a_letter_is_replayed_or_discarded_by_its_place_or_replayed_by_its_request() -> None:
    handled = AuditIndex(topic_id="t")
    first, second = letter(), letter(stored_at=(0, 8), stored_key=None)
    assert state_of(first, handled) is State.OPEN
    handled.add(DiscardAudit(at=NOW_MS, run_id="x", by="me", dead_letter_topic_id="t", places=[(0, 7)]))
    assert (state_of(first, handled), state_of(second, handled)) == (State.DISCARDED, State.OPEN)
    handled.add(
        ReplayAudit(
            at=NOW_MS,
            by="me",
            dead_letter_topic_id="t",
            partition=3,
            offset=3,
            request_id="r",
            replay_count=1,
            reason=None,
            topic="forebay.p.requests.high",
            to_partition=0,
            to_offset=0,
            ttl_ms=None,
        )
    )
    assert (state_of(first, handled), state_of(second, handled)) == (State.REPLAYED, State.REPLAYED)
    assert state_of(letter(more=[("forebay-replay-count", b"1")], stored_at=(0, 9)), handled) is State.OPEN


def test_a_dead_letter_in_avro_is_replayed_as_it_was_and_with_time_given_in_avro_too() -> None:
    fields = {"request_id": "r-1", "biz_type": "chat_completion", "payload": {"model": "m"}, "later": [1, 2]}
    value = AvroCodec(schema_id=None).encode(fields)
    one = letter(value=value)
    assert (one.request_id, one.model) == ("r-1", "m")
    as_it_was, with_time = plan(one), plan(one, ttl_ms=60_000)
    assert isinstance(as_it_was, Replay)
    assert isinstance(with_time, Replay)
    assert as_it_was.value == value
    assert with_time.value == AvroCodec(schema_id=None).encode(fields | {"ttl_ms": 60_000})
