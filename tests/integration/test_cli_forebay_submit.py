"""`forebay submit`: lines become requests, bad ones are named, and what was accepted is always known."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from forebay_producer.cli import submit as cli_submit
from forebay_producer.cli.app import app
from forebay_schemas.contract.reasons import Status
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.contract.topics import REQUEST_BYTES_MAX
from harness.producer_pool import ProducerPool
from harness.waiting import wait_until
from harness.written_results import result_of, write_results


def envelope(**fields: Any) -> dict[str, Any]:
    return {"biz_type": "chat_completion", "payload": {"model": "m", "messages": []}, **fields}


def lines(*records: object) -> bytes:
    return b"".join(msgspec.json.encode(record) + b"\n" for record in records)


def values(pool: ProducerPool) -> list[dict[str, Any]]:
    return [json.loads(record.value() or b"") for record in pool.all_records()]


def test_twenty_thousand_lines_are_accepted_once_each(producer_pool: ProducerPool, tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_bytes(lines(*(envelope(request_id=f"r{number}", priority=number % 11) for number in range(20_000))))
    done = producer_pool.forebay.run("submit", file)
    assert done.code == 0
    assert "20,000 accepted" in done.err
    told = {(one["topic"], one["partition"], one["offset"]): one["request_id"] for one in done.records}
    assert [one["request_id"] for one in done.records] == [f"r{number}" for number in range(20_000)]
    found = {
        (record.topic(), record.partition(), record.offset()): (record.key() or b"").decode()
        for record in producer_pool.all_records()
    }
    assert told == found


def test_bare_bodies_take_tier_ttl_and_biz_type_from_the_options(producer_pool: ProducerPool) -> None:
    bodies = lines({"messages": [{"role": "user", "content": "hi"}]}, {"prompt": "hi", "max_tokens": 3})
    done = producer_pool.forebay.run("submit", "-", "--tier", "high", "--ttl", "2m", stdin=bodies)
    assert done.code == 0
    assert {one["topic"] for one in done.records} == {producer_pool.topics.requests(Tier.HIGH)}
    found = sorted(values(producer_pool), key=lambda one: str(one["biz_type"]))
    assert [(one["biz_type"], one["ttl_ms"]) for one in found] == [
        ("chat_completion", 120_000),
        ("completion", 120_000),
    ]
    assert found[1]["payload"] == {"prompt": "hi", "max_tokens": 3}
    mine = producer_pool.forebay.run("submit", "-", "--biz-type", "rerank", "--tier", "low", stdin=bodies)
    assert mine.code == 0
    assert {json.loads(one.value() or b"")["biz_type"] for one in producer_pool.records(Tier.LOW).values()} == {
        "rerank"
    }


def test_bad_lines_are_named_with_the_fix_and_the_others_go(producer_pool: ProducerPool) -> None:
    good = [envelope(request_id=f"good {number}") for number in range(3)]
    text = (
        lines(good[0])
        + b"\n"
        + b'{"a":\n'
        + b"[1]\n"
        + lines(
            envelope(payload=[1]),
            envelope(priority="urgent"),
            envelope(expire_at=1_735_689_600_000),
            envelope(priority="low"),
            envelope(payload={"x": "y" * REQUEST_BYTES_MAX}),
            good[1],
            {"biz_type": "x"},
            good[2],
        )
    )
    done = producer_pool.forebay.run("submit", "-", "--tier", "mid", stdin=text)
    assert done.code == 4
    assert [one["request_id"] for one in done.records] == ["good 0", "good 1", "good 2"]
    assert sorted(one["request_id"] for one in values(producer_pool)) == ["good 0", "good 1", "good 2"]
    errors = {line.partition(":")[0]: line for line in done.err.splitlines() if line.startswith("line ")}
    assert set(errors) == {f"line {number}" for number in (3, 4, 5, 6, 7, 8, 9, 11)}
    for number, words in {
        3: "envelope: breaks off before its end; send {",
        4: "envelope: is a list; send {",
        5: "payload: is not an object; put the request body there",
        6: "priority: is 'urgent'; give high, mid",
        7: "expire_at: past deadline: 1735689600000 was 2025-01-01",
        8: "priority: is 'low', which is tier low, and tier mid was asked for",
        9: "payload: makes a record of 8,388,",
        11: "payload: is missing",
    }.items():
        assert words in errors[f"line {number}"]
    assert "3 accepted, 8 refused" in done.err


def test_nothing_good_exits_1_and_nothing_at_all_exits_0(producer_pool: ProducerPool) -> None:
    assert producer_pool.forebay.run("submit", "-", stdin=b"x\n").code == 1
    assert producer_pool.forebay.run("submit", "-", stdin=b"\n").code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere.jsonl",), "error: FILE: nowhere.jsonl: No such file or directory; name a file of JSON lines"),
        (("/",), "error: FILE: /: Is a directory"),
        (("-", "--ttl", "soon"), "error: --ttl: is 'soon'; give seconds"),
        (("-", "--wait-timeout", "5s"), "error: --wait-timeout: came without --wait; give both"),
        (("-", "--tier", "urgent"), "Invalid value for '--tier'"),
    ],
)
def test_bad_options_are_named(producer_pool: ProducerPool, arguments: tuple[str, ...], message: str) -> None:
    done = producer_pool.forebay.run("submit", *arguments)
    assert message in done.err
    assert done.code == 2


def test_a_table_has_the_same_figures(producer_pool: ProducerPool) -> None:
    done = producer_pool.forebay.run("submit", "-", "--output", "table", stdin=lines(envelope(request_id="r1")))
    header, row = done.out.splitlines()
    assert header.split() == ["request_id", "topic", "partition", "offset"]
    assert row.split()[0] == "r1"


def answer(pool: ProducerPool, statuses: dict[str, Status]) -> threading.Thread:
    """Plays the worker: gives each request its outcome once it is there, and a second one."""

    def run() -> None:
        wait_until("the requests", lambda: len(pool.all_records()) >= len(statuses))
        write_results(pool, *(result_of(one, status=status, body={"n": one}) for one, status in statuses.items()))
        write_results(pool, *(result_of(one, status=Status.FAILED, attempt=2) for one in statuses))

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("status", "code", "summary"),
    [(Status.COMPLETED, 0, "3 completed"), (Status.EXPIRED, 4, "2 completed, 1 ended otherwise")],
    ids=["all completed", "some expired"],
)
def test_wait_streams_the_first_outcome_of_each_request(
    producer_pool: ProducerPool, status: Status, code: int, summary: str
) -> None:
    statuses = {"a": Status.COMPLETED, "b": status, "c": Status.COMPLETED}
    write_results(producer_pool, result_of("a", status=Status.FAILED, error="of an earlier run"))
    worker = answer(producer_pool, statuses)
    text = lines(*(envelope(request_id=one) for one in statuses))
    done = producer_pool.forebay.run("submit", "-", "--wait", "--wait-timeout", "60s", stdin=text)
    worker.join()
    assert {one["request_id"]: one["status"] for one in done.records} == statuses
    assert {one["attempt"] for one in done.records} == {1}
    assert f"submit: 3 accepted, {summary}, 0 without outcome" in done.err
    assert [one["body"] for one in done.records if one["request_id"] == "a"] == [{"n": "a"}]
    assert done.code == code


def test_wait_gives_up_when_told_to(producer_pool: ProducerPool) -> None:
    text = lines(envelope(request_id="a"))
    done = producer_pool.forebay.run("submit", "-", "--wait", "--wait-timeout", "0.5", stdin=text)
    assert (done.code, done.out) == (1, "")
    assert "forebay results --id a\n" in done.err
    assert "1 accepted, 0 completed, 1 without outcome" in done.err


def test_wait_ends_when_the_deadlines_have_passed(
    producer_pool: ProducerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a request that was done before: the worker skips it, and writes no other outcome."""
    monkeypatch.setattr(cli_submit, "LATE_SECONDS", 1.0)
    write_results(producer_pool, result_of("done-before", status=Status.COMPLETED))
    file = tmp_path / "requests.jsonl"
    file.write_bytes(lines(envelope(request_id="done-before", ttl_ms=200), envelope(request_id="b", ttl_ms=300)))
    words = ["--bootstrap-servers", producer_pool.kafka.bootstrap_servers, "--pool", producer_pool.name]
    begun = time.monotonic()
    done = CliRunner().invoke(app, ["submit", str(file), "--wait", *words])
    assert 1.3 <= time.monotonic() - begun < 30
    assert done.exit_code == 1, done.output
    for one in ("done-before", "b"):
        assert f"{one}: no outcome came within its deadline" in done.stderr
        assert f"was it submitted before? forebay results --id {one}\n" in done.stderr
    assert "2 accepted, 0 completed, 2 without outcome" in done.stderr


def test_ctrl_c_says_what_was_accepted(producer_pool: ProducerPool) -> None:
    with producer_pool.forebay.running("submit", "-") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(lines(*(envelope(request_id=f"r{number}") for number in range(10))))
        process.stdin.flush()
        told = [json.loads(process.stdout.readline())["request_id"] for _ in range(10)]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert out == b""
    assert told == [f"r{number}" for number in range(10)]
    assert err.decode().startswith("submit: 10 accepted")
    assert err.count(b"\n") == 1


def test_a_broken_pipe_is_quiet(producer_pool: ProducerPool, tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_bytes(lines(*(envelope() for _ in range(5000))))
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb") as out, producer_pool.forebay.running("submit", file, stdout=out) as process:
        os.close(reader)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 141
    assert err.decode().startswith("submit: ")
    assert err.count(b"\n") == 1
