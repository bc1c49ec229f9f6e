"""`forebay dead-letters replay` on a real broker: whatever happens to a run, each letter is replayed once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs leave these names out
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from forebay_schemas.headers import read_history, record_headers
from forebay_schemas.tiers import Tier
from harness import killed_replay
from harness.dead_letters import command_of, letters, replay, requests, value_of, write_letters
from harness.signals import frozen
from harness.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay_sandbox.engine_process import EngineProcess
    from harness.live_pool import LivePool
    from harness.workers import NewWorker

SELECTION = ("--reason", "backend_error")
TESTS = Path(killed_replay.__file__).parents[1]


def write(pool: LivePool, count: int, *, prefix: str = "r") -> list[str]:
    """So many dead letters of the low tier, which takes replays though no worker runs."""
    wanted = [f"{prefix}-{number}" for number in range(count)]
    write_letters(pool, ((one, value_of(one)) for one in wanted), tier=Tier.LOW)
    return wanted


def replays_by_id(pool: LivePool) -> Counter[str]:
    """How often each request was replayed."""
    records = requests(pool, Tier.LOW)
    assert {read_history(record_headers(record)).replay_count for record in records} <= {1}
    return Counter((record.key() or b"").decode() for record in records)


def audits(pool: LivePool, action: str = "replay") -> list[dict[str, Any]]:
    told = [json.loads(record.value() or b"") for record in pool.kafka.read_all(pool.topics.audit)]
    return [one for one in told if one["action"] == action]


def killed(pool: LivePool, kind: str, number: int, seconds: float = 0.0, *, rate: str = "40/s") -> None:
    """A replay that kills itself at that moment (see `harness.killed_replay`)."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(TESTS),
        "FOREBAY_BOOTSTRAP_SERVERS": pool.kafka.bootstrap_servers,
        "FOREBAY_POOL": pool.name,
    }
    arguments = [kind, str(number), str(seconds), "dead-letters", "replay", *SELECTION, "--yes", "--rate", rate]
    command = [sys.executable, "-m", "harness.killed_replay", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


@contextmanager
def running(pool: LivePool, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = command_of(pool)
    with command.running("dead-letters", "replay", *SELECTION, "--yes", "--output", "json", *arguments) as process:
        yield process


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
    assert Counter(one["request_id"] for one in audits(pool)) == Counter(wanted)
    assert [one["ending"] for one in audits(pool, "run_ended")] == ["abandoned", "done"]
    assert replay(pool, *SELECTION, "--yes")["replayed"] == 0
    assert replays_by_id(pool) == Counter(wanted)


MOMENTS = [
    ("run_started", 1, 0.0),
    ("intent", 1, 0.0),
    ("intent", 2, 0.0),
    ("intent", 2, 0.5),
    ("request", 1, 0.0),
    ("request", 1, 0.002),
    ("request", 25, 0.0),
    ("request", 25, 0.001),
    ("request", 40, 0.05),
    ("replay", 1, 0.0),
    ("replay", 7, 0.0),
    ("replay", 7, 0.01),
    ("replay", 20, 0.5),
    ("run_ended", 1, 0.0),
]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_whenever_a_replay_is_killed_each_letter_is_replayed_once(pool: LivePool) -> None:
    wanted: list[str] = []
    for number, moment in enumerate(MOMENTS):
        wanted += write(pool, 41, prefix=f"r{number}")
        killed(pool, *moment)
        assert max(replays_by_id(pool).values(), default=1) == 1, moment
    done = replay(pool, *SELECTION, "--yes")
    assert done["replayed"] + done["already_replayed"] == len(wanted)
    assert replays_by_id(pool) == Counter(wanted)
    assert Counter(one["request_id"] for one in audits(pool)) == Counter(wanted)


def test_ctrl_c_ends_a_replay_after_its_batch_and_the_next_run_goes_on_at_once(pool: LivePool) -> None:
    wanted = write(pool, 100)
    with running(pool, "--rate", "20/s") as run:
        wait_until("a first replay", lambda: audits(pool))
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=60)
    assert run.returncode == 130, err
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


def test_a_run_that_was_stopped_for_longer_than_its_lease_sends_nothing_that_another_has_sent(pool: LivePool) -> None:
    wanted = write(pool, 100)
    with running(pool, "--rate", "20/s") as stopped:
        wait_until("a first replay", lambda: audits(pool))
        with frozen(stopped):
            done = replay(pool, *SELECTION, "--yes")
            assert 0 < done["replayed"] < 100
        _, err = stopped.communicate(timeout=60)
    assert stopped.returncode == 0, err
    assert replays_by_id(pool) == Counter(wanted)
    assert Counter(one["request_id"] for one in audits(pool)) == Counter(wanted)


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
        line = run.stderr.readline().decode()
        assert "wait in mid and nothing gets finished: does a worker run?" in line
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
        assert b"does a worker run?" in run.stderr.readline()
        new_worker(pool, backend_url=engine.url, limit_max=4)
        out, err = run.communicate(timeout=60)
    assert run.returncode == 0, err
    assert json.loads(out)["replayed"] == 50
