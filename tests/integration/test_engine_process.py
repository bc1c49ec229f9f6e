"""The simulated engine as a process: it says where it listens, stops cleanly, and never outlives its parent."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from forebay_sandbox.engine.process import EngineProcess, EngineStartError, call, running_engine

if TYPE_CHECKING:
    from pathlib import Path

ENGINE = [sys.executable, "-m", "forebay_sandbox.engine.cli"]


def run_engine(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*ENGINE, *options], capture_output=True, text=True, timeout=60, check=False)


def test_an_engine_answers_as_soon_as_it_is_there(engine: EngineProcess) -> None:
    body = {"model": "qwen2.5-72b", "messages": []}
    assert call(engine.url, "POST", "/v1/chat/completions", body)[0] == 200
    assert engine.stats()["completed"] == 1
    engine.reset()
    assert engine.stats()["completed"] == 0


def test_sigterm_stops_it_at_once_and_cleanly(tmp_path: Path) -> None:
    log_path = tmp_path / "ledger.jsonl"
    process = subprocess.Popen([*ENGINE, "--port=0", f"--log={log_path}"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    url = process.stdout.readline().strip()

    def send_long() -> None:
        with pytest.raises(OSError):  # noqa: PT011 - reset or closed: both are right
            call(url, "POST", "/v1/completions", {"prompt": "x", "max_tokens": 100_000})

    sender = threading.Thread(target=send_long)
    sender.start()
    while json.loads(call(url, "GET", "/sandbox/requests")[1])["running"] == 0:
        time.sleep(0.01)
    process.terminate()
    process.communicate(timeout=20)
    sender.join(20)
    assert process.returncode == 0
    [line] = log_path.read_text().splitlines()
    assert json.loads(line)["outcome"] == "failed"


def test_a_killed_parent_takes_the_engine_along() -> None:
    program = (
        "import signal\n"
        "from forebay_sandbox.engine.process import running_engine\n"
        "with running_engine() as engine:\n"
        "    print(engine.process.pid, flush=True)\n"
        "    signal.pause()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    child.wait(timeout=20)


def test_a_killed_engine_can_come_back_on_its_port(tmp_path: Path) -> None:
    log_path = tmp_path / "ledger.jsonl"
    body = {"prompt": "x"}
    with running_engine(log_path=log_path) as first:
        assert call(first.url, "POST", "/v1/completions", body)[0] == 200
        first.kill()
        with running_engine(port=int(first.url.rsplit(":", 1)[1]), log_path=log_path) as second:
            assert second.url == first.url
            assert call(second.url, "POST", "/v1/completions", body)[0] == 200
    assert len(log_path.read_text().splitlines()) == 2


def test_a_speed_makes_it_faster() -> None:
    with running_engine(speed=100) as fast:
        started = time.monotonic()
        assert call(fast.url, "POST", "/v1/completions", {"prompt": "x", "max_tokens": 1000})[0] == 200
        assert time.monotonic() - started < 5  # 10 s at speed 1


def test_a_taken_port_is_told(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = run_engine(f"--port={port}")
        assert ended.returncode == 1
        assert str(port) in ended.stderr
        assert "Traceback" not in ended.stderr
        with pytest.raises(EngineStartError), running_engine(port=port):
            pass
    ended = run_engine("--port=0", f"--log={tmp_path}")
    assert ended.returncode == 1
    assert str(tmp_path) in ended.stderr


@pytest.mark.parametrize("option", ["--max-num-seqs=0", "--speed=0", "--a-seconds=-1", "--port=70000", "--unknown=1"])
def test_a_wrong_option_is_named(option: str) -> None:
    ended = run_engine(option)
    assert ended.returncode == 2
    name = option.split("=")[0].lstrip("-")
    assert any(spelled in ended.stderr for spelled in (name, name.replace("-", "_")))
