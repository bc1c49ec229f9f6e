"""`forebay dead-letters replay` on a real broker: whatever happens to a run, each letter is replayed once."""

from __future__ import annotations

import json
import signal
from collections import Counter
from typing import TYPE_CHECKING

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs leave these names out
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from forebay_schemas.contract.tiers import Tier
from harness.dead_letters import command_of, letters, replay, requests, value_of, write_letters
from harness.replays import SELECTION, audits, killed, recorded_by_id, replays_by_id, running, write
from harness.waiting import wait_until

if TYPE_CHECKING:
    import subprocess

    from forebay_sandbox.engine.process import EngineProcess
    from harness.live_pool import LivePool
    from harness.workers import NewWorker


def test_a_replay_killed_in_the_middle_of_a_batch_repeats_and_loses_nothing(pool: LivePool) -> None:
    wanted = write(pool, 60)
    # Twenty in a batch; some of the second one are on their way.
    killed(pool, "request", 31, 0.3)
    recorded = len(audits(pool))
    assert recorded == 20
    assert 20 < len(requests(pool, Tier.LOW)) < 60
    [group] = letters(pool, "list")
    assert (group["open"], group["replayed"]) == (40, 20)

    done = command_of(pool).run("dead-letters", "replay", *SELECTION, "--yes", "--output", "json")
    assert done.code == 0, done.err
    [record] = done.records
    assert record["replayed"] + record["already_replayed"] == 60
    assert "stopped with 20 replays under way" in done.err
    assert replays_by_id(pool) == Counter(wanted)
    assert recorded_by_id(pool) == Counter(wanted)
    assert [one["ending"] for one in audits(pool, "run_ended")] == ["abandoned", "done"]
    assert replay(pool, *SELECTION, "--yes")["replayed"] == 0
    assert replays_by_id(pool) == Counter(wanted)


def test_ctrl_c_ends_a_replay_after_its_batch_and_the_next_run_goes_on_at_once(pool: LivePool) -> None:
    wanted = write(pool, 100)
    with running(pool, "--rate", "20/s") as run:
        wait_until("a first replay", lambda: audits(pool))
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=60)
    assert run.returncode == 130, err
    assert b"interrupted: not all dead letters were looked at; start it again to go on" in err
    first = json.loads(out)["replayed"]
    assert 0 < first == len(audits(pool)) < 100
    assert [one["ending"] for one in audits(pool, "run_ended")] == ["interrupted"]
    assert replay(pool, *SELECTION, "--yes")["replayed"] == 100 - first
    assert replays_by_id(pool) == Counter(wanted)


def test_of_two_runs_the_second_waits_for_the_first_and_finds_nothing_left(pool: LivePool) -> None:
    wanted = write(pool, 60)
    with running(pool, "--rate", "20/s") as first, running(pool, "--rate", "20/s") as second:
        reports = [json.loads(run.communicate(timeout=60)[0]) for run in (first, second)]
    assert [run.returncode for run in (first, second)] == [0, 0]
    assert sorted(report["replayed"] for report in reports) == [0, 60]
    assert replays_by_id(pool) == Counter(wanted)


def wait_for_turn(run: subprocess.Popen[bytes]) -> None:
    assert run.stderr is not None
    assert b"waiting for its end" in run.stderr.readline()


def test_what_dies_again_while_a_run_waits_for_its_turn_is_not_its_concern(pool: LivePool) -> None:
    wanted = write(pool, 100)
    with running(pool, "--rate", "2/s") as first:
        wait_until("a first replay", lambda: audits(pool))
        with running(pool) as second:
            wait_for_turn(second)
            discard = command_of(pool).running("dead-letters", "discard", *SELECTION, "--yes", "--output", "json")
            with discard as third:
                wait_for_turn(third)
                # As a worker does with a replay that failed.
                again = audits(pool)[0]["request_id"]
                write_letters(pool, [(again, value_of(again))], replay_count=1, tier=Tier.LOW)
                first.send_signal(signal.SIGINT)
                reports = [json.loads(run.communicate(timeout=60)[0]) for run in (first, second, third)]
    assert [run.returncode for run in (first, second, third)] == [130, 0, 1]
    sent = reports[0]["replayed"]
    assert (reports[1]["replayed"], reports[1]["already_replayed"]) == (100 - sent, sent)
    assert (reports[2]["discarded"], reports[2]["already_replayed"]) == (0, 100)
    assert replays_by_id(pool) == Counter(wanted)
    assert letters(pool, "list")[0]["open"] == 1


def test_ctrl_c_before_all_was_looked_at_does_not_say_that_nothing_matches(pool: LivePool) -> None:
    write(pool, 100)
    with running(pool, "--rate", "2/s") as first:
        wait_until("a first replay", lambda: audits(pool))
        for does in ("replay", "discard"):
            with command_of(pool).running("dead-letters", does, *SELECTION, "--id", "r-1", "--yes") as waiting:
                wait_for_turn(waiting)
                waiting.send_signal(signal.SIGINT)
                out, err = waiting.communicate(timeout=60)
            assert waiting.returncode == 130
            assert out.startswith(b"0 ")
            assert b"no dead letter" not in out + err
            assert b"interrupted: not all dead letters were looked at; start it again to go on" in err
        first.kill()


def set_record_bytes_max(pool: LivePool, topic: str, size_bytes: int) -> None:
    entry = ConfigEntry("max.message.bytes", str(size_bytes), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = pool.kafka.admin()
    for answer in admin.incremental_alter_configs([resource]).values():
        answer.result(30)


def test_what_cannot_be_recorded_is_not_sent(pool: LivePool) -> None:
    write(pool, 1)
    set_record_bytes_max(pool, pool.topics.audit, 1)
    done = command_of(pool).run("dead-letters", "replay", *SELECTION, "--yes")
    assert done.code == 1
    assert f"error: Kafka refused while writing to {pool.topics.audit}" in done.err
    assert requests(pool, Tier.LOW) == []
    set_record_bytes_max(pool, pool.topics.audit, 1_000_000)
    assert replay(pool, *SELECTION, "--yes")["replayed"] == 1


def test_a_canary_that_fails_again_stops_the_replay(
    pool: LivePool, new_worker: NewWorker, engine: EngineProcess
) -> None:
    new_worker(pool, backend_url=engine.url, limit_max=4)
    write_letters(pool, [(f"bad-{number}", value_of(f"bad-{number}")) for number in range(20)])
    engine.faults({"kind": "status", "status": 400, "match": "bad"})
    done = command_of(pool).run("dead-letters", "replay", *SELECTION, "--yes", "--canary", "3", "--output", "json")
    assert done.code == 1
    assert done.records[0]["canary"] == {"sent": 3, "completed": 0, "failed": {"backend_rejected": 3}}
    assert "error: of 3 canaries 3 did not complete: 3 backend_rejected; nothing more was sent" in done.err
    assert len(requests(pool)) == 3
    [ended] = audits(pool, "run_ended")
    assert (ended["ending"], ended["tally"]["replayed"]) == ("canary_failed", 3)

    engine.faults()
    done = command_of(pool).run("dead-letters", "replay", *SELECTION, "--yes", "--canary", "3", "--output", "json")
    assert done.code == 0, done.err
    assert done.records[0]["canary"] == {"sent": 3, "completed": 3, "failed": {}}
    assert done.records[0]["replayed"] == 17
    assert len(requests(pool)) == 20


def test_without_workers_replays_do_not_pile_up_before_live_traffic(pool: LivePool) -> None:
    write_letters(pool, [(f"r-{number}", value_of(f"r-{number}")) for number in range(50)])
    with running(pool) as run:
        assert run.stderr is not None
        # Where it goes slowly a line before says that nobody can tell yet.
        assert any(b"wait in mid and nothing gets finished: does a worker run?" in line for line in run.stderr)
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=60)
    assert run.returncode == 130
    assert 0 < len(requests(pool)) <= 10


def test_replays_go_on_by_themselves_when_a_worker_comes(
    pool: LivePool, new_worker: NewWorker, engine: EngineProcess
) -> None:
    write_letters(pool, [(f"r-{number}", value_of(f"r-{number}")) for number in range(50)])
    with running(pool) as run:
        assert run.stderr is not None
        assert any(b"does a worker run?" in line for line in run.stderr)
        new_worker(pool, backend_url=engine.url, limit_max=4)
        out, err = run.communicate(timeout=60)
    assert run.returncode == 0, err
    assert json.loads(out)["replayed"] == 50
