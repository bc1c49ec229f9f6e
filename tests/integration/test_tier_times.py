"""A pool's own deadlines: the worker's count for requests of others, and whoever has different ones is told."""

from __future__ import annotations

import time
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from structlog.testing import capture_logs

from forebay_producer import Producer, ProducerSettings
from forebay_schemas.contract.tiers import DEFAULT_TTL_MS, Tier
from harness.doctor import Case, examine_all
from harness.exporter_process import running_exporter
from harness.forebay_command import ForebayCommand
from harness.live_pool import chat, envelope
from harness.signals import frozen
from harness.waiting import wait_until

if TYPE_CHECKING:
    from forebay_sandbox.engine.process import EngineProcess
    from harness.live_pool import LivePool
    from harness.worker_process import WorkerProcess
    from harness.workers import NewWorker

# So long that no machine is too slow for what is looked at meanwhile.
TTL_MS = 600_000
SETTING = f'{{"high": {TTL_MS}}}'
SAID = f"FOREBAY_TIER_TTL_MS high 5000 against {TTL_MS}"


def differing(worker: WorkerProcess) -> list[dict[str, str]]:
    found: list[dict[str, str]] = worker.status()["tier_times"]["differing"]
    return found


def warnings_in(logs: list[Any]) -> list[Any]:
    return [entry for entry in logs if entry["log_level"] == "warning"]


def test_a_foreign_request_has_the_workers_deadline_and_who_differs_is_told(
    pool: LivePool, new_worker: NewWorker, engine: EngineProcess
) -> None:
    worker = new_worker(pool, backend_url=engine.url, limit_max=1, tier_ttl_ms=SETTING)
    of_pool = {"FOREBAY_BOOTSTRAP_SERVERS": pool.kafka.bootstrap_servers, "FOREBAY_POOL": pool.name}
    command = ForebayCommand(bootstrap_servers=pool.kafka.bootstrap_servers, pool=pool.name)
    pool.submit(Tier.HIGH, envelope("blocks", ttl_ms=TTL_MS, payload=chat(output_tokens=100)))
    wait_until("the first request at work", lambda: engine.stats()["in_flight"] == 1)
    with frozen(engine.process), running_exporter(command, pool.name) as exporter:
        # It waits for longer than the default deadline while all others look at the pool.
        pool.submit(Tier.HIGH, envelope("foreign", ttl_ms=None))
        submitted = time.monotonic()
        doctors = examine_all(
            "forebay_producer",
            {"default": Case(settings=of_pool), "same": Case(settings=of_pool | {"FOREBAY_TIER_TTL_MS": SETTING})},
        )
        settings = ProducerSettings(bootstrap_servers=pool.kafka.bootstrap_servers, pool=pool.name)
        with capture_logs() as logs, closing(Producer(settings=settings)) as producer:
            producer.submit(envelope("of-a-client", ttl_ms=None), tier=Tier.LOW)
            wait_until("the client's warning", lambda: warnings_in(logs))
        wait_until("a pool that is read", lambda: exporter.metric("forebay_exporter_up") == 1)
        assert exporter.metric("forebay_tier_deadline_seconds", tier="high") == TTL_MS / 1000
        assert exporter.metric("forebay_allowed_wait_seconds", tier="high") == 3
        assert exporter.metric("forebay_differing_workers") == 0
        wait_until(
            "an age of more than the default",
            lambda: (exporter.metric("forebay_oldest_age_seconds", tier="high") or 0) > 5,
        )
        ratio = exporter.metric("forebay_oldest_age_ratio", tier="high")
        assert ratio is not None
        assert 5_000 / TTL_MS < ratio < 1
        wait_until("the default passed", lambda: time.monotonic() - submitted > DEFAULT_TTL_MS[Tier.HIGH] / 1000)
        assert pool.ended() == set()
    assert pool.result("foreign").status == "completed"
    assert worker.status()["tier_times"] == {
        "ttl_ms": {"high": TTL_MS, "mid": 30_000, "low": 86_400_000},
        "wait_ms": {"high": 3_000, "mid": 18_000, "low": 51_840_000},
        "differing": [],
    }
    assert worker.metric("forebay_tier_deadline_seconds", tier="high") == TTL_MS / 1000
    assert doctors["same"].status("tiers") == "ok"
    assert doctors["default"].status("tiers") == "warning"
    assert f"here are other values than worker worker-1 has: {SAID} -> give" in doctors["default"].text("tiers")
    [told] = warnings_in(logs)
    assert (told["pool"], told["worker"], told["differs"]) == (pool.name, "worker-1", SAID)


def test_workers_with_different_deadlines_name_each_other(
    pool: LivePool, new_worker: NewWorker, engine: EngineProcess
) -> None:
    one = new_worker(pool, backend_url=engine.url, limit_max=1, wait=False)
    other = new_worker(pool, backend_url=engine.url, limit_max=1, tier_ttl_ms=SETTING)
    one.wait_ready()
    for worker, name, said in (
        (one, "worker-2", SAID),
        (other, "worker-1", f"FOREBAY_TIER_TTL_MS high {TTL_MS} against 5000"),
    ):
        wait_until("the other one heard", partial(differing, worker))
        assert differing(worker) == [{"worker": name, "difference": said}]
