"""A handler of the user's own in the place of a backend: what it returns, raises and must not break."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from forebay_schemas.contract.tiers import Tier
from harness.live_pool import LivePool, envelope
from harness.workers import running_workers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay_sandbox.kafka.access import KafkaAccess
    from harness.worker_process import WorkerProcess


@dataclass(frozen=True, slots=True, kw_only=True)
class Handled:
    """A pool and its worker, whose handler does what the payload says."""

    pool: LivePool
    worker: WorkerProcess


@pytest.fixture(scope="module")
def handled(kafka: KafkaAccess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Handled]:
    with closing(LivePool(kafka)) as pool, running_workers(tmp_path_factory.mktemp("handled")) as new_worker:
        worker = new_worker(pool, handler="harness.handlers:obey", limit_max=2, max_retries=0)
        yield Handled(pool=pool, worker=worker)


def test_a_handler_is_given_the_request_and_its_answer_is_the_body(handled: Handled) -> None:
    handled.pool.submit(
        Tier.HIGH, envelope("asks", biz_type="anything", priority=9, tenant="acme", payload={"do": "answer"})
    )
    result = handled.pool.result("asks")
    assert result.status == "completed"
    assert result.body == {"request_id": "asks", "tier": "high", "priority": 9, "tenant": "acme", "attempt": 1}


@pytest.mark.parametrize(
    ("do", "reason"),
    [
        ("raise", "handler_failed"),
        ("raise_cancelled", "handler_failed"),
        ("cancel_itself", "handler_failed"),
        ("exit", "handler_failed"),
        ("give_no_json", "handler_failed"),
        ("give_too_much", "result_too_large"),
    ],
)
def test_a_handler_that_misbehaves_fails_its_request_and_nothing_else(handled: Handled, do: str, reason: str) -> None:
    # One for each slot: a slot that was lost would be missed by the requests after them.
    bad = handled.pool.submit(Tier.HIGH, *(envelope(f"{do}-{number}", payload={"do": do}) for number in range(2)))
    good = handled.pool.submit(
        Tier.MID, *(envelope(f"after-{do}-{number}", payload={"do": "answer"}) for number in range(4))
    )
    results = handled.pool.results([*bad, *good])
    assert {(results[name].status, results[name].reason) for name in bad} == {("failed", reason)}
    assert {results[name].status for name in good} == {"completed"}
    assert handled.worker.status()["in_flight_requests"] == 0
    assert handled.worker.process.poll() is None


def test_a_handler_is_cancelled_at_the_deadline(handled: Handled) -> None:
    payload: dict[str, Any] = {"do": "sleep", "seconds": 60}
    handled.pool.submit(Tier.HIGH, envelope("sleeps", ttl_ms=1_500, payload=payload))
    assert handled.pool.result("sleeps").reason == "deadline_passed_running"


def test_after_a_handler_swallowed_its_cancellation_the_slot_still_works(handled: Handled) -> None:
    handled.pool.submit(
        Tier.HIGH,
        *(envelope(f"swallows-{n}", ttl_ms=500, payload={"do": "swallow_cancellation"}) for n in range(2)),
        *(envelope(f"then-{n}", payload={"do": "raise_cancelled"}) for n in range(2)),
        *(envelope(f"last-{n}", payload={"do": "answer"}) for n in range(2)),
    )
    results = handled.pool.results(
        [*(f"swallows-{n}" for n in range(2)), *(f"then-{n}" for n in range(2)), *(f"last-{n}" for n in range(2))]
    )
    assert {results[f"then-{n}"].reason for n in range(2)} == {"handler_failed"}
    assert {results[f"last-{n}"].status for n in range(2)} == {"completed"}
    assert handled.worker.status()["in_flight_requests"] == 0
