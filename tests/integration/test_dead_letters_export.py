"""`forebay dead-letters export` on a real broker: what it writes can be made the records again, byte for byte."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Producer

from forebay_schemas.contract.headers import record_headers
from harness.dead_letters import command_of, letters, value_of, write_letters
from harness.forebay_command import ForebayCommand
from harness.live_pool import LOG
from harness.waiting import wait_until

if TYPE_CHECKING:
    import pytest
    from confluent_kafka import Message

    from harness.live_pool import LivePool

PAGE = Path(__file__).parents[2] / "docs" / "dead-letters.md"

Raw = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]

ODD: list[Raw] = [
    (None, None, []),
    (b"", b"", [("", b""), ("x", None)]),
    (b"\xff\x00", b"\x80not utf-8", [("forebay-reason", b"\xff"), ("x", b"\x00"), ("x", b"again")]),
    ("ключ".encode(), '{"a": "\u2028\x00\ufeff"}'.encode(), [("наш", "é\n".encode())]),
    (b"text", json.dumps({"base64": "AAAA"}).encode(), [("kafka_dlt-original-topic", b"elsewhere")]),
]


def write_raw(pool: LivePool, records: list[Raw], **config: str) -> None:
    client = {**pool.kafka.connection.properties, "bootstrap.servers": pool.kafka.bootstrap_servers}
    producer = Producer({**client, **config, "logger": LOG})
    for key, value, headers in records:
        producer.produce(pool.topics.dead_letter, value, key, headers=[*headers])
    assert producer.flush(30) == 0


def raw_of(record: Message) -> Raw:
    return record.key(), record.value(), record_headers(record)


def test_what_was_exported_is_restored_byte_for_byte_as_the_page_says(
    pool: LivePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_raw(pool, ODD)
    write_letters(pool, [("one", value_of("one", own=[1.5]))])
    before = sorted(map(repr, map(raw_of, pool.kafka.read_all(pool.topics.dead_letter))))
    assert len(before) == len(ODD) + 1
    file = tmp_path / "letters.jsonl"
    done = command_of(pool).run("dead-letters", "export", "--to", file)
    assert (done.code, done.out, done.err) == (0, "", "6 written\n")
    assert file.stat().st_mode & 0o777 == 0o600

    [snippet] = [block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "raw(" in block]
    snippet = snippet.replace("127.0.0.1:9092", pool.kafka.bootstrap_servers)
    monkeypatch.chdir(tmp_path)
    lines = file.read_bytes().splitlines(keepends=True)
    for line in lines:
        file.write_bytes(line)
        exec(compile(snippet, PAGE.name, "exec"), {})  # noqa: S102 - our own page
    after = sorted(map(repr, map(raw_of, pool.kafka.read_all(pool.topics.dead_letter))))
    assert after == sorted(before * 2)


def test_an_export_takes_the_selection_and_says_what_is_not_there(pool: LivePool, tmp_path: Path) -> None:
    write_letters(pool, ((f"r-{number}", value_of(f"r-{number}")) for number in range(3)))
    write_letters(pool, [("other", value_of("other"))], reason="handler_failed")
    command = command_of(pool)
    some = command.run("dead-letters", "export", "--reason", "backend_error", "--id", "r-1", "--id", "away")
    assert some.code == 4
    [line] = some.records
    assert (line["request_id"], line["reason"], line["state"]) == ("r-1", "backend_error", "open")
    assert "1 written\nno dead letter of away\n" in some.err
    file = tmp_path / "none"
    none = command.run("dead-letters", "export", "--tenant", "nobody", "--to", file)
    assert (none.code, none.err) == (1, "error: no open dead letter matches --tenant nobody\n")
    assert list(tmp_path.iterdir()) == []
    file.write_text("kept")
    there = command.run("dead-letters", "export", "--to", file)
    assert there.code == 2
    assert "exists; give the name" in there.err
    assert file.read_text() == "kept"
    nowhere = command.run("dead-letters", "export", "--to", tmp_path / "away" / "file")
    assert nowhere.code == 2
    assert "cannot be made: No such file or directory; give a file" in nowhere.err
    unknown = command.run("dead-letters", "export", "--reason", "nosuch")
    assert (unknown.code, "; known reasons are completed, " in unknown.err) == (1, True)


def test_what_was_replayed_or_discarded_is_exported_only_when_told(pool: LivePool) -> None:
    write_letters(pool, ((name, value_of(name)) for name in ("open", "replayed", "discarded")))
    letters(pool, "replay", "--id", "replayed", "--yes")
    letters(pool, "discard", "--id", "discarded", "--yes")
    command = command_of(pool)

    def exported(*options: str) -> set[str]:
        return {line["state"] for line in command.run("dead-letters", "export", *options).records}

    done = command.run("dead-letters", "export")
    assert (done.code, [line["request_id"] for line in done.records]) == (0, ["open"])
    assert "1 written; left out: 1 replayed and 1 discarded (--state all takes them too)\n" in done.err
    assert exported("--state", "all") == {"open", "replayed", "discarded"}
    assert exported("--state", "replayed", "--state", "discarded") == {"replayed", "discarded"}
    none = command.run("dead-letters", "export", "--id", "replayed")
    assert (none.code, none.out) == (1, "")
    assert "error: no open dead letter matches --id replayed; left out: 1 replayed" in none.err
    assert command.run("dead-letters", "export", "--id", "open", "--id", "discarded").code == 4


def test_a_stopped_export_leaves_no_file_under_the_name(pool: LivePool, tmp_path: Path) -> None:
    # One batch each, and a fetch brings one batch: there is a middle to meet it in.
    many: list[Raw] = [(b"key", b"x" * 20_000, [])] * 2_000
    write_raw(pool, many, **{"batch.num.messages": "1"})
    properties = tmp_path / "slow.properties"
    lines = (pool.kafka.connection.properties | {"max.partition.fetch.bytes": "1"}).items()
    properties.write_text("".join(f"{name}={value}\n" for name, value in lines), encoding="utf-8")
    command = ForebayCommand(
        bootstrap_servers=pool.kafka.bootstrap_servers, pool=pool.name, FOREBAY_KAFKA_PROPERTIES=str(properties)
    )
    for stop, code in ((signal.SIGINT, 130), (signal.SIGKILL, -9)):
        file = tmp_path / "letters.jsonl"
        with command.running("dead-letters", "export", "--to", file) as run:
            wait_until("a part of it", lambda: any(part.stat().st_size for part in tmp_path.glob("*.part")))
            run.send_signal(stop)
            run.communicate(timeout=60)
        assert run.returncode == code
        assert not file.exists()
