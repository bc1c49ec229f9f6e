"""Lines of `forebay submit`: how they are read and what they mean; durations and times on the command line."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from forebay_producer.cli.line_source import LINE_BYTES_MAX, Line, LineSource
from forebay_producer.cli.submit_lines import LineDefaults, envelope_on, is_blank, ttl_ms_of
from forebay_producer.cli.values import duration_seconds, point_in_time_ms
from forebay_producer.errors import RecordTooLargeError
from forebay_schemas.contract.tiers import TTL_MS_MAX, Tier
from forebay_schemas.errors import UsageError

NOTHING = LineDefaults(ttl_ms=None, biz_type=None)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for descriptor in (reader, writer):
        with suppress(OSError):
            os.close(descriptor)


def read_all(source: LineSource) -> list[Line]:
    lines: list[Line] = []
    while not source.ended:
        lines += source.take(timeout_seconds=5)
    return lines


def lines_in(path: Path, *, batch_lines: int = 100) -> list[Line]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return read_all(LineSource(descriptor, batch_lines=batch_lines))
    finally:
        os.close(descriptor)


def test_every_line_comes_once_with_its_number(tmp_path: Path) -> None:
    texts = [f"line {number}".encode() * (number % 50) for number in range(20_000)]
    path = tmp_path / "lines"
    path.write_bytes(b"\n".join(texts))
    assert lines_in(path) == [Line(number, text) for number, text in enumerate(texts, start=1)]


@pytest.mark.parametrize(
    ("content", "texts"), [(b"", []), (b"a", [b"a"]), (b"a\n", [b"a"]), (b"\n\na\r\n", [b"", b"", b"a\r"])]
)
def test_the_last_line_may_lack_its_end(tmp_path: Path, content: bytes, texts: list[bytes]) -> None:
    path = tmp_path / "lines"
    path.write_bytes(content)
    assert [line.text for line in lines_in(path)] == texts


def test_a_line_that_never_ends_is_skipped_and_the_next_one_is_read(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"a\n" + b"x" * (LINE_BYTES_MAX + 1) + b"\nb")
    assert lines_in(path) == [Line(1, b"a"), Line(2, None), Line(3, b"b")]


def test_lines_on_a_pipe_do_not_wait_for_others(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    source = LineSource(reader, batch_lines=1000)
    os.write(writer, b"first\nsec")
    started = time.monotonic()
    assert source.take(timeout_seconds=5) == [Line(1, b"first")]
    assert time.monotonic() - started < 4
    assert source.take(timeout_seconds=0.01) == []
    assert not source.ended
    os.write(writer, b"ond\n")
    os.close(writer)
    assert read_all(source) == [Line(2, b"second")]


def test_a_batch_has_at_most_the_lines_asked_for(pipe: tuple[int, int]) -> None:
    reader, writer = pipe

    def write() -> None:
        os.write(writer, b"x\n" * 1000)
        os.close(writer)

    thread = threading.Thread(target=write)
    thread.start()
    source = LineSource(reader, batch_lines=7)
    sizes = []
    while not source.ended:
        sizes.append(len(source.take(timeout_seconds=5)))
    thread.join()
    assert max(sizes) == 7
    assert sum(sizes) == 1000


@pytest.mark.parametrize(
    ("text", "defaults", "fields"),
    [
        ('{"messages":[]}', NOTHING, {"biz_type": "chat_completion", "payload": {"messages": []}}),
        ('{"prompt":"x"}', NOTHING, {"biz_type": "completion", "payload": {"prompt": "x"}}),
        (
            '{"prompt":"x"}',
            LineDefaults(ttl_ms=5, biz_type="mine"),
            {"biz_type": "mine", "payload": {"prompt": "x"}, "ttl_ms": 5},
        ),
        (
            '{"biz_type":"a","payload":{},"prompt":"x","extra":1}',
            LineDefaults(ttl_ms=None, biz_type="mine"),
            {"biz_type": "a", "payload": {}, "prompt": "x", "extra": 1},
        ),
        (
            '{"payload":{},"expire_at":9}',
            LineDefaults(ttl_ms=5, biz_type="b"),
            {"biz_type": "b", "payload": {}, "expire_at": 9},
        ),
        ('{"payload":{},"ttl_ms":9}', LineDefaults(ttl_ms=5, biz_type=None), {"payload": {}, "ttl_ms": 9}),
    ],
)
def test_a_line_is_an_envelope_or_a_bare_body(text: str, defaults: LineDefaults, fields: dict[str, Any]) -> None:
    assert envelope_on(Line(1, text.encode()), defaults) == fields


@pytest.mark.parametrize("text", [b"{", b"[1]", b"7", b'{"a":"\xff"}', b"null", b"[" * 100_000])
def test_what_is_no_json_object_is_explained(text: bytes) -> None:
    with pytest.raises(UsageError, match="envelope: "):
        envelope_on(Line(1, text), NOTHING)


def test_a_line_too_long_to_be_a_request_is_explained() -> None:
    with pytest.raises(RecordTooLargeError, match="payload: makes a record of"):
        envelope_on(Line(1, None), NOTHING)


def test_blank_lines_are_none() -> None:
    assert is_blank(Line(1, b" \r"))
    assert not is_blank(Line(1, b"x"))
    assert not is_blank(Line(1, None))


@pytest.mark.parametrize(
    ("text", "seconds"), [("5", 5), ("1.5s", 1.5), ("2m", 120), ("24h", 86_400), ("500ms", 0.5), (" 7 D ", 604_800)]
)
def test_durations(text: str, seconds: float) -> None:
    assert duration_seconds(text, field="--ttl") == seconds


@pytest.mark.parametrize("text", ["", "soon", "5 weeks", "1e3", "٣s", "9" * 400])
def test_bad_durations_name_the_option(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--ttl: is '.*'; give seconds, or a number with ms, s, m, h or d"):
        duration_seconds(text, field="--ttl")


@pytest.mark.parametrize("text", ["0", "0s", "-1", "-1s", "0.0 h"])
def test_a_duration_that_is_none_has_to_be_above_0(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--ttl: is '.*'; it has to be above 0"):
        duration_seconds(text, field="--ttl")


NOW_MS = 1_900_000_000_000


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("10m", NOW_MS - 600_000),
        ("30s", NOW_MS - 30_000),
        ("1899999999999", 1_899_999_999_999),
        ("2025-01-01T00:00:00Z", 1_735_689_600_000),
        ("2025-01-01T01:00:00+01:00", 1_735_689_600_000),
        ("2025-01-01T00:00:00", 1_735_689_600_000),
        ("2025-01-01", 1_735_689_600_000),
    ],
)
def test_points_in_time(text: str, time_ms: int) -> None:
    assert point_in_time_ms(text, field="--since", now_ms=NOW_MS) == time_ms


@pytest.mark.parametrize("text", ["yesterday", "2025-13-01", "", "10 years", "0s", "-1h"])
def test_bad_points_in_time_name_the_option(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--since: is "):
        point_in_time_ms(text, field="--since", now_ms=NOW_MS)


@pytest.mark.parametrize(
    "text", ["30", "2026", "20261129", "1735689600", "99999999999999999999", "-5", "1.5", "9" * 400]
)
def test_a_number_alone_is_no_point_in_time(text: str) -> None:
    with pytest.raises(
        UsageError, match=r"^--until: is '.*', a number without a unit; give a time back from now \(10m\)"
    ):
        point_in_time_ms(text, field="--until", now_ms=NOW_MS)


@pytest.mark.parametrize(
    "text", ["99999999999999999999h", "1969-12-31T23:59:59Z", "1969-12-31", "0001-01-01T00:00:00+10:00"]
)
def test_a_point_in_time_before_1970_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--until: is '.*', which is before 1970; give"):
        point_in_time_ms(text, field="--until", now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("fields", "ttl_ms"),
    [
        ({}, 5_000),  # high's default
        ({"ttl_ms": 200}, 200),
        ({"ttl_ms": 200, "expire_at": 1_700_000_009_000}, 200),
        ({"expire_at": 1_700_000_009_000}, 9_000),
        ({"expire_at": 1_700_000_009_000, "sent_at": 1_700_000_002_000}, 7_000),
        ({"expire_at": 1_900_000_000_000}, TTL_MS_MAX),
    ],
)
def test_the_time_to_a_line_s_deadline_is_what_workers_count(fields: dict[str, Any], ttl_ms: int) -> None:
    assert ttl_ms_of(fields, tier=Tier.HIGH, enqueued_at=1_700_000_000_000) == ttl_ms
