"""The way back on a real broker: results where they are awaited, the engine's own refusals, and requests sent again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka.cimpl import NewPartitions

from forebay_sandbox.engine.process import running_engine
from forebay_schemas.contract.results import Result, decode_result
from forebay_schemas.contract.tiers import Tier
from harness.gate import HANDLER, Gate
from harness.live_pool import chat, envelope
from harness.waiting import wait_until

if TYPE_CHECKING:
    from harness.live_pool import LivePool, NewPool
    from harness.worker_process import WorkerProcess
    from harness.workers import NewWorker

ANSWER_SECONDS_MAX = 30.0
REFUSED = 1_000


def written(pool: LivePool, count: int) -> dict[str, list[tuple[int, Result]]]:
    """Partition and content of each result, by request, once there are ``count`` of them."""

    def enough() -> dict[str, list[tuple[int, Result]]] | None:
        records = pool.kafka.read_all(pool.topics.results)
        found: dict[str, list[tuple[int, Result]]] = {}
        for record in records:
            partition = record.partition()
            assert partition is not None
            result = decode_result(record.value())
            assert record.key() == result.request_id.encode()
            found.setdefault(result.request_id, []).append((partition, result))
        return found if len(records) >= count else None

    results = wait_until(f"{count} results", enough)
    assert results is not None
    return results


def all_finished(worker: WorkerProcess) -> None:
    wait_until("nothing unfinished", lambda: worker.metric("forebay_unfinished_records") == 0)


def test_results_lie_where_they_are_awaited_also_in_partitions_added_meanwhile(
    new_pool: NewPool, new_worker: NewWorker, tmp_path: Path
) -> None:
    pool, gate = new_pool(partitions=2), Gate(tmp_path)
    worker = new_worker(pool, handler=HANDLER)

    def awaited(request_id: str, reply: Any) -> dict[str, Any]:
        return envelope(request_id, payload=gate.noted(), reply=reply, tenant="t")

    wanted = {f"in-{number}": number % 2 for number in range(20)}
    pool.submit(Tier.MID, *(awaited(name, {"partition": number, "job": name}) for name, number in wanted.items()))
    for name, results in written(pool, 20).items():
        [(partition, result)] = results
        assert (partition, result.tenant) == (wanted[name], "t")
        assert result.reply == {"partition": wanted[name], "job": name}

    # Neither of them is a partition: the key decides.
    by_key = ["none-such", "none-such-again", "far-away", "no-number"]
    pool.submit(Tier.MID, *(envelope(name, payload=gate.noted()) for name in by_key))
    places = {name: written(pool, 24)[name][0][0] for name in by_key}
    replies: dict[str, Any] = {
        "none-such": {"partition": 2},
        "none-such-again": {"partition": 2},
        "far-away": {"partition": 2**31 - 1},
        "no-number": {"partition": "1"},
    }
    # Under the same ids, as dead letters come back: the ids' outcomes are known by now.
    for name, reply in replies.items():
        value = json.dumps(awaited(name, reply)).encode()
        pool.send(Tier.MID, value, key=name.encode(), headers=[("forebay-replay-count", b"1")])
    found = written(pool, 28)
    for name, place in places.items():
        assert [partition for partition, _ in found[name]] == [place, place]
    assert found["no-number"][1][1].reply is None

    admin = pool.kafka.admin()  # must outlive what it was asked
    admin.create_partitions([NewPartitions(pool.topics.results, 4)])[pool.topics.results].result(ANSWER_SECONDS_MAX)
    # Not one of them may go where its key belongs, however soon it comes.
    late = [f"late-{number}" for number in range(10)]
    pool.submit(Tier.HIGH, *(awaited(name, {"partition": 3}) for name in late))
    found = written(pool, 38)
    assert {name: [partition for partition, _ in found[name]] for name in late} == {name: [3] for name in late}
    all_finished(worker)
    assert worker.metric("forebay_dead_letters_total") == 0


def test_a_thousand_wrong_requests_get_the_engines_own_400_and_make_no_dead_letter(
    new_pool: NewPool, new_worker: NewWorker
) -> None:
    pool = new_pool(partitions=2)
    payloads = [chat(max_tokens=-1), chat(max_tokens=10_000_000)]
    with running_engine() as engine:
        worker = new_worker(pool, backend_url=engine.url, limit_max=16)
        wrong = [
            envelope(f"wrong-{number}", payload=payloads[number % 2], reply={"partition": 1})
            for number in range(REFUSED)
        ]
        right = [envelope(f"right-{number}", reply={"partition": 0}) for number in range(10)]
        kept = envelope("kept", payload=payloads[0], reply={"job": "nobody waits in a partition"})
        pool.submit(Tier.MID, *wrong[:500], *right, *wrong[500:], kept)
        found = written(pool, REFUSED + 11)
        all_finished(worker)
    assert {result.status for name, [(_, result)] in found.items() if name.startswith("right")} == {"completed"}
    for number in range(REFUSED):
        [(partition, result)] = found[f"wrong-{number}"]
        assert (partition, result.status, result.reason, result.http_status) == (1, "failed", "backend_rejected", 400)
        error = result.error_body["error"]
        assert error["type"] == "invalid_request_error"
        if number % 2:
            assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")
        else:
            assert error["param"] == "max_tokens"
    assert [letter.key() for letter in pool.dead_letters(1)] == [b"kept"]
    assert found["kept"][0][1].http_status == 400
    logged = worker.log_path.read_text(encoding="utf-8")
    assert "context_length_exceeded" not in logged


def test_a_request_that_runs_is_not_run_again_and_its_copies_are_answered_where_they_are_awaited(
    new_pool: NewPool, new_worker: NewWorker, tmp_path: Path
) -> None:
    pool, gate = new_pool(partitions=3), Gate(tmp_path)
    worker = new_worker(pool, handler=HANDLER, limit_max=2)
    value = envelope("same", payload=gate.payload())
    pool.submit(Tier.MID, {**value, "reply": {"partition": 0}})
    wait_until("the first runs", lambda: gate.starts()["same"] == 1)
    for number in range(30):
        copy = {**value, "payload": gate.noted(), "reply": {"partition": number % 3}}
        pool.send(Tier.MID, json.dumps(copy).encode(), key=b"%d" % number)
    # They take no slot: another request still starts.
    pool.submit(Tier.MID, envelope("beside", payload=gate.noted()))
    pool.results(["beside"])
    assert pool.ended() == {"beside"}
    gate.open()
    found = written(pool, 4)
    all_finished(worker)
    assert sorted(partition for partition, _ in found["same"]) == [0, 1, 2]
    assert {result.reply["partition"] == partition for partition, result in found["same"]} == {True}
    assert gate.starts() == {"same": 1, "beside": 1}
    assert worker.metric("forebay_copies_total", tier="mid") == 30
    worker.terminate()
    committed = pool.kafka.committed(pool.topics.group(Tier.MID), pool.topics.requests(Tier.MID))
    assert sum(committed.values()) == 32
    assert sum(map(len, written(pool, 4).values())) == 4


def test_a_worker_that_is_killed_with_copies_waiting_loses_neither_them_nor_their_first(
    new_pool: NewPool, new_worker: NewWorker, tmp_path: Path
) -> None:
    pool, gate = new_pool(partitions=3), Gate(tmp_path)
    properties = tmp_path / "kafka.properties"
    properties.write_text("session.timeout.ms=6000\n")
    settings: dict[str, Any] = {"handler": HANDLER, "kafka_properties": properties}
    first = new_worker(pool, **settings)
    names = [f"same-{number}" for number in range(5)]
    for name in names:
        value = json.dumps(envelope(name, payload=gate.payload(), reply={"partition": 1}, ttl_ms=300_000)).encode()
        for copy in range(4):
            pool.send(Tier.MID, value, key=f"{name}-{copy}".encode())
    wait_until("all of them run once", lambda: gate.starts() == dict.fromkeys(names, 1))
    wait_until("and the copies wait", lambda: first.metric("forebay_received_total") == 20)
    first.kill()
    assert pool.ended() == set()
    second = new_worker(pool, **settings)
    wait_until("all of them run again", lambda: gate.starts() == dict.fromkeys(names, 2))
    gate.open()
    pool.results(names)
    all_finished(second)
    found = written(pool, 5)
    assert {name: [partition for partition, _ in found[name]] for name in names} == {name: [1] for name in names}
    assert gate.starts() == dict.fromkeys(names, 2)
    assert second.metric("forebay_copies_total") + second.metric("forebay_duplicates_total") == 15
    second.terminate()
    committed = pool.kafka.committed(pool.topics.group(Tier.MID), pool.topics.requests(Tier.MID))
    assert sum(committed.values()) == 20
