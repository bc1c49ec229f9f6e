"""Large bodies: what is in flight is bounded by the memory it takes, and that is given back."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import pytest

from forebay_schemas.contract.tiers import Tier
from harness.live_pool import envelope
from harness.patient_engine import patient_engine
from harness.process_memory import MIB, memory_limited, peak_mib, resident_mib
from harness.waiting import wait_until

if TYPE_CHECKING:
    from harness.live_pool import LivePool
    from harness.workers import NewWorker

IDLE_SECONDS = 20.0
LOG = logging.getLogger("tests.memory")


def image(size_bytes: int) -> dict[str, Any]:
    """A chat about an image, as clients send one."""
    data = "iVBORw0KGgo" * (size_bytes // 11)
    url = {"url": f"data:image/png;base64,{data}"}
    return {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": url}]}]}


def test_bodies_in_flight_are_bounded_by_the_memory_they_take(pool: LivePool, new_worker: NewWorker) -> None:
    payload = image(2 * MIB)
    # As long as it takes a busy machine to send four of them.
    with patient_engine(seconds=2.0) as engine:
        worker = new_worker(pool, backend_url=engine.url, limit_max=100, in_flight_bytes_max=16 * MIB)
        pid = worker.process.pid
        ids = pool.submit(Tier.MID, *(envelope(f"image-{number}", payload=payload) for number in range(12)))

        def full() -> dict[str, Any] | None:
            now = worker.status()
            limited = now["tiers"]["mid"]["limited_by"] or now["limited_by"] or {}
            return now if now["tiers"]["mid"]["waiting"] and limited.get("signal") == "memory" else None

        status = wait_until("a full memory, and more that wait", full)
        assert status is not None
        assert status["limited_by"]["signal"] == status["tiers"]["mid"]["limited_by"]["signal"] == "memory"
        assert status["in_flight_bytes"] >= status["in_flight_bytes_max"] == 16 * MIB
        assert worker.metric("forebay_in_flight_bytes_max") == 16 * MIB
        assert {result.status for result in pool.results(ids).values()} == {"completed"}
        assert engine.most == 4, "three at 4.4 MiB, and the one that passes the bound"
        wait_until("nothing in flight", lambda: worker.metric("forebay_in_flight_bytes") == 0)
        assert peak_mib(pid) < 200


def test_images_do_not_wait_for_the_prefill_of_their_bytes(pool: LivePool, new_worker: NewWorker) -> None:
    payload = image(2 * MIB)
    with patient_engine(seconds=2.0) as engine:
        new_worker(pool, backend_url=engine.url, pacing_policy="slo_aimd", lane_order="sjf_aged")
        ids = pool.submit(Tier.MID, *(envelope(f"image-{number}", payload=payload) for number in range(8)))
        assert {result.status for result in pool.results(ids).values()} == {"completed"}
        assert engine.most >= 4, "half a million tokens each, by their bytes, would run one by one"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_hundreds_of_large_bodies_fit_in_a_gibibyte_and_are_given_back(pool: LivePool, new_worker: NewWorker) -> None:
    payload = image(5 * MIB)
    with patient_engine(seconds=3.0) as engine:
        worker = new_worker(pool, backend_url=engine.url, limit_max=256)
        pid = worker.process.pid
        idle_mib = resident_mib(pid)
        with memory_limited(pid, 1024 * MIB):
            ids: list[str] = []
            for number in range(300):
                ids += pool.submit(Tier.MID, envelope(f"image-{number}", payload=payload, ttl_ms=600_000))
            results = pool.results(ids, seconds=300)
            assert {(result.status, result.attempt) for result in results.values()} == {("completed", 1)}
            assert worker.process.poll() is None
            assert engine.most > 20, "as many as the bound lets in"
            assert peak_mib(pid) < 900
            ended = time.monotonic()
            wait_until("the memory given back", lambda: resident_mib(pid) < idle_mib + 150, seconds=IDLE_SECONDS)
            assert time.monotonic() - ended < IDLE_SECONDS
    assert worker.metric("forebay_dead_letters_total") == 0
    LOG.info(
        "idle %.0f, peak %.0f, after %.0f MiB; %d in flight", idle_mib, peak_mib(pid), resident_mib(pid), engine.most
    )
