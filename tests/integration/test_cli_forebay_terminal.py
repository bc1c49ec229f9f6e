"""Output at a terminal of 80 columns: each table keeps the columns that matter, and no line is wrapped."""

from __future__ import annotations

import json
import re
import uuid
from typing import TYPE_CHECKING

import pytest

from forebay_schemas.contract.reasons import Reason, Status
from forebay_schemas.contract.results import Result
from harness.dead_letters import command_of, value_of, write_letters
from harness.live_pool import envelope
from harness.producer_pool import ProducerPool
from harness.written_results import write_records, write_results

if TYPE_CHECKING:
    from harness.live_pool import LivePool

COLUMNS = 80


def rows_of(lines: list[str], *, within: int = COLUMNS) -> list[list[str]]:
    """The words of each line; none may be wider than the terminal."""
    assert [line for line in lines if len(line) > within] == []
    return [line.split() for line in lines if line.strip()]


@pytest.mark.parametrize("by", ["reason", "tenant"])
def test_dead_letters_list_keeps_names_and_counts(pool: LivePool, by: str) -> None:
    ids = [str(uuid.uuid4()) for _ in range(3)]
    write_letters(pool, [(one, value_of(one, tenant="a-tenant-with-a-rather-long-name")) for one in ids])
    lines = command_of(pool).at_terminal("dead-letters", "list", "--by", by, columns=COLUMNS)
    header, row = rows_of(lines[:2])
    assert header[:4] == [by, "open", "replayed", "discarded"]
    name = "backend_error" if by == "reason" else "a-tenant-with-a-rather-long-name"
    assert row[:4] == [name, "3", "0", "0"]
    wide = command_of(pool).at_terminal("dead-letters", "list", "--by", by, columns=250)
    assert wide[0].split()[-1] == "sample_ids"


def test_history_keeps_what_was_done(pool: LivePool) -> None:
    write_letters(pool, [("a", value_of("a"))])
    command_of(pool).run("dead-letters", "discard", "--reason", "backend_error", "--yes")
    header, row = rows_of(command_of(pool).at_terminal("dead-letters", "history", columns=COLUMNS))
    assert [name for name in ("started_at", "action", "letters", "ending") if name not in header] == []
    assert "discard" in row
    assert "1" in row


def test_topics_describe_keeps_names_states_and_counts(pool: LivePool) -> None:
    header, *rows = rows_of(command_of(pool).at_terminal("topics", "describe", columns=COLUMNS))
    assert header[:3] == ["topic", "state", "partitions"]
    assert {"records", "drift"} <= set(header)
    assert pool.topics.results in {row[0] for row in rows}
    assert all(row[1] == "exists" for row in rows)


HOSTILE = "x\x1b]0;owned\x07\x1b[8m\x9b31m\u202e\x7f"
"""A new title, concealed text, another way to begin a sequence, text from right to left, a deletion."""


def unprintable(written: bytes) -> list[str]:
    """Characters that are neither printable nor one of our own colours and cursor moves."""
    text = written.decode()
    assert "\x1b[8m" not in text
    ours = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    return [one for one in ours if not one.isprintable() and one not in "\r\n"]


@pytest.mark.long
def test_what_others_wrote_steers_no_terminal(pool: LivePool) -> None:
    forebay = command_of(pool)
    value = value_of("a", tenant=HOSTILE, biz_type=HOSTILE, payload={"model": HOSTILE, "messages": []})
    write_letters(pool, [("a", value), (HOSTILE, HOSTILE.encode())], reason=HOSTILE)
    results = ProducerPool(kafka=pool.kafka, topics=pool.topics, forebay=forebay)
    evil = {"error": HOSTILE, "worker": HOSTILE, "body": {HOSTILE: HOSTILE}, "reason": HOSTILE}
    write_records(
        results, (b"r", json.dumps({"request_id": "r", "status": "failed", "finished_at": 1, **evil}).encode())
    )
    write_records(results, (HOSTILE.encode(), HOSTILE.encode()))
    wanted: list[tuple[str, ...]] = [
        ("results",),
        ("results", "--output", "json"),
        ("results", "--id", HOSTILE),
        *(("dead-letters", "list", "--by", by) for by in ("reason", "tenant", "model", "error_class")),
        ("dead-letters", "list", "--output", "json"),
        ("dead-letters", "show", "a", "--payload"),
        ("dead-letters", "show", HOSTILE),
        ("dead-letters", "show", "a", "--output", "json"),
        ("dead-letters", "replay", "--reason", HOSTILE),
        ("dead-letters", "export"),
        ("dead-letters", "discard", "--id", "a", "--yes"),
        ("dead-letters", "history"),
        ("cancel", HOSTILE),
        ("topics", "describe", "--pool", "nobody"),
    ]
    shown = {arguments: forebay.bytes_at_terminal(*arguments) for arguments in wanted}
    assert {arguments: found for arguments, written in shown.items() if (found := unprintable(written))} == {}
    assert b"owned" in shown["results",]
    bad = forebay.bytes_at_terminal("submit", "-", stdin=json.dumps({"biz_type": HOSTILE, "payload": {}}).encode())
    assert b"biz_type" in bad
    assert unprintable(bad) == []


def test_submit_and_results_and_backlog_do_not_wrap(pool: LivePool) -> None:
    request_id = str(uuid.uuid4())
    forebay = command_of(pool)
    line = json.dumps(envelope(request_id)).encode()
    submitted = rows_of(forebay.at_terminal("submit", "-", "--output", "table", columns=COLUMNS, stdin=line))
    assert submitted[1][:1] == [request_id]
    result = Result(
        request_id=request_id,
        status=Status.FAILED,
        reason=Reason.DEADLINE_UNREACHABLE.code,
        tier="mid",
        error="an error that is much longer than what is left of a line of eighty columns",
        finished_at=1,
    )
    write_results(ProducerPool(kafka=pool.kafka, topics=pool.topics, forebay=forebay), result)
    header, row = rows_of(forebay.at_terminal("results", columns=COLUMNS))
    assert header[:3] == ["request_id", "status", "reason"]
    assert row[:3] == [request_id, "failed", "deadline_unreachable"]
    header, *tiers = rows_of(forebay.at_terminal("backlog", columns=COLUMNS))
    assert [row[0] for row in tiers] == ["high", "mid", "low"]
    cancelled = rows_of(forebay.at_terminal("cancel", request_id, "--wait", "0", "--output", "table", columns=COLUMNS))
    assert cancelled[1][0] == request_id
