"""Pacing on a real broker: the limit follows GPU and engine, the poll rate follows the limit, and /status says why."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forebay_sandbox.engine.process import running_engine
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.errors import ExitCode
from harness.live_pool import chat, envelope
from harness.nvml_stub import NvmlStub, gpu_state
from harness.waiting import wait_until

if TYPE_CHECKING:
    from forebay_sandbox.engine.process import EngineProcess
    from harness.live_pool import LivePool
    from harness.worker_process import WorkerProcess
    from harness.workers import NewWorker

LOOK_SECONDS = 3.0
TTL_MS = 600_000


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NvmlStub:
    """One GPU, as the stub of its driver shows it to the worker's processes."""
    stub = NvmlStub(tmp_path / "nvml")
    for name, value in stub.environment.items():
        monkeypatch.setenv(name, value)
    return stub


def busy(stub: NvmlStub, percent: float) -> None:
    stub.answer({"gpus": 1, **gpu_state(0, utilisation=percent)})


def poll_rate(worker: WorkerProcess) -> float:
    """Records taken from Kafka per second."""
    before, since = worker.metric("forebay_received_total"), time.monotonic()
    time.sleep(LOOK_SECONDS)
    return (worker.metric("forebay_received_total") - before) / (time.monotonic() - since)


def status_command(*options: str) -> subprocess.CompletedProcess[str]:
    command = Path(sys.executable).with_name("forebay-worker")
    return subprocess.run(
        [command, "status", *options], capture_output=True, text=True, timeout=30, check=False, stdin=subprocess.DEVNULL
    )


def test_the_limit_and_the_poll_rate_follow_a_falling_and_rising_gpu(
    pool: LivePool, new_worker: NewWorker, gpu: NvmlStub
) -> None:
    busy(gpu, 20)
    worker = new_worker(
        pool,
        handler="harness.handlers:obey",
        pacing_policy="gpu_target",
        gpu="nvml",
        gpu_utilisation_target=0.5,
        limit_min=2,
        limit_start=16,
        limit_max=24,
    )
    payload = {"do": "sleep", "seconds": 0.1}
    pool.submit(Tier.HIGH, *(envelope(f"r-{n}", ttl_ms=TTL_MS, payload=payload) for n in range(8_000)))

    wait_until("a limit that has grown", lambda: worker.metric("forebay_limit_requests") == 24)
    at_24 = poll_rate(worker)
    assert worker.metric("forebay_gpu_utilisation_ratio") == 0.2
    assert worker.metric("forebay_signal_up", signal="gpu") == 1

    busy(gpu, 100)
    wait_until("a limit that was cut", lambda: worker.metric("forebay_limit_requests") == 2)
    at_2 = poll_rate(worker)
    assert at_2 < at_24 / 4, f"{at_24:.0f}/s with 24 in flight, {at_2:.0f}/s with 2"
    assert worker.status()["limited_by"] == {"signal": "limit", "value": 2, "threshold": 2}

    busy(gpu, 20)
    wait_until("a limit that has grown again", lambda: worker.metric("forebay_limit_requests") >= 14)
    wait_until("a poll rate that has grown with it", lambda: poll_rate(worker) > at_24 / 4)

    status = worker.status()
    assert (status["pacing"]["policy"], status["pacing"]["target"]) == (
        "gpu_target",
        {"signal": "gpu_utilisation", "value": 0.5},
    )
    causes = [change["cause"] for change in status["pacing"]["changes"]]
    assert any("GPU utilisation 20% is below the target of 50%" in cause for cause in causes), causes
    assert status["signals"]["engine"]["state"] == "off", "a handler has no metrics unless one says where"
    assert status["signals"]["gpu"]["state"] == "ok"


def test_the_limit_follows_the_engines_counters_and_status_says_why(pool: LivePool, new_worker: NewWorker) -> None:
    with running_engine() as engine:
        worker = new_worker(pool, backend_url=engine.url, pacing_policy="slo_aimd", lane_order="sjf_aged")
        for tier in (Tier.HIGH, Tier.MID):
            payload = chat(output_tokens=60)
            pool.submit(tier, *(envelope(f"{tier}-{n}", ttl_ms=TTL_MS, payload=payload) for n in range(500)))
        wait_until("a limit that was changed", lambda: worker.metric("forebay_limit_changes_total") >= 2)
        wait_until(
            "a model of the engine's counters",
            lambda: worker.status()["pacing"]["model"]["learns_from"] == "engine_counters",
        )
        wait_until("estimates", lambda: worker.status()["tiers"]["high"]["estimates"]["output_tokens"])
        status = worker.status()
        table = status_command("--url", worker.url)
        document = json.loads(status_command("--url", worker.url, "--output", "json").stdout)
        metric = worker.metric
        assert metric("forebay_signal_up", signal="engine") == 1
        assert metric("forebay_signal_age_seconds", signal="engine") < 5
        assert metric("forebay_engine_running_requests") > 0
        assert metric("forebay_token_seconds") > 0

    last = status["pacing"]["changes"][-1]
    assert last["before"] != last["after"]
    assert last["cause"]
    assert status["pacing"]["target"]["value"] == pytest.approx(0.05 * status["pacing"]["target"]["stretch"], rel=0.1)
    high = status["tiers"]["high"]
    assert high["running"] > 0
    assert high["oldest_seconds"] > 0
    assert high["estimated_wait_seconds"] > 0
    assert 0.3 < high["estimates"]["output_tokens"]["actual_over_predicted"] < 3

    assert table.returncode == 0
    assert "slo_aimd" in table.stdout
    assert "learnt from engine counters" in table.stdout
    assert last["cause"] in table.stdout
    assert document["worker"] == "worker-1"


def test_status_of_no_worker_ends_in_one_line(engine: EngineProcess) -> None:
    ended = status_command("--url", engine.url)
    assert ended.returncode == ExitCode.FAILED
    assert ended.stderr == f"error: what answers at {engine.url} is no worker: HTTP 404 to /status\n"
    nobody = status_command("--url", "http://127.0.0.1:1")
    assert nobody.returncode == ExitCode.FAILED
    assert nobody.stderr.startswith("error: no worker answers at http://127.0.0.1:1 (")
    assert status_command("--url", "8081").returncode == ExitCode.USAGE
