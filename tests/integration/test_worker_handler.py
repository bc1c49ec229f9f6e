"""A handler of the user's own in the place of a backend: what it returns, raises and must not break."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from forebay_schemas.contract.tiers import Tier
from harness.live_pool import LivePool, envelope
from harness.waiting import wait_until
from harness.workers import running_workers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from forebay_sandbox.kafka.access import KafkaAccess
    from harness.worker_process import WorkerProcess

BLOCKS = "the event loop; call what blocks by asyncio.to_thread"


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


def test_a_handler_that_blocks_is_named_and_the_operations_port_answers_meanwhile(
    handled: Handled, tmp_path: Path
) -> None:
    payload = {"do": "block_at_gate", "gate": "blocked", "folder": str(tmp_path)}
    handled.pool.submit(Tier.HIGH, envelope("blocks", payload=payload))
    worker = handled.worker
    try:
        wait_until("a held loop", lambda: worker.metric("forebay_event_loop_held_seconds") > 1)
        status = worker.status()
        assert status["event_loop"]["request_id"] == "blocks"
        assert status["event_loop"]["held_seconds"] > 1
        assert worker.get("/livez") == (200, "ok\n")
        said = wait_until(
            "a port that says so", lambda: found[1] if (found := worker.get("/readyz"))[0] == 503 else None
        )
        assert said is not None
        assert "s by the handler of request blocks at handlers.py:" in said
        assert "in obey; call what blocks by asyncio.to_thread" in said
        wait_until("a line while it blocks", lambda: worker.logged(f"a handler holds {BLOCKS}"))
    finally:
        (tmp_path / "open-blocked").touch()
    assert handled.pool.result("blocks").status == "completed"
    [line] = wait_until("a line afterwards", lambda: worker.logged(f"a handler held {BLOCKS}"))
    assert line["request_id"] == "blocks"
    assert line["held_seconds"] >= 5
    assert worker.metric("forebay_event_loop_holds_total") == 1
    wait_until("a loop that turns", lambda: worker.status()["event_loop"]["held_seconds"] == 0)
    assert worker.get("/readyz") == (200, "ok\n")


def test_a_handler_says_what_is_not_to_be_tried_again_and_how_many_tokens_it_made(handled: Handled) -> None:
    handled.pool.submit(
        Tier.HIGH,
        envelope("counts", payload={"do": "count_tokens"}),
        envelope("rejects", max_attempts=5, payload={"do": "reject"}),
        envelope("gives-nan", max_attempts=5, payload={"do": "give_nan"}),
    )
    results = handled.pool.results(["counts", "rejects", "gives-nan"])
    counted, rejected, no_json = (results[name] for name in ("counts", "rejects", "gives-nan"))
    assert (counted.body, counted.prompt_tokens, counted.output_tokens) == ({"text": "hi"}, 7, 30)
    assert (rejected.status, rejected.reason, rejected.attempt) == ("failed", "handler_failed", 1)
    assert rejected.error == "NotRetryableError: no such voice"
    assert (no_json.reason, no_json.attempt) == ("handler_failed", 1)
    assert no_json.error == (
        "the handler's answer: body.scores[1]: is nan, which JSON cannot say; give null or leave it out"
    )
