"""A replay that is killed again and again, stopped, cut off or left without brokers: each letter is replayed once."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition

from forebay_sandbox.testing.proxy import BLACK_HOLE, PASS
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.kafka.clients import create_client
from forebay_schemas.kafka.configs import reader_config
from harness.dead_letters import replay, requests, value_of, write_letters
from harness.far_kafka import behind_proxy
from harness.live_pool import envelope
from harness.replays import SELECTION, audits, killed, recorded_by_id, replays_by_id, running, write
from harness.signals import frozen
from harness.waiting import wait_until

if TYPE_CHECKING:
    from forebay_sandbox.testing.pytest_plugin import NewKafka
    from harness.live_pool import LivePool, NewPool

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

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
"""Kind of a record, its number, and the delay after it in seconds; 0: before it. Twenty letters are a batch."""


@pytest.mark.parametrize(("kind", "number", "seconds"), MOMENTS)
def test_whenever_a_replay_is_killed_each_letter_is_replayed_once(
    pool: LivePool, kind: str, number: int, seconds: float
) -> None:
    wanted = write(pool, 41)
    killed(pool, kind, number, seconds)
    done = replay(pool, *SELECTION, "--yes")
    assert done["replayed"] + done["already_replayed"] == len(wanted)
    assert replays_by_id(pool) == Counter(wanted)
    assert recorded_by_id(pool) == Counter(wanted)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_replay_killed_again_and_again_replays_each_letter_once(pool: LivePool, seed: int) -> None:
    wanted = write(pool, 5_000)
    rng = random.Random(seed)
    for _ in range(5):
        before = len(audits(pool))
        with running(pool, "--rate", "500/s") as run:
            wait_until("its turn, and some more replays", lambda: len(audits(pool)) > before)  # noqa: B023
            time.sleep(rng.random() * 0.3)
            run.kill()
            run.communicate()
        assert max(replays_by_id(pool).values()) == 1
    replay(pool, *SELECTION, "--yes", "--rate", "2000/s")
    assert replays_by_id(pool) == Counter(wanted)
    assert recorded_by_id(pool) == Counter(wanted)


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
    assert recorded_by_id(pool) == Counter(wanted)


def test_what_a_stopped_run_had_planned_is_not_sent_after_another_has(pool: LivePool) -> None:
    """It goes on in parts: the high tier takes no more at once than its speed allows."""
    pool.submit(Tier.HIGH, *(envelope(f"w-{number}") for number in range(10)))
    wanted = [f"r-{number}" for number in range(8)]
    write_letters(pool, ((one, value_of(one)) for one in wanted), tier=Tier.HIGH)
    with running(pool, "--rate", "40/s") as stopped:
        wait_until("its turn", lambda: audits(pool, "run_alive"))
        with frozen(stopped):
            commit_to_end(pool, Tier.HIGH)
            other = replay(pool, *SELECTION, "--yes")
            assert (other["replayed"], other["already_replayed"]) == (8, 0)
            commit_to_end(pool, Tier.HIGH)
        out, err = stopped.communicate(timeout=60)
    assert stopped.returncode == 0, err
    done = json.loads(out)
    assert (done["replayed"], done["already_replayed"]) == (0, 8)
    ids = [json.loads(record.value() or b"")["request_id"] for record in requests(pool, Tier.HIGH)]
    assert Counter(one for one in ids if one.startswith("r-")) == Counter(wanted)
    assert recorded_by_id(pool) == Counter(wanted)


def commit_to_end(pool: LivePool, tier: Tier) -> None:
    """Commits as a worker does that has finished everything."""
    topic = pool.topics.requests(tier)
    ends = Counter(record.partition() or 0 for record in pool.kafka.read_all(topic))
    config = reader_config(pool.kafka.connection, client_id="test") | {"group.id": pool.topics.group(tier)}
    consumer = create_client(Consumer, config)
    try:
        consumer.commit(offsets=[TopicPartition(topic, *one) for one in ends.items()], asynchronous=False)
    finally:
        consumer.close()


def finish(pool: LivePool, run: subprocess.Popen[bytes], wanted: list[str]) -> None:
    out, err = run.communicate(timeout=120)
    assert run.returncode == 0, err
    assert json.loads(out)["replayed"] == len(wanted), err
    assert replays_by_id(pool) == Counter(wanted)
    assert recorded_by_id(pool) == Counter(wanted)


def test_a_broker_restarted_in_the_middle_of_a_replay_costs_only_time(new_kafka: NewKafka, new_pool: NewPool) -> None:
    kafka = new_kafka()
    pool = new_pool(kafka)
    wanted = write(pool, 400)
    with running(pool, "--rate", "40/s") as run:
        wait_until("a first replay", lambda: audits(pool))
        kafka.brokers[0].kill()
        kafka.brokers[0].start()
        finish(pool, run, wanted)


def test_brokers_that_stay_away_end_a_replay_with_what_to_do(new_kafka: NewKafka, new_pool: NewPool) -> None:
    kafka = new_kafka()
    pool = new_pool(kafka)
    wanted = write(pool, 200)
    with running(pool, "--rate", "20/s") as run:
        wait_until("a first replay", lambda: audits(pool))
        kafka.brokers[0].kill()
        out, err = run.communicate(timeout=300)
    assert run.returncode == 3, err
    assert 0 < json.loads(out)["replayed"] < 200
    last = err.decode().splitlines()[-1]
    assert last.startswith(f"error: no broker answered at {kafka.bootstrap_servers}"), err
    assert last.endswith("; start the same command again to go on")
    kafka.brokers[0].start()
    replay(pool, *SELECTION, "--yes")
    assert replays_by_id(pool) == Counter(wanted)


@pytest.mark.parametrize("seconds", [4.0, 8.0, 14.0])
def test_a_link_that_swallows_all_for_a_while_repeats_nothing(
    new_kafka: NewKafka, new_pool: NewPool, seconds: float
) -> None:
    with behind_proxy(new_kafka) as (kafka, proxy):
        pool = new_pool(kafka)
        wanted = write(pool, 400)
        with running(pool, "--rate", "40/s", bootstrap_servers=f"127.0.0.1:{proxy.port}") as run:
            for _ in range(2):
                count = len(audits(pool))
                wait_until("more replays", lambda: len(audits(pool)) > count + 20)  # noqa: B023
                proxy.set(BLACK_HOLE)
                time.sleep(seconds)
                proxy.set(PASS)
            finish(pool, run, wanted)


def test_what_a_killed_replay_has_on_its_way_for_four_seconds_is_not_sent_again(
    new_kafka: NewKafka, new_pool: NewPool
) -> None:
    with behind_proxy(new_kafka) as (kafka, proxy):
        pool = new_pool(kafka)
        wanted = write(pool, 200)
        for _ in range(3):
            before = len(audits(pool))
            with running(pool, "--rate", "40/s", bootstrap_servers=f"127.0.0.1:{proxy.port}") as run:
                wait_until("its turn, and some more replays", lambda: len(audits(pool)) > before)  # noqa: B023
                proxy.set(BLACK_HOLE)
                time.sleep(1)
                run.kill()
                run.communicate()
            with running(pool, "--rate", "10/s", "--limit", "10") as run:
                time.sleep(3)
                proxy.set(PASS)
                run.communicate(timeout=60)
            assert run.returncode == 0
        replay(pool, *SELECTION, "--yes")
        assert replays_by_id(pool) == Counter(wanted)
        assert recorded_by_id(pool) == Counter(wanted)
