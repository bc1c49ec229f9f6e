"""The header traceparent, as W3C Trace Context has it."""

from __future__ import annotations

import pytest

from forebay_schemas.contract.trace_context import TraceContext, parse_traceparent

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_a_traceparent_is_read_and_written() -> None:
    found = parse_traceparent(f"00-{TRACE}-{SPAN}-01")
    assert found == TraceContext(TRACE, SPAN, 1)
    assert found is not None
    assert found.is_sampled
    assert str(found) == f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(("flags", "is_sampled"), [("00", False), ("01", True), ("02", False), ("ff", True)])
def test_the_last_bit_of_the_flags_says_sampled(flags: str, is_sampled: bool) -> None:
    found = parse_traceparent(f"00-{TRACE}-{SPAN}-{flags}")
    assert found is not None
    assert found.is_sampled is is_sampled


def test_a_later_version_may_say_more() -> None:
    assert parse_traceparent(f"cc-{TRACE}-{SPAN}-01-what-the-future-holds") == TraceContext(TRACE, SPAN, 1)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "00-abc-def-01",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        f" 00-{TRACE}-{SPAN}-01",
        f"cc-{TRACE}-{SPAN}-01-{'x' * 600}",
        "٠٠-" + TRACE + "-" + SPAN + "-01",
    ],
)
def test_what_breaks_the_format_is_as_if_it_were_not_there(text: str | None) -> None:
    assert parse_traceparent(text) is None
