"""Cancel and expedite over Kafka: wherever a request is, it ends as cancelled or goes on in the high tier, once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from forebay_producer import ControlAction, ControlOutcome, Producer, Submitted
from forebay_sandbox.engine.process import running_engine
from forebay_schemas.contract import headers as h
from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_worker.request.controls import CONTROLS_MAX
from harness.executions import read_executions
from harness.gate import HANDLER, Gate
from harness.live_pool import LivePool, chat, envelope
from harness.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from forebay_sandbox.engine.process import EngineProcess
    from harness.workers import NewWorker

CANCELLED, EXPEDITED = ControlOutcome.CANCELLED, ControlOutcome.EXPEDITED
UNREAD = 700
"""More than a worker reads ahead: it holds 256 in its lane and has some in the client's queue."""


@pytest.fixture
def client(pool: LivePool) -> Iterator[Producer]:
    with Producer(bootstrap_servers=pool.kafka.bootstrap_servers, pool=pool.name) as client:
        yield client


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


def handle(pool: LivePool, request_id: str, *, of: str | None = None) -> Submitted:
    """A handle as the client's `submit` returns it for a request of the pool; ``of``: with the place of another one."""
    place = pool.accepted[of or request_id]
    topic = pool.topics.requests(place.tier)
    return Submitted(request_id=request_id, topic=topic, partition=place.partition, offset=place.offset, enqueued_at=0)


def block(pool: LivePool, gate: Gate) -> None:
    """Takes the worker's one slot until the gate is opened."""
    pool.submit(Tier.LOW, envelope("blocks", payload=gate.payload()))
    wait_until("the first request at work", lambda: gate.starts()["blocks"] == 1)


def test_a_running_request_that_is_cancelled_leaves_the_engine_and_frees_its_slot(
    pool: LivePool, client: Producer, new_worker: NewWorker, tmp_path: Path
) -> None:
    log = tmp_path / "engine.jsonl"
    with running_engine(log_path=log) as engine:
        new_worker(pool, backend_url=engine.url, limit_max=1)
        pool.submit(Tier.HIGH, envelope("long", payload=chat(output_tokens=3_000)))
        wait_until("it at work", lambda: engine.stats()["in_flight"] == 1)
        pool.submit(Tier.HIGH, envelope("next"))
        assert client.expedite(handle(pool, "long")).outcome in (ControlOutcome.RUNNING, ControlOutcome.ALREADY_HIGH)
        assert client.cancel("long").outcome is CANCELLED
        assert pool.result("long").status == "cancelled"
        assert pool.result("long").reason == "cancelled"
        assert pool.result("next").status == "completed"
        ran = {one.request_id: one.outcome for one in read_executions(log)}
    assert ran == {"long": "disconnected", "next": "completed"}


def test_however_many_cancels_lie_there_a_worker_reads_them_all_before_it_starts_anything(
    pool: LivePool, client: Producer, new_worker: NewWorker, gate: Gate
) -> None:
    """Beyond 100,000 ids each used to cost 50 microseconds, and after ten seconds the rest was passed over."""
    pool.submit(Tier.LOW, *(envelope(name, payload=gate.noted()) for name in ("gone", "runs")))
    others = [f"other-{number}" for number in range(CONTROLS_MAX + 20_000)]
    client.control_batch(ControlAction.CANCEL, others, wait_seconds=0)
    client.cancel("gone", wait_seconds=0)
    worker = new_worker(pool, handler=HANDLER, limit_max=1, pacing_policy="fixed")
    found = pool.results(["gone", "runs"])
    assert {name: result.status for name, result in found.items()} == {"gone": "cancelled", "runs": "completed"}
    assert gate.starts().keys() == {"runs"}
    assert not worker.logged("coordination not read in time")
    assert worker.status()["controls_remembered"] == CONTROLS_MAX


def test_what_waits_in_a_lane_is_cancelled_at_once_and_never_runs(
    pool: LivePool, client: Producer, new_worker: NewWorker, gate: Gate
) -> None:
    worker = new_worker(pool, handler=HANDLER, limit_max=1, pacing_policy="fixed")
    block(pool, gate)
    pool.submit(Tier.LOW, *(envelope(name, payload=gate.noted()) for name in ("a", "b", "c")))
    wait_until("them in the lane", lambda: worker.metric("forebay_lane_records", tier="low") == 3)
    answers = client.control_batch(ControlAction.CANCEL, ["a", handle(pool, "c")])
    assert [answer.outcome for answer in answers] == [CANCELLED, CANCELLED]
    assert pool.results(["a", "c"])["a"].status == "cancelled"
    gate.open()
    assert pool.result("b").status == "completed"
    assert gate.starts().keys() == {"blocks", "b"}
    assert client.cancel(handle(pool, "b")).outcome is ControlOutcome.FINISHED
    assert client.cancel("a", wait_seconds=3).outcome is ControlOutcome.FINISHED
    assert worker.metric("forebay_controls_total", action="cancel", outcome="cancelled") == 2


def test_what_was_not_read_yet_is_found_by_its_place(
    pool: LivePool, client: Producer, new_worker: NewWorker, gate: Gate
) -> None:
    worker = new_worker(pool, handler=HANDLER, limit_max=1, pacing_policy="fixed")
    block(pool, gate)
    names = [f"r{number}" for number in range(UNREAD)]
    pool.submit(Tier.LOW, *(envelope(name, payload=gate.noted()) for name in names))
    wait_until("a full lane", lambda: worker.metric("forebay_lane_records", tier="low") >= 250)
    doomed, paid = names[-20:-10], names[-10:]
    # A wrong place must not touch whoever lies there.
    assert client.cancel(handle(pool, "nobody", of=names[-30]), wait_seconds=1).outcome is None
    answers = client.control_batch(ControlAction.CANCEL, [handle(pool, name) for name in doomed])
    assert [answer.outcome for answer in answers] == [CANCELLED] * 10
    answers = client.control_batch(ControlAction.EXPEDITE, [handle(pool, name) for name in paid])
    assert [answer.outcome for answer in answers] == [EXPEDITED] * 10
    assert {answer.topic for answer in answers} == {pool.topics.requests(Tier.HIGH)}
    assert pool.ended() == set(doomed)
    wait_until("their copies, read", lambda: worker.metric("forebay_lane_records", tier="high") == len(paid))
    gate.open()
    results = pool.results(names)
    assert {results[name].status for name in doomed} == {"cancelled"}
    assert {results[name].status for name in set(names) - set(doomed)} == {"completed"}
    assert {results[name].tier for name in paid} == {"high"}
    starts = gate.starts()
    assert set(starts) == {"blocks", *names} - set(doomed)
    assert set(starts.values()) == {1}
    assert set(list(starts)[1:11]) == set(paid), "they ran before all that waited longer"


def test_what_nobody_has_read_is_cancelled_or_expedited_when_a_worker_comes(
    pool: LivePool, client: Producer, new_worker: NewWorker, gate: Gate
) -> None:
    names = [f"r{number}" for number in range(6)]
    untimed = {"ttl_ms": None}
    pool.submit(Tier.LOW, *(envelope(name, payload=gate.noted(), **untimed) for name in names))
    assert client.cancel("r0", wait_seconds=0.2).outcome is None
    assert client.cancel(handle(pool, "r1"), wait_seconds=0.2).outcome is None
    assert client.expedite("r2", wait_seconds=0.2).outcome is None
    assert client.expedite(handle(pool, "r3"), wait_seconds=0.2).outcome is None
    # A cancel wins, whichever came first.
    client.expedite("r4", wait_seconds=0)
    client.cancel("r4", wait_seconds=0)
    new_worker(pool, handler=HANDLER, limit_max=1, pacing_policy="fixed")
    results = pool.results(names)
    assert [results[name].status for name in names] == [
        *["cancelled"] * 2,
        *["completed"] * 2,
        "cancelled",
        "completed",
    ]
    assert [results[name].tier for name in ("r2", "r3", "r5")] == ["high", "high", "low"]
    assert gate.starts() == {"r2": 1, "r3": 1, "r5": 1}
    copies = {(one.key() or b"").decode(): one for one in pool.kafka.read_all(pool.topics.requests(Tier.HIGH))}
    assert copies.keys() == {"r2", "r3"}
    place = pool.accepted["r3"]
    headers = dict(copies["r3"].headers() or ())
    assert headers[h.EXPEDITED_FROM] == f"{pool.topics.requests(Tier.LOW)}:{place.partition}:{place.offset}".encode()
    assert headers[h.EXPEDITED_TIER] == b"low"
    assert headers[h.ATTEMPT] == b"1"


def test_a_retry_that_waits_is_cancelled_and_one_that_is_expedited_runs_at_once(
    pool: LivePool, client: Producer, new_worker: NewWorker, engine: EngineProcess
) -> None:
    # Who is asked to wait so long goes to the topic with the longest delay.
    engine.faults({"kind": "status", "status": 408, "match": "unlucky", "retry_after_seconds": 20})
    worker = new_worker(pool, backend_url=engine.url, limit_max=4, pacing_policy="fixed")
    payload = chat(user="unlucky")
    pool.submit(Tier.LOW, *(envelope(name, payload=payload, ttl_ms=600_000) for name in ("ends", "hurries")))
    wait_until("both held", lambda: worker.metric("forebay_held_records", intake="retry") == 2)
    engine.faults()
    assert client.cancel(handle(pool, "ends")).outcome is CANCELLED
    assert client.expedite("hurries").outcome is EXPEDITED
    results = pool.results(["ends", "hurries"], seconds=15)
    assert (results["ends"].status, results["ends"].attempt) == ("cancelled", 2)
    assert (results["hurries"].status, results["hurries"].attempt, results["hurries"].tier) == ("completed", 2, "high")


@pytest.mark.long
def test_a_request_runs_once_although_its_owner_changes_after_it_was_expedited(
    pool: LivePool, client: Producer, new_worker: NewWorker, gate: Gate
) -> None:
    first = new_worker(pool, handler=HANDLER, limit_max=1, pacing_policy="fixed")
    block(pool, gate)
    names = [f"r{number}" for number in range(40)]
    pool.submit(Tier.LOW, *(envelope(name, payload=gate.noted()) for name in names))
    answers = client.control_batch(ControlAction.EXPEDITE, names[20:])
    assert {answer.outcome for answer in answers} == {EXPEDITED}
    new_worker(pool, handler=HANDLER, limit_max=1, pacing_policy="fixed")
    first.signal(signal.SIGTERM)
    gate.open()
    results = pool.results(["blocks", *names])
    assert {result.status for result in results.values()} == {"completed"}
    assert set(gate.starts().values()) == {1}
    assert [len(pool.all_results(name)) for name in names] == [1] * len(names)
    assert sum(len(pool.kafka.read_all(pool.topics.requests(tier))) for tier in TIERS) == 61
