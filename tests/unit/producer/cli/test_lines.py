"""Lines of `forebay submit`: how they are read and what they mean; durations and times on the command line."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from forebay_producer.cli.control import _on_lines
from forebay_producer.cli.line_source import LINE_BYTES_MAX, Line, LineSource
from forebay_producer.cli.submit_lines import LineDefaults, envelope_on, is_blank, ttl_ms_of
from forebay_producer.cli.values import point_in_time_ms
from forebay_producer.client.control_client import Target
from forebay_producer.errors import RecordTooLargeError
from forebay_schemas.contract.tiers import TTL_MS_MAX, Tier
from forebay_schemas.errors import UsageError
from forebay_schemas.runtime.durations import duration_seconds

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


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"messages": []}, "chat_completion"),
        ({"prompt": "x"}, "completion"),
        ({"input": "x"}, "embedding"),
        ({"input": ["x", "y"], "encoding_format": "float"}, "embedding"),
        ({"input": [[1, 2], [3]]}, "embedding"),
        ({"input": "x", "instructions": "be short"}, "response"),
        ({"input": "x", "stream": True}, "response"),
        ({"input": [{"role": "user", "content": "x"}]}, "response"),
    ],
)
def test_the_kind_of_a_bare_body_is_told_from_its_fields(body: dict[str, Any], kind: str) -> None:
    body = {"model": "m", **body}
    assert envelope_on(Line(1, json.dumps(body).encode()), NOTHING) == {"biz_type": kind, "payload": body}


def test_what_the_envelope_knows_is_lifted_out_of_a_bare_body() -> None:
    body = {"model": "m", "messages": [], "user": "u"}
    own = {
        "request_id": "mine-1",
        "biz_type": "mine",
        "priority": "high",
        "ttl_ms": 2000,
        "tenant": "t",
        "max_attempts": 2,
        "reply": {"to": "x"},
        "sent_at": 1_700_000_000_000,
        "expire_at": 1_700_000_009_000,
    }
    line = Line(1, json.dumps(own | body).encode())
    assert envelope_on(line, LineDefaults(ttl_ms=5, biz_type="other")) == own | {"payload": body}


@pytest.mark.parametrize("priority", [0, 9, 1.5, True])
def test_a_number_that_may_be_the_engine_s_is_refused_in_a_bare_body(priority: float) -> None:
    line = Line(1, json.dumps({"messages": [], "priority": priority}).encode())
    with pytest.raises(UsageError, match=r"^priority: is .* in a bare body, .*; put the body into payload"):
        envelope_on(line, NOTHING)


def batch_line(**fields: Any) -> Line:
    whole = {"custom_id": "request-1", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": []}}
    return Line(1, json.dumps(whole | fields).encode())


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("/v1/chat/completions", "chat_completion"),
        ("/chat/completions", "chat_completion"),
        ("https://api.example.com/v1/chat/completions?x=1", "chat_completion"),
        ("/v1/completions", "completion"),
        ("/v1/embeddings", "embedding"),
        ("/v1/responses", "response"),
        ("/v1/images/generations", "image_generation"),
    ],
)
def test_a_line_of_openai_s_batches_is_understood(url: str, kind: str) -> None:
    fields = envelope_on(batch_line(url=url), LineDefaults(ttl_ms=5, biz_type="other"))
    assert fields == {"request_id": "request-1", "biz_type": kind, "payload": {"messages": []}, "ttl_ms": 5}


def test_a_batch_line_may_say_what_an_envelope_says() -> None:
    fields = envelope_on(batch_line(priority=9, tenant="t", url="/v1/moderations", biz_type="mine"), NOTHING)
    assert fields == {
        "request_id": "request-1",
        "biz_type": "mine",
        "payload": {"messages": []},
        "priority": 9,
        "tenant": "t",
    }
    named = envelope_on(batch_line(url="/v1/moderations"), LineDefaults(ttl_ms=None, biz_type="moderation"))
    assert named["biz_type"] == "moderation"


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"url": "/v1/moderations"}, r"^url: is '/v1/moderations'; give one of /v1/chat/completions, .* --biz-type"),
        ({"url": None}, r"^url: is missing; give one of"),
        ({"url": 5}, r"^url: is 5; give one of"),
        ({"method": "GET"}, r"^method: is 'GET'; give POST"),
        ({"body": []}, r"^body: is \[\]; put the request body there"),
        ({"body": None}, r"^body: is missing; put the request body there"),
        ({"custom_id": ""}, r"^custom_id: is ''; give 1 to 200 printable characters"),
        ({"custom_id": 7}, r"^custom_id: is 7; give 1 to 200 printable characters"),
        ({"request_id": "another"}, r"^custom_id: is another than request_id"),
    ],
)
def test_a_batch_line_that_cannot_be_is_explained(fields: dict[str, Any], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        envelope_on(batch_line(**fields), NOTHING)


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


def test_a_byte_order_mark_at_the_start_of_a_file_is_no_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"\xef\xbb\xbf{}\n{}\n\xef\xbb\xbf{}\nx\xef\xbb\xbf")
    assert [line.text for line in lines_in(path)] == [b"{}", b"{}", b"{}", b"x\xef\xbb\xbf"]


def test_the_lines_of_submit_are_read_with_a_byte_order_mark_too(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.write(writer, b'\xef\xbb\xbf{"request_id":"a"}\n\n{"request_id":"b","topic":"t","partition":1,"offset":2}')
    os.close(writer)
    assert _on_lines(iter(read_all(LineSource(reader, batch_lines=10)))) == [Target("a"), Target("b", "t", 1, 2)]
