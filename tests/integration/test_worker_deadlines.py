"""Deadlines: what is late is reported and not run, and what becomes late while it runs is given up at once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from forebay_schemas.contract.tiers import Tier
from harness.executions import read_executions
from harness.live_pool import chat, envelope
from harness.signals import frozen
from harness.waiting import wait_until

if TYPE_CHECKING:
    from forebay_sandbox.engine.process import EngineProcess
    from harness.live_pool import LivePool
    from harness.served import Served
    from harness.workers import NewWorker

LONG_PAST_MS = 1735689600000


def ran(served: Served) -> set[str]:
    return {execution.request_id for execution in read_executions(served.engine_log)}


def test_a_request_past_its_deadline_is_reported_and_not_run(served: Served) -> None:
    served.pool.submit(Tier.HIGH, envelope("long-past", ttl_ms=None, expire_at=LONG_PAST_MS), envelope("in-time"))
    late, in_time = served.pool.result("long-past"), served.pool.result("in-time")
    assert (late.status, late.reason) == ("expired", "deadline_passed_waiting")
    assert late.service_seconds is None
    assert late.body is None
    assert late.error is not None
    assert "deadline" in late.error
    assert in_time.status == "completed"
    assert "long-past" not in ran(served)
    assert served.worker.metric("forebay_outcomes_total", reason="deadline_passed_waiting") >= 1


def test_ttl_wins_over_expire_at(served: Served) -> None:
    served.pool.submit(Tier.HIGH, envelope("both", ttl_ms=60_000, expire_at=LONG_PAST_MS))
    assert served.pool.result("both").status == "completed"


def test_a_request_that_expires_in_its_lane_is_reported_in_time_and_not_run(
    pool: LivePool, new_worker: NewWorker, engine: EngineProcess
) -> None:
    new_worker(pool, backend_url=engine.url, limit_max=1)
    pool.submit(Tier.HIGH, envelope("blocks", payload=chat(output_tokens=100)))
    wait_until("the first request at work", lambda: engine.stats()["in_flight"] == 1)
    with frozen(engine.process):
        pool.submit(Tier.LOW, envelope("impatient", ttl_ms=300))
        pool.submit(Tier.LOW, envelope("patient"))
        impatient = pool.result("impatient")
        assert (impatient.status, impatient.reason) == ("expired", "deadline_passed_waiting")
        assert pool.ended() == {"impatient"}, "reported only when a slot came free"
    assert {pool.result(request_id).status for request_id in ("blocks", "patient")} == {"completed"}
    assert engine.stats()["received"] == 2


def test_a_request_whose_deadline_passes_while_it_runs_is_given_up_and_frees_the_engine(served: Served) -> None:
    started = time.monotonic()
    served.pool.submit(Tier.MID, envelope("too-long", ttl_ms=2_000, payload=chat(output_tokens=3_000)))
    wait_until("the request at work", lambda: served.engine.stats()["running"] == 1)
    result = served.pool.result("too-long")
    assert (result.status, result.reason) == ("expired", "deadline_passed_running")
    assert result.service_seconds is not None
    assert result.service_seconds < 10
    wait_until("a free engine", lambda: served.engine.stats()["running"] == 0)
    assert time.monotonic() - started < 20  # its 3,000 tokens take 30 s
    [execution] = [one for one in read_executions(served.engine_log) if one.request_id == "too-long"]
    assert execution.outcome == "disconnected"
    assert served.worker.status()["in_flight_requests"] == 0


def test_an_expired_backlog_is_reported_to_the_last_one(served: Served) -> None:
    ids = served.pool.submit(
        Tier.LOW, *(envelope(f"old-{number}", ttl_ms=None, expire_at=LONG_PAST_MS) for number in range(600))
    )
    results = served.pool.results(ids)
    assert {result.reason for result in results.values()} == {"deadline_passed_waiting"}
    assert not ran(served) & set(ids)
