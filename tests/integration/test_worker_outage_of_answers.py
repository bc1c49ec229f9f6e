"""A backend that answers, but every request with the same error: its state, not the requests' fault."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forebay_sandbox.engine.process import running_engine
from forebay_schemas.contract.tiers import TIERS, Tier
from harness.executions import read_executions
from harness.live_pool import chat, envelope
from harness.locked_backend import locked_backend
from harness.obedient_backend import answer, obedient_backend
from harness.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from harness.live_pool import LivePool
    from harness.worker_process import WorkerProcess
    from harness.workers import NewWorker

SECRET = "MY-PRIVATE-PROMPT"


def is_open(worker: WorkerProcess, cause: str) -> bool:
    status = worker.status()
    return bool(status["breaker"]["cause"] == cause and status["in_flight_requests"] == 0)


def test_an_engine_that_answers_500_to_all_for_a_while_costs_no_attempt(
    pool: LivePool, new_worker: NewWorker, tmp_path: Path
) -> None:
    log_path = tmp_path / "engine.jsonl"
    with running_engine(log_path=log_path) as engine:
        engine.faults({"kind": "status", "status": 500})
        worker = new_worker(pool, backend_url=engine.url)
        for tier in TIERS:
            names = (f"{tier}-{number}" for number in range(20))
            pool.submit(tier, *(envelope(name, payload=chat(output_tokens=5), ttl_ms=600_000) for name in names))
        wait_until("a state of the backend", lambda: is_open(worker, "error"))
        assert worker.metric("forebay_breaker_open") == 1
        assert worker.metric("forebay_breaker_cause", cause="error") == 1
        assert worker.get("/readyz")[0] == 200, "restarting the worker would not help"
        [line, *_] = worker.logged("the backend serves nobody; dispatch stops but for a probe")
        assert (line["level"], line["error"]) == ("error", "HTTP 500 (backend_error)")
        # Longer than all retries of one would take: half a second, one and two after each other.
        before = len(read_executions(log_path))
        wait_until("three probes", lambda: len(read_executions(log_path)) >= before + 3)
        assert pool.ended() == set()
        engine.faults()
        results = pool.results(pool.accepted)
        assert len(results) == 60
        assert {(result.status, result.attempt) for result in results.values()} == {("completed", 1)}
        assert worker.metric("forebay_dead_letters_total") == 0
        assert worker.metric("forebay_retries_total") == 0
        assert worker.metric("forebay_breaker_cause", cause="error") == 0
        assert worker.logged("the backend answers")


def test_a_backend_that_lets_nobody_in_stops_dispatch_loudly_and_costs_nothing(
    pool: LivePool, new_worker: NewWorker
) -> None:
    with running_engine() as engine:
        engine.faults({"kind": "status", "status": 401})
        worker = new_worker(pool, backend_url=engine.url, limit_max=4)
        ids = pool.submit(
            Tier.MID, *(envelope(f"locked-out-{number}", payload=chat(output_tokens=5)) for number in range(60))
        )
        wait_until("a state of the backend", lambda: is_open(worker, "credentials"))
        status, problems = worker.get("/readyz")
        assert status == 503
        assert "HTTP 401" in problems
        assert "FOREBAY_BACKEND_API_KEY" in problems
        assert "FOREBAY_BACKEND_API_KEY" in worker.status()["breaker"]["fix"]
        assert worker.metric("forebay_breaker_cause", cause="credentials") == 1
        assert pool.ended() == set()
        engine.faults()
        results = pool.results(ids)
        assert {(result.status, result.attempt) for result in results.values()} == {("completed", 1)}
        assert worker.metric("forebay_dead_letters_total") == 0
        wait_until("a ready worker", lambda: worker.get("/readyz")[0] == 200)


def test_a_key_that_is_changed_at_the_backend_first_and_in_its_file_later_costs_nothing(
    pool: LivePool, new_worker: NewWorker, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("old-key")
    with locked_backend("old-key") as backend:
        worker = new_worker(
            pool, backend_url=backend.url, backend_api_key=f"${{directory:{tmp_path}:key}}", limit_max=8
        )
        before = pool.submit(Tier.MID, *(envelope(f"before-{number}") for number in range(5)))
        pool.results(before)
        backend.key = "new-key"
        ids = pool.submit(Tier.MID, *(envelope(f"rotated-{number}", ttl_ms=600_000) for number in range(60)))
        wait_until("a state of the backend", lambda: is_open(worker, "credentials"))
        assert worker.get("/readyz")[0] == 503
        assert pool.ended() == set(before)
        (tmp_path / "key").write_text("new-key")
        results = pool.results(ids)
        assert {(result.status, result.attempt) for result in results.values()} == {("completed", 1)}
        assert worker.metric("forebay_dead_letters_total") == 0
        assert backend.refused <= 8 + 10, "probes only"


@pytest.mark.parametrize(
    ("status", "cause"), [(401, "credentials"), (500, "error"), (503, "unavailable"), (429, "unavailable")]
)
def test_what_a_backend_says_of_a_request_is_in_no_log_line_and_on_no_port(
    pool: LivePool, new_worker: NewWorker, status: int, cause: str
) -> None:
    said = f'{{"error": "cannot serve {SECRET}"}}'.encode()
    with obedient_backend() as url:
        worker = new_worker(pool, backend_url=url, limit_max=4)
        pool.submit(Tier.HIGH, *(envelope(f"r-{number}", payload=answer(said, status=status)) for number in range(6)))
        wait_until("a state of the backend", lambda: is_open(worker, cause))
        told = [worker.get(page)[1] for page in ("/status", "/readyz", "/livez", "/metrics")]
        assert f"HTTP {status}" in told[0]
        assert SECRET not in "".join(told)
        assert SECRET not in worker.log_path.read_text(encoding="utf-8")
