"""A replay that is killed, interrupted or cannot keep its records loses nothing, and repeats no more than it says."""

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

from forebay_producer.dead_letters_replay import IN_FLIGHT_MAX
from forebay_producer.topic_admin import Edge, TopicAdmin
from forebay_schemas.headers import read_history, record_headers
from harness.dead_letters import letters, replay, requests, value_of, write_letters
from harness.forebay_command import ForebayCommand
from harness.waiting import wait_until

if TYPE_CHECKING:
    import subprocess
    from contextlib import AbstractContextManager
    from pathlib import Path

    from forebay_sandbox.engine_process import EngineProcess
    from harness.live_pool import LivePool
    from harness.workers import NewWorker

LETTERS = 5_000


def slow_replay(pool: LivePool, folder: Path) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """A replay of all that has to ask the brokers for each record, so that there is a middle to meet it in."""
    slow = {"batch.num.messages": "1", "max.in.flight.requests.per.connection": "1"}
    file = folder / "slow.properties"
    lines = (pool.kafka.connection.properties | slow).items()
    file.write_text("".join(f"{name}={value}\n" for name, value in lines), encoding="utf-8")
    command = ForebayCommand(
        bootstrap_servers=pool.kafka.bootstrap_servers, pool=pool.name, FOREBAY_KAFKA_PROPERTIES=str(file)
    )
    return command.running("dead-letters", "replay", "--reason", "backend_error", "--yes", "--output", "json")


def wait_for_the_middle(pool: LivePool) -> None:
    """Return when some replays are recorded."""
    admin = TopicAdmin(pool.kafka.admin(), connection=pool.kafka.connection)
    at = (pool.topics.audit, 0)
    wait_until("a first replay", lambda: admin.offsets([at], at=Edge.END)[at] > 0)


def audits(pool: LivePool) -> int:
    return len(pool.kafka.read_all(pool.topics.audit))


def replays_by_id(pool: LivePool) -> Counter[str]:
    """How often each request was replayed; each copy must have the same replay count."""
    records = requests(pool)
    assert {read_history(record_headers(record)).replay_count for record in records} == {1}
    return Counter((record.key() or b"").decode() for record in records)


def test_a_replay_killed_in_the_middle_goes_on_where_it_was(pool: LivePool, tmp_path: Path) -> None:
    wanted = [f"r-{number}" for number in range(LETTERS)]
    write_letters(pool, ((one, value_of(one)) for one in wanted))
    with slow_replay(pool, tmp_path) as run:
        wait_for_the_middle(pool)
        run.kill()
        run.communicate()
    recorded = audits(pool)
    assert 0 < recorded < LETTERS, "it was killed before or after all, not in the middle"
    [group] = letters(pool, "list")
    assert (group["open"], group["replayed"]) == (LETTERS - recorded, recorded)

    done = replay(pool, "--reason", "backend_error", "--yes")
    assert (done["replayed"], done["already_replayed"]) == (LETTERS - recorded, recorded)
    found = replays_by_id(pool)
    assert set(found) == set(wanted)
    assert found.total() - LETTERS <= IN_FLIGHT_MAX
    assert max(found.values()) <= 2
    assert replay(pool, "--reason", "backend_error", "--yes")["replayed"] == 0


def test_ctrl_c_leaves_nothing_between_replayed_and_recorded(pool: LivePool, tmp_path: Path) -> None:
    wanted = [f"r-{number}" for number in range(LETTERS)]
    write_letters(pool, ((one, value_of(one)) for one in wanted))
    with slow_replay(pool, tmp_path) as run:
        wait_for_the_middle(pool)
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=60)
    assert run.returncode == 130, err
    first = json.loads(out)["replayed"]
    assert 0 < first == audits(pool)
    assert replay(pool, "--reason", "backend_error", "--yes")["replayed"] == LETTERS - first
    assert replays_by_id(pool) == Counter(wanted)


def set_record_bytes_max(pool: LivePool, topic: str, size_bytes: int) -> None:
    entry = ConfigEntry("max.message.bytes", str(size_bytes), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = pool.kafka.admin()
    for answer in admin.incremental_alter_configs([resource]).values():
        answer.result(30)


def test_what_was_replayed_but_not_recorded_is_sent_again_and_runs_once(
    pool: LivePool, new_worker: NewWorker, engine: EngineProcess
) -> None:
    worker = new_worker(pool, backend_url=engine.url, limit_max=4)
    write_letters(pool, [("one", value_of("one"))])
    set_record_bytes_max(pool, pool.topics.audit, 1)
    done = replay(pool, "--id", "one", "--yes", code=4)
    assert (done["replayed"], done["unrecorded"]) == (0, 1)
    ended = pool.result("one")
    assert (ended.status, ended.replay_count) == ("completed", 1)

    set_record_bytes_max(pool, pool.topics.audit, 1_000_000)
    assert replay(pool, "--id", "one", "--yes")["replayed"] == 1
    assert replays_by_id(pool) == {"one": 2}
    wait_until("the copy to be skipped", lambda: worker.metric("forebay_duplicates_total") == 1)
    assert len(pool.all_results("one")) == 1
    assert engine.stats()["completed"] == 1
