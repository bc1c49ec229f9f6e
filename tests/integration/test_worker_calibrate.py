"""`forebay-worker calibrate` as its users run it, on engines whose physics are known and on real ones."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay_sandbox.engine.physics import EnginePhysics
from forebay_sandbox.engine.process import EngineProcess
from forebay_sandbox.testing.foreign_engines import ForeignEngine
from forebay_schemas.contract.calibration import Calibration, read_calibration
from forebay_worker.settings import load_worker_settings
from harness.nvml_stub import NvmlStub, gpu_state
from harness.waiting import wait_until
from harness.worker_process import clean_environment

# Steps so long that what a busy machine adds to them is little; 16 places, so that few steps show all.
PHYSICS = EnginePhysics(a_seconds=0.04, b_seconds=0.002, c_seconds=0.0002, max_num_seqs=16, own_queue_max=64)
PROMPT_TOKENS, OUTPUT_TOKENS = 50, 10
SECONDS_MAX = 240.0
LONGER = ["--prompt-tokens", str(PROMPT_TOKENS), "--output-tokens", str(OUTPUT_TOKENS), "--window", "1.5s"]
"""What else the machine does is then part of each window."""
SHORT = ["--prompt-tokens", str(PROMPT_TOKENS), "--output-tokens", str(OUTPUT_TOKENS), "--window", "0.3s"]


def physical_seconds(in_flight: int) -> float:
    """Time of a request among others: its own steps, and those that the others' prompts add."""
    steps = OUTPUT_TOKENS * PHYSICS.a_seconds
    own = (OUTPUT_TOKENS - 1) * PHYSICS.b_seconds + PROMPT_TOKENS * PHYSICS.c_seconds
    return steps + own * in_flight


def calibrate(*arguments: str, gpu: NvmlStub | None = None) -> subprocess.Popen[str]:
    """Starts it. It does not watch its parent: without its engine it ends by itself."""
    return subprocess.Popen(
        [sys.executable, "-P", "-c", "from forebay_worker.cli import main; main()", "calibrate", *arguments],
        env=clean_environment({"FOREBAY_GPU": "none"} if gpu is None else {"FOREBAY_GPU": "nvml", **gpu.environment}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    try:
        out, err = process.communicate(timeout=SECONDS_MAX)
    finally:
        process.kill()
    assert "Traceback" not in err, err
    return process.returncode, out, err


def read(out: str) -> Calibration:
    return read_calibration(out.encode(), field="stdout")


@pytest.mark.long
def test_the_recommended_limit_is_near_to_what_the_physics_say(
    new_engine: Callable[..., EngineProcess], tmp_path: Path
) -> None:
    engine = new_engine(physics=PHYSICS)
    file, document = tmp_path / "worker.toml", tmp_path / "calibration.json"
    code, out, err = ended(
        calibrate("--backend-url", engine.url, *SHORT, "--write-settings", str(file), "--write-json", str(document))
    )
    assert code == 0, err
    found = read_calibration(document.read_bytes(), field="file")
    assert found.state == "complete"
    assert [step.concurrency for step in found.steps if step.concurrency in (1, 2, 4, 8, 16, 32)] == [
        1,
        2,
        4,
        8,
        16,
        32,
    ]
    assert found.steps[-1].state == "saturated", "32 do not fit into 16 places"
    assert found.recommended is not None
    best = PHYSICS.max_num_seqs / physical_seconds(PHYSICS.max_num_seqs)
    assert found.recommended.stable_requests_per_second == pytest.approx(best, rel=0.3)
    wanted = next(n for n in range(1, 17) if n / physical_seconds(n) >= 0.8 * best)
    assert found.recommended.limit_requests == pytest.approx(wanted, abs=3)
    assert found.recommended.service_seconds == pytest.approx(physical_seconds(wanted), rel=0.3)
    settings = load_worker_settings(flags={}, config=file)
    assert settings.limit_start == found.recommended.limit_requests
    assert "Recommended:" in out
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.long
def test_an_engine_that_gets_sick_ends_it_with_what_was_measured(new_engine: Callable[..., EngineProcess]) -> None:
    engine = new_engine(physics=PHYSICS)
    process = calibrate("--backend-url", engine.url, *SHORT, "--output", "json")
    wait_until("some load", lambda: engine.stats()["running"] >= 12, seconds=SECONDS_MAX)
    engine.faults({"kind": "status", "status": 503})
    code, out, _ = ended(process)
    found = read(out)
    assert found.state == "stopped"
    assert "HTTP 503" in str(found.stopped_by)
    assert len(found.steps) >= 3
    # On a machine that is too busy for three steps to hold still there is nothing to recommend.
    assert code == (1 if found.recommended is None else 4)


@pytest.mark.long
@pytest.mark.parametrize(
    ("physics", "cause"),
    [
        (EnginePhysics(a_seconds=0.02, b_seconds=0.001, kv_tokens=600), "KV cache"),
        (EnginePhysics(a_seconds=0.02, b_seconds=0.001, max_num_seqs=4, own_queue_max=2), "requests failed"),
    ],
)
def test_an_engine_at_its_end_is_not_pushed_further(
    new_engine: Callable[..., EngineProcess], physics: EnginePhysics, cause: str
) -> None:
    engine = new_engine(physics=physics)
    code, out, _ = ended(calibrate("--backend-url", engine.url, *SHORT, "--output-tokens", "30", "--output", "json"))
    found = read(out)
    assert code in (0, 4)
    assert found.steps[-1].concurrency <= 32
    assert found.state == "complete" or cause in str(found.stopped_by)


@pytest.mark.long
def test_ctrl_c_leaves_what_was_measured(new_engine: Callable[..., EngineProcess]) -> None:
    engine = new_engine(physics=PHYSICS)
    process = calibrate("--backend-url", engine.url, *SHORT, "--output", "json")
    wait_until("some load", lambda: engine.stats()["running"] >= 4, seconds=SECONDS_MAX)
    process.send_signal(signal.SIGINT)
    code, out, _ = ended(process)
    found = read(out)
    assert (code, found.state) == (130, "interrupted")
    assert found.steps
    wait_until("an idle engine", lambda: engine.stats()["running"] == 0)


@pytest.mark.long
def test_what_the_gpu_says_stands_beside_each_step(new_engine: Callable[..., EngineProcess], tmp_path: Path) -> None:
    engine, gpu = new_engine(physics=PHYSICS), NvmlStub(tmp_path / "nvml")
    gpu.answer({"gpus": 1, **gpu_state(utilisation=70, memory_used=60, memory_total=80)})
    code, out, err = ended(
        calibrate("--backend-url", engine.url, *SHORT, "--max-concurrency", "4", "--output", "json", gpu=gpu)
    )
    assert code == 0, err
    found = read(out)
    last = found.steps[-1]
    assert last.gpu_utilisation == pytest.approx(0.7)
    assert last.gpu_memory_share == pytest.approx(0.75)
    assert "--max-concurrency ended it" in found.notes[0]


def test_a_backend_that_others_use_and_one_that_is_not_there_are_refused_in_a_line(
    new_engine: Callable[..., EngineProcess],
) -> None:
    engine = new_engine(physics=EnginePhysics(a_seconds=1.0))
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1000}
    with subprocess.Popen(
        [sys.executable, "-c", _CALL.format(url=engine.url, body=json.dumps(body))], stdin=subprocess.PIPE
    ) as other:
        try:
            wait_until("a request of somebody else's", lambda: engine.stats()["running"] == 1)
            busy = ended(calibrate("--backend-url", engine.url, *SHORT))
        finally:
            other.kill()
    assert busy[0] == 1
    assert busy[2].startswith("error: others use the backend, requests now: 1")
    engine.kill()
    gone = ended(calibrate("--backend-url", engine.url, *SHORT))
    assert gone[0] == 1
    assert gone[2].startswith("error: the backend did not answer a first request: ")


_CALL = (
    "import urllib.request; urllib.request.urlopen(urllib.request.Request('{url}/v1/chat/completions', b'''{body}'''))"
)


@pytest.mark.long
@pytest.mark.parametrize("name", ["xpyd_engine", "llamacpp_engine"])
def test_engines_that_are_not_ours_are_calibrated(name: str, request: pytest.FixtureRequest) -> None:
    engine: ForeignEngine = request.getfixturevalue(name)
    slots = 8 if name == "xpyd_engine" else 4
    code, out, err = ended(
        calibrate("--backend-url", engine.url, *LONGER, "--max-concurrency", "16", "--output", "json")
    )
    found = read(out)
    assert found.state == "complete", err
    assert len(found.steps) >= 3
    assert all(step.ttft_p50_seconds is not None and not step.errors for step in found.steps)
    # Real llama.cpp computes on this machine: while others do too, hardly a step holds still.
    assert code == (1 if found.recommended is None else 0)
    assert found.recommended is None or 1 <= found.recommended.limit_requests <= 2 * slots


@pytest.mark.long
def test_a_handler_is_calibrated_by_its_latency(tmp_path: Path) -> None:
    (tmp_path / "slots.py").write_text(
        "import asyncio\nplaces = asyncio.Semaphore(3)\nasync def handle(request):\n"
        "    async with places:\n        await asyncio.sleep(0.02)\n        return {}\n"
    )
    program = "from forebay_worker.cli import main; main()"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            program,
            "calibrate",
            "--handler",
            "slots:handle",
            "--window",
            "0.2s",
            "--output",
            "json",
        ],
        env=clean_environment({"FOREBAY_GPU": "none"}),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = read(done.stdout)
    assert found.recommended is not None
    assert found.recommended.limit_requests in (2, 3, 4)
    assert found.recommended.tpot_target_seconds is None
