"""Headers: strangers' are kept, ours are read or ignored, hops do not make them grow. Pure."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from forebay_schemas.contract.headers import (
    ATTEMPT,
    CONTENT_TYPE,
    DLT_EXCEPTION_MESSAGE,
    FIRST_ENQUEUED_AT,
    HEADERS_BYTES_MAX,
    HEADERS_MAX,
    NO_HISTORY,
    NOT_BEFORE,
    REASON,
    REPLAY_COUNT,
    TENANT,
    TRACEPARENT,
    Header,
    History,
    headers_size_bytes,
    read_history,
    record_headers,
    replace_headers,
)
from simulated.ports import MemoryRecord

NOW = b"1760000000000"


@pytest.mark.parametrize(
    "headers", [None, [], [("__TypeId__", b"com.example.Order")], [("x", None)], [("b3", b"\xff\xfe")], [("", b"")]]
)
def test_a_record_without_our_headers_is_a_first_try(headers: list[Header] | None) -> None:
    assert read_history(headers) == NO_HISTORY == History(attempt=1)


@pytest.mark.parametrize(
    ("header", "history"),
    [
        ((ATTEMPT, b"2"), History(attempt=2)),
        ((ATTEMPT, b"0"), NO_HISTORY),
        ((ATTEMPT, b"-1"), NO_HISTORY),
        ((ATTEMPT, b"+2"), NO_HISTORY),
        ((ATTEMPT, b" 2"), NO_HISTORY),
        ((ATTEMPT, b"1_0"), NO_HISTORY),
        ((ATTEMPT, b"2.0"), NO_HISTORY),
        ((ATTEMPT, "２".encode()), NO_HISTORY),
        ((ATTEMPT, b"9" * 19), NO_HISTORY),
        ((ATTEMPT, b"9" * 10_000), NO_HISTORY),
        ((ATTEMPT, b""), NO_HISTORY),
        ((ATTEMPT, None), NO_HISTORY),
        ((FIRST_ENQUEUED_AT, NOW), History(first_enqueued_at=1_760_000_000_000)),
        ((FIRST_ENQUEUED_AT, b"1760000000"), NO_HISTORY),  # seconds would make every deadline long past
        ((FIRST_ENQUEUED_AT, b"1760000000000000"), NO_HISTORY),  # microseconds would make it never come
        ((FIRST_ENQUEUED_AT, b"0"), NO_HISTORY),
        ((NOT_BEFORE, NOW), History(not_before=1_760_000_000_000)),
        ((NOT_BEFORE, b"5"), NO_HISTORY),
        ((REPLAY_COUNT, b"3"), History(replay_count=3)),
        ((REPLAY_COUNT, b"x"), NO_HISTORY),
        ((TENANT, "Team Ä".encode()), History(tenant="Team Ä")),
        ((TENANT, b"\xff"), NO_HISTORY),
        ((TENANT, b""), NO_HISTORY),
        ((TENANT, b"a\nb"), NO_HISTORY),
        ((TRACEPARENT, b"00-aa-bb-01"), History(traceparent="00-aa-bb-01")),
        ((CONTENT_TYPE, b"application/json"), History(content_type="application/json")),
        ((CONTENT_TYPE, b"\xc3"), NO_HISTORY),
    ],
)
def test_a_header_is_read_or_taken_as_not_there(header: Header, history: History) -> None:
    assert read_history([("foreign", b"1"), header]) == history


def test_of_equal_names_the_last_one_counts() -> None:
    assert read_history([(ATTEMPT, b"2"), (ATTEMPT, b"3")]).attempt == 3
    assert read_history([(ATTEMPT, b"2"), (ATTEMPT, None)]).attempt == 1


def test_foreign_headers_keep_their_bytes_their_order_and_their_number() -> None:
    foreign: list[Header] = [("a", b"\xff\x00"), ("Ü", None), ("a", b"2"), ("kafka_x", b"")]
    changed = replace_headers([foreign[0], (ATTEMPT, b"1"), *foreign[1:], (ATTEMPT, b"1")], {ATTEMPT: "2", REASON: "r"})
    assert changed == [*foreign, (ATTEMPT, b"2"), (REASON, b"r")]
    assert replace_headers(None, {}) == []


def test_the_twentieth_hop_is_no_bigger_than_the_first() -> None:
    headers: list[Header] = [("foreign", b"x" * 100), ("foreign", None)]
    sizes = []
    for hop in range(1, 21):
        ours = {ATTEMPT: f"{hop:02}", FIRST_ENQUEUED_AT: NOW.decode(), REASON: "backend_error"}
        headers = replace_headers(headers, ours | {DLT_EXCEPTION_MESSAGE: f"failed {hop:02}"})
        sizes.append(headers_size_bytes(headers))
    assert len(set(sizes)) == 1
    assert len(headers) == 6
    assert sizes[0] < HEADERS_BYTES_MAX


def test_text_that_utf_8_cannot_say_is_written_all_the_same() -> None:
    assert replace_headers([], {DLT_EXCEPTION_MESSAGE: "bad \ud800 words"}) == [(DLT_EXCEPTION_MESSAGE, b"bad ? words")]


def test_sizes_count_bytes_not_characters() -> None:
    assert headers_size_bytes(None) == 0
    assert headers_size_bytes([("ü", "世".encode()), ("a", None)]) == 2 + 3 + 1


def test_a_record_with_more_headers_than_anybody_needs_counts_as_one_without() -> None:
    """Two bytes each: 8 MiB of them are four million, and 260 MB of Python objects for as long as the record waits."""
    most = MemoryRecord(header_list=[("a", b"")] * HEADERS_MAX)
    assert len(record_headers(most)) == HEADERS_MAX
    more = MemoryRecord(header_list=[("a", b"")] * (HEADERS_MAX + 1))
    with capture_logs() as logged:
        assert record_headers(more) == []
        assert record_headers(more) == []
    assert not more.header_list
    assert [entry["event"] for entry in logged] == ["a record's headers are left out: there are too many"]


@pytest.mark.parametrize("name", ["forebay-tenant", "traceparent", "content-type"])
def test_a_header_as_large_as_a_record_is_no_name(name: str) -> None:
    assert read_history([(name, b"x" * 1_000_000)]) == read_history([])
