"""`forebay dead-letters` on a real broker: what a failing backend kills is listed, shown, replayed and completed."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from forebay_producer import Producer as Client
from forebay_producer import ProducerSettings
from forebay_producer.dead_letters.reader import DeadLetterReader
from forebay_producer.dead_letters.views import rfc3339
from forebay_schemas.clock import SystemClock
from forebay_schemas.contract.headers import read_history, record_headers
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.formats.envelope_reader import EnvelopeReader, NoSchemas
from harness.dead_letters import FOREIGN, command_of, letters, replay, requests, value_of, write_letters
from harness.forebay_command import ForebayCommand
from harness.live_pool import envelope

if TYPE_CHECKING:
    from forebay_sandbox.engine.process import EngineProcess
    from forebay_sandbox.kafka.access import KafkaAccess
    from harness.live_pool import LivePool
    from harness.workers import NewWorker


def test_what_a_failing_backend_killed_is_listed_shown_replayed_and_completed(
    pool: LivePool, new_worker: NewWorker, engine: EngineProcess
) -> None:
    new_worker(pool, backend_url=engine.url, limit_max=4)
    engine.faults({"kind": "status", "status": 400, "match": "bad"})
    bad = [envelope(f"bad-{number}", own_field={"kept": 1}) for number in range(3)]
    with Client(settings=ProducerSettings(bootstrap_servers=pool.kafka.bootstrap_servers, pool=pool.name)) as producer:
        before_ms = producer.submit(envelope("good")).enqueued_at
        pool.submit(Tier.MID, *bad)
        assert {pool.result(one["request_id"]).status for one in bad} == {"failed"}
        pool.dead_letters(3)

        [group] = letters(pool, "list")
        assert (group["reason"], group["open"], group["replayed"]) == ("backend_rejected", 3, 0)
        assert sorted(group["sample_ids"]) == ["bad-0", "bad-1", "bad-2"]
        assert before_ms - 60_000 < group["first_seen"] <= group["last_seen"]
        [shown] = letters(pool, "show", "bad-1")
        assert (shown["reason"], shown["replayed"], shown["tier"]) == ("backend_rejected", False, "mid")
        assert shown["envelope"]["own_field"] == {"kept": 1}
        assert "payload" not in shown["envelope"]
        assert "injected fault" in shown["error"]
        assert shown["original"]["topic"] == pool.topics.requests(Tier.MID)
        assert "injected fault" in command_of(pool).run("dead-letters", "show", "bad-1", "--payload").out

        engine.faults()
        before = len(requests(pool))
        dry = replay(pool, "--reason", "backend_rejected")
        assert (dry["dry_run"], dry["topics"], dry["replayed"]) == (True, {pool.topics.requests(Tier.MID): 3}, 0)
        assert len(requests(pool)) == before
        warned = command_of(pool).run("dead-letters", "replay", "--reason", "backend_rejected")
        assert "3 died of backend_rejected, of which trying again alone does not help: correct its cause" in warned.err
        assert replay(pool, "--reason", "backend_rejected", "--limit", "1", "--yes")["replayed"] == 1
        done = replay(pool, "--reason", "backend_rejected", "--yes")
        assert (done["replayed"], done["already_replayed"]) == (2, 1)
        again = replay(pool, "--reason", "backend_rejected", "--yes")
        assert (again["replayed"], again["already_replayed"]) == (0, 3)
        assert len(requests(pool)) == before + 3

        for one in bad:
            request_id = one["request_id"]
            ended = producer.outcome(request_id, timeout_seconds=45, since_ms=0, replay_count=1)
            assert (ended.status, ended.replay_count) == ("completed", 1)
            assert producer.outcome(request_id, timeout_seconds=45, since_ms=0).status == "failed"
            told = command_of(pool).run("results", "--id", request_id, "--output", "json").records
            assert [(row["status"], row["replay_count"]) for row in told] == [("failed", 0), ("completed", 1)]
    [group] = letters(pool, "list", "--by", "tier")
    assert (group["tier"], group["open"], group["replayed"]) == ("mid", 0, 3)
    [shown] = letters(pool, "show", "bad-1")
    assert shown["replayed"] is True


def test_a_replay_that_dies_again_is_a_dead_letter_of_its_own_and_can_be_replayed(
    pool: LivePool, new_worker: NewWorker, engine: EngineProcess
) -> None:
    new_worker(pool, backend_url=engine.url, limit_max=4)
    engine.faults({"kind": "status", "status": 422, "match": "twice"})
    pool.submit(Tier.LOW, envelope("twice"))
    pool.dead_letters(1)
    assert replay(pool, "--id", "twice", "--yes")["replayed"] == 1
    pool.dead_letters(2)
    assert [(one["replayed"], one["replay_count"]) for one in letters(pool, "show", "twice")] == [(True, 0), (False, 1)]
    engine.faults()
    done = replay(pool, "--id", "twice", "--yes")
    assert (done["replayed"], done["already_replayed"]) == (1, 1)
    with Client(settings=ProducerSettings(bootstrap_servers=pool.kafka.bootstrap_servers, pool=pool.name)) as producer:
        ends = [producer.outcome("twice", timeout_seconds=45, since_ms=0, replay_count=n).status for n in range(3)]
    assert ends == ["failed", "failed", "completed"]


def test_since_finds_every_letter_of_that_time_whatever_order_the_clocks_brought_them_in(pool: LivePool) -> None:
    now_ms = int(time.time() * 1000)
    minutes = [90, 30, 200, 61, 59, 120, 60, 5, 300, 2]
    for number, minute in enumerate(minutes):
        name = f"{number}-{minute}"
        write_letters(pool, [(name, value_of(name))], at_ms=now_ms - minute * 60_000)
    since = rfc3339(now_ms - 60 * 60_000)
    [group] = letters(pool, "list", "--since", since)
    assert (group["open"], group["first_seen"]) == (5, now_ms - 60 * 60_000)
    assert letters(pool, "list", "--since", rfc3339(now_ms - 60_000)) == []
    assert replay(pool, "--since", since, "--yes")["replayed"] == 5
    told = {(record.key() or b"").decode() for record in requests(pool)}
    assert told == {f"{number}-{minute}" for number, minute in enumerate(minutes) if minute <= 60}


def test_since_does_not_read_what_died_long_before(pool: LivePool) -> None:
    now_ms = int(time.time() * 1000)
    for minute in (200, 100):
        write_letters(
            pool,
            [(f"{minute}-{number}", value_of(f"{minute}-{number}")) for number in range(200)],
            at_ms=now_ms - minute * 60_000,
        )
    write_letters(pool, [("young", value_of("young"))], at_ms=now_ms - 60_000)
    reader = DeadLetterReader(
        pool.kafka.connection, pool=pool.topics, envelopes=EnvelopeReader(NoSchemas()), clock=SystemClock()
    )
    assert [letter.name for letter in reader.letters(since_ms=now_ms - 3_600_000)] == ["young"]
    assert sum(1 for _ in reader.letters()) == 401


def test_a_replayed_record_is_the_original_one(pool: LivePool) -> None:
    value = value_of("one", own=[1.5])
    write_letters(pool, [("any key", value)], replay_count=2)
    assert replay(pool, "--id", "one", "--yes")["replayed"] == 1
    [record] = requests(pool)
    assert (record.key(), record.value()) == (b"any key", value)
    audits = [json.loads(audit.value() or b"") for audit in pool.kafka.read_all(pool.topics.audit)]
    told, *_ = [one for one in audits if one["action"] == "replay"]
    # On a slow machine it also says in between that it is alive.
    actions = [one["action"] for one in audits if one["action"] != "run_alive"]
    assert actions == ["run_started", "intent", "replay", "run_ended"]
    of = f"{told['dead_letter_topic_id']}/{told['partition']}/{told['offset']}".encode()
    assert record.headers() == [*FOREIGN, ("forebay-replay-count", b"3"), ("forebay-replay-of", of)]
    assert (told["action"], told["request_id"], told["replay_count"]) == ("replay", "one", 3)
    assert (told["to_partition"], told["to_offset"]) == (record.partition(), record.offset())
    assert "@" in told["by"]


def test_what_cannot_be_replayed_is_named_and_stays(pool: LivePool) -> None:
    late = value_of("late", ttl_ms=None, expire_at=1_700_000_000_000, own="kept")
    write_letters(pool, [("late", late), ("gone", None), ("fine", value_of("fine"))])
    write_letters(pool, [("garbage", b"\xff")], reason="undecodable")
    for arguments in ((), ("--yes",)):
        done = replay(pool, "--reason", "backend_error", *arguments, code=4)
        assert {code: one["sample_ids"] for code, one in done["refused"].items()} == {
            "past_deadline": ["late"],
            "content_missing": ["gone"],
        }
    assert [record.key() for record in requests(pool)] == [b"fine"]
    nothing = command_of(pool).run("dead-letters", "replay", "--reason", "undecodable", "--yes")
    assert nothing.code == 1
    assert "1 cannot be replayed, no_envelope" in nothing.out
    unknown = command_of(pool).run("dead-letters", "list", "--reason", "nosuch")
    assert unknown.code == 0
    assert "no dead letters match --reason nosuch; known reasons are completed, " in unknown.err
    replay(pool, "--id", "late", "--ttl", "10m", "--yes")
    [again] = [record for record in requests(pool) if record.key() == b"late"]
    assert json.loads(again.value() or b"") == {**json.loads(late), "ttl_ms": 600_000}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "give --id ID, --reason CODE or another filter"),
        (("--tier", "urgent"), 2, "error: --tier: is 'urgent'; give high, mid, low or -"),
        (("--id", "x", "--ttl", "8d"), 2, "error: --ttl: is '8d'; give 1ms to 7d"),
        (
            ("--id", "x", "--rate", "fast"),
            2,
            "error: --rate: is 'fast'; give a number a second, a minute or an hour: 20/s or 600/m",
        ),
        (("--id", "nobody"), 1, "error: no dead letter matches --id nobody\n"),
        (("--reason", "typo"), 1, "error: no dead letter matches --reason typo; known reasons are completed"),
    ],
)
def test_a_replay_of_nothing_says_so(pool: LivePool, arguments: tuple[str, ...], code: int, message: str) -> None:
    done = command_of(pool).run("dead-letters", "replay", *arguments)
    assert message in done.err
    assert done.code == code


def test_an_id_that_is_not_there_makes_it_partly_done(pool: LivePool) -> None:
    write_letters(pool, [("here", value_of("here"))])
    done = replay(pool, "--id", "here", "--id", "away", "--yes", code=4)
    assert (done["replayed"], done["not_found"]) == (1, ["away"])
    assert command_of(pool).run("dead-letters", "show", "away").code == 1


def test_a_pool_without_topics_is_told_how_to_make_them(kafka: KafkaAccess) -> None:
    missing = ForebayCommand(bootstrap_servers=kafka.bootstrap_servers, pool="no-such").run("dead-letters", "list")
    assert missing.code == 1
    assert "forebay topics create" in missing.err


def test_two_dead_letters_of_one_request_are_replayed_once(pool: LivePool) -> None:
    # A worker that crashes between a dead letter and its commit leaves two.
    write_letters(pool, [("dup", value_of("dup")), ("dup", value_of("dup"))])
    done = replay(pool, "--id", "dup", "--yes")
    assert (done["replayed"], done["already_replayed"]) == (1, 1)
    assert replay(pool, "--id", "dup", "--yes")["replayed"] == 0
    assert [read_history(record_headers(record)).replay_count for record in requests(pool)] == [1]
