"""Retries: a failure that may pass is tried again when its delay is over, and holds nothing up meanwhile."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pytest

from forebay_sandbox.engine.process import running_engine
from forebay_schemas.contract import headers as h
from forebay_schemas.contract.results import Result
from forebay_schemas.contract.tiers import Tier
from harness.executions import Execution, read_executions
from harness.live_pool import LivePool, chat, envelope
from harness.waiting import wait_until
from harness.workers import running_workers

if TYPE_CHECKING:
    from pathlib import Path

    from confluent_kafka import Message

    from forebay_sandbox.kafka.access import KafkaAccess
    from harness.worker_process import WorkerProcess
    from harness.workers import NewWorker

LATE_SECONDS_MAX = 0.5
"""Upper bound on the lateness of a due retry while the worker is idle."""

PASSING = [f"passing-{number}" for number in range(6)]
"""They fail twice, then they are answered."""

FOREIGN_HEADERS: list[tuple[str, bytes | None]] = [("x-trace", b"\x00\xff"), ("x-none", None)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried:
    """All requests were sent at once to a worker with one slot, and all have ended."""

    pool: LivePool
    worker: WorkerProcess
    results: dict[str, Result]
    executions: dict[str, list[Execution]]
    letters: dict[str, Message]
    enqueued_at: dict[str, int]

    def gaps_seconds(self, request_id: str) -> list[float]:
        """From the end of each execution to the start of the next."""
        runs = self.executions[request_id]
        return [(after.started_at_ms - before.ended_at_ms) / 1000 for before, after in itertools.pairwise(runs)]

    def outcome(self, request_id: str) -> tuple[str, str, int | None]:
        result = self.results[request_id]
        return result.status, result.reason, result.attempt


@pytest.fixture(scope="module")
def retried(kafka: KafkaAccess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Retried]:
    folder = tmp_path_factory.mktemp("retried")
    engine_log = folder / "engine.jsonl"
    with (
        running_engine(log_path=engine_log) as engine,
        closing(LivePool(kafka)) as pool,
        running_workers(folder) as new_worker,
    ):
        engine.faults(
            # A status that is the request's own whatever others get.
            *({"kind": "status", "status": 408, "match": request_id, "count": 2} for request_id in PASSING),
            {"kind": "status", "status": 400, "match": "wrong"},
            {"kind": "status", "status": 408, "match": "failing"},
        )
        worker = new_worker(pool, backend_url=engine.url, limit_max=1, max_retries=2)
        pool.submit(
            Tier.HIGH,
            *(envelope(request_id) for request_id in PASSING),
            envelope("failing-for-good"),
            envelope("failing-twice-allowed", max_attempts=2),
            envelope("failing-once-allowed", max_attempts=1),
            # Time for the first retry, even on a busy machine; the second would be due five seconds after it.
            envelope("failing-too-late", ttl_ms=5_000),
            envelope("wrong"),
        )
        value = json.dumps(envelope("failing-with-headers")).encode()
        pool.send(Tier.HIGH, value, key=None, headers=FOREIGN_HEADERS)
        pool.submit(Tier.LOW, *(envelope(f"other-{number}") for number in range(20)))
        results = pool.results([*pool.accepted, "failing-with-headers"])
        executions: dict[str, list[Execution]] = {}
        for each in read_executions(engine_log):
            executions.setdefault(each.request_id, []).append(each)
        yield Retried(
            pool=pool,
            worker=worker,
            results=results,
            executions=executions,
            letters={_id_in(letter): letter for letter in pool.dead_letters(5)},
            enqueued_at={
                _id_in(record): record.timestamp()[1] for record in kafka.read_all(pool.topics.requests(Tier.HIGH))
            },
        )


def _id_in(record: Message) -> str:
    request_id: str = json.loads(record.value() or b"")["request_id"]
    return request_id


def headers_of(record: Message) -> list[tuple[str, Any]]:
    return cast("list[tuple[str, Any]]", record.headers() or [])


def test_a_failure_that_passes_is_tried_again_after_one_second_and_after_five(retried: Retried) -> None:
    assert {retried.outcome(request_id) for request_id in PASSING} == {("completed", "completed", 3)}
    gaps = [retried.gaps_seconds(request_id) for request_id in PASSING]
    for index, delay in enumerate((1.0, 5.0)):
        waited = [each[index] for each in gaps]
        # The engine's clock counts whole milliseconds.
        assert min(waited) >= delay - 0.002, "tried too early"
        # The most punctual one: the machine may be busy with other tests.
        assert min(waited) <= delay + LATE_SECONDS_MAX
        assert max(waited) <= delay + 10
    assert all(len(each) == 2 for each in gaps)
    assert retried.worker.metric("forebay_retries_total", tier="high") >= 12


def test_attempts_used_up_end_in_the_dead_letters(retried: Retried) -> None:
    assert retried.outcome("failing-for-good") == ("failed", "backend_timeout", 3)
    assert len(retried.executions["failing-for-good"]) == 3
    headers = dict(headers_of(retried.letters["failing-for-good"]))
    assert headers[h.ATTEMPT] == b"3"
    assert headers[h.DLT_ORIGINAL_TOPIC] == retried.pool.topics.retry(Tier.HIGH, 5).encode()
    assert headers[h.DLT_ORIGINAL_CONSUMER_GROUP] == retried.pool.topics.retry_group.encode()


def test_the_first_enqueue_counts_through_every_retry(retried: Retried) -> None:
    for request_id in ("failing-for-good", "failing-twice-allowed"):
        headers = dict(headers_of(retried.letters[request_id]))
        assert int(headers[h.FIRST_ENQUEUED_AT]) == retried.enqueued_at[request_id]
    queue_seconds = retried.results["failing-for-good"].queue_seconds
    assert queue_seconds is not None
    assert queue_seconds >= 6


def test_an_envelope_says_how_often_it_may_be_tried(retried: Retried) -> None:
    assert retried.outcome("failing-twice-allowed") == ("failed", "backend_timeout", 2)
    assert retried.outcome("failing-once-allowed") == ("failed", "backend_timeout", 1)
    assert len(retried.executions["failing-twice-allowed"]) == 2
    assert len(retried.executions["failing-once-allowed"]) == 1


def test_a_retry_that_would_come_too_late_is_not_waited_for(retried: Retried) -> None:
    assert retried.outcome("failing-too-late") == ("expired", "retry_too_late", 2)
    [_, last] = retried.executions["failing-too-late"]
    # Before the next retry would have been due.
    assert retried.results["failing-too-late"].finished_at < last.ended_at_ms + 5_000
    assert "failing-too-late" not in retried.letters


def test_what_trying_again_cannot_help_is_a_dead_letter_at_once(retried: Retried) -> None:
    assert retried.outcome("wrong") == ("failed", "backend_rejected", 1)
    assert len(retried.executions["wrong"]) == 1
    assert dict(headers_of(retried.letters["wrong"]))[h.ATTEMPT] == b"1"


def test_key_value_and_headers_pass_through_retries_and_do_not_grow(retried: Retried) -> None:
    letter = retried.letters["failing-with-headers"]
    assert letter.key() is None
    headers = headers_of(letter)
    assert headers[: len(FOREIGN_HEADERS)] == FOREIGN_HEADERS
    names = [name for name, _ in headers]
    assert len(names) == len(set(names))
    assert dict(headers)[h.ATTEMPT] == b"3"
    never_retried = {name for name, _ in headers_of(retried.letters["failing-once-allowed"])}
    assert set(names) - {name for name, _ in FOREIGN_HEADERS} == never_retried | {h.NOT_BEFORE}


def test_a_retry_that_waits_holds_no_slot(retried: Retried) -> None:
    others = [retried.executions[f"other-{number}"] for number in range(20)]
    assert all(len(runs) == 1 for runs in others)
    # There is one slot: had one of them kept it while it waited, nothing would have started meanwhile.
    for request_id in PASSING:
        first, second, *_ = retried.executions[request_id]
        started = [run.started_at_ms for runs in retried.executions.values() for run in runs if run is not second]
        assert any(first.ended_at_ms <= at < second.started_at_ms for at in started)


def test_a_flood_of_low_requests_does_not_hold_up_a_retry_of_the_high_tier(
    pool: LivePool, new_worker: NewWorker, tmp_path: Path
) -> None:
    log_path = tmp_path / "engine.jsonl"
    with running_engine(log_path=log_path) as engine:
        worker = new_worker(pool, backend_url=engine.url, limit_max=1)
        engine.faults({"kind": "status", "status": 500, "match": "urgent", "count": 1})
        pool.submit(Tier.LOW, *(envelope(f"low-{number}", payload=chat(output_tokens=20)) for number in range(1_000)))
        wait_until("a full lane", lambda: worker.waiting()[Tier.LOW] >= 250)
        pool.submit(Tier.HIGH, envelope("urgent"))
        result = pool.result("urgent")
        assert (result.status, result.attempt) == ("completed", 2)
        runs = sorted(read_executions(log_path), key=lambda run: run.started_at_ms)
        first, second = (index for index, run in enumerate(runs) if run.request_id == "urgent")
        between = (runs[second].started_at_ms - runs[first].ended_at_ms) / 1000
        assert between >= 0.998
        assert second - first > 1, "low requests ran while the retry waited"
        # It took the next free slot when it was due: a low request takes a fifth of a second.
        due_ms = runs[first].ended_at_ms + 1_000
        started_since_due = [run for run in runs[first + 1 : second] if run.started_at_ms > due_ms + 1_000]
        assert len(started_since_due) <= 2
        assert len(pool.ended()) < 500
