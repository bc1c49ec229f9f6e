"""`forebay dead-letters discard` and `history` on a real broker: put away, counted apart, written down."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from harness.dead_letters import command_of, letters, requests, value_of, write_letters

if TYPE_CHECKING:
    from harness.live_pool import LivePool


def test_what_is_discarded_is_counted_apart_never_replayed_and_written_down(pool: LivePool) -> None:
    write_letters(pool, ((f"r-{number}", value_of(f"r-{number}")) for number in range(5)))
    write_letters(pool, [("keep", value_of("keep")), ("garbage", b"\xff")], reason="handler_failed")
    command = command_of(pool)

    [dry] = letters(pool, "discard", "--reason", "backend_error")
    assert (dry["dry_run"], dry["reasons"], dry["discarded"]) == (True, {"backend_error": 5}, 0)
    assert pool.kafka.read_all(pool.topics.audit) == []
    [done] = letters(
        pool, "discard", "--reason", "backend_error", "--id", "r-0", "--id", "r-1", "--id", "x", "--yes", code=4
    )
    assert (done["discarded"], done["not_found"]) == (2, ["x"])
    assert letters(pool, "discard", "--reason", "backend_error", "--yes")[0]["discarded"] == 3
    [again] = letters(pool, "discard", "--reason", "backend_error", "--yes")
    assert (again["discarded"], again["already_discarded"]) == (0, 5)

    listed = command.run("dead-letters", "list", "--output", "json")
    assert [(one["reason"], one["open"]) for one in listed.records] == [("handler_failed", 2)]
    assert "2 open, 0 replayed, 5 discarded" in listed.err
    only = command.run("dead-letters", "list", "--reason", "backend_error")
    assert (only.out, only.err) == ("", "no dead letters match --reason backend_error but 5 that are discarded\n")
    assert command.run("dead-letters", "replay", "--reason", "backend_error", "--yes").code == 0
    assert requests(pool) == []

    [shown] = letters(pool, "show", "r-0")
    assert shown["state"] == "discarded"
    assert [deed["action"] for deed in shown["history"]] == ["discard"]
    audits = [json.loads(record.value() or b"") for record in pool.kafka.read_all(pool.topics.audit)]
    assert sum(len(one["places"]) for one in audits if one["action"] == "discard") == 5


def test_history_has_a_line_for_each_run(pool: LivePool) -> None:
    command = command_of(pool)
    assert command.run("dead-letters", "history").err == "nothing was replayed or discarded\n"
    write_letters(pool, [("one", value_of("one")), ("two", value_of("two"))])
    letters(pool, "replay", "--id", "one", "--yes")
    letters(pool, "discard", "--id", "two", "--since", "2026-01-01T00:00:00Z", "--yes")
    first, second = letters(pool, "history")
    assert (first["action"], first["letters"], first["ending"], first["selection"]) == ("replay", 1, "done", "--id one")
    assert (second["action"], second["letters"], second["ending"]) == ("discard", 1, "done")
    assert second["selection"] == "--id two --since 2026-01-01T00:00:00Z"
    assert "@" in second["by"]
    assert first["started_at"] <= first["ended_at"] <= second["started_at"] <= second["ended_at"]
    table = command.run("dead-letters", "history").out.splitlines()
    assert [line.split()[2:5] for line in table[1:]] == [["replay", "1", "done"], ["discard", "1", "done"]]
    [shown] = letters(pool, "show", "one")
    [deed] = shown["history"]
    assert (shown["state"], deed["action"], deed["replay_count"]) == ("replayed", "replay", 1)
    assert "history " in command.run("dead-letters", "show", "one").out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "needs a selection"),
        (("--id", "nobody", "--yes"), 1, "error: no dead letter matches --id nobody"),
        (("--reason", "x", "--since", "tomorrow"), 2, "error: --since: is 'tomorrow'"),
    ],
)
def test_a_discard_of_nothing_says_so(pool: LivePool, arguments: tuple[str, ...], code: int, message: str) -> None:
    done = command_of(pool).run("dead-letters", "discard", *arguments)
    assert message in done.err
    assert done.code == code
