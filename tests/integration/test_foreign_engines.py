"""Engines that are not ours start, answer, and end with their parent."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from forebay_sandbox.engine.process import call

if TYPE_CHECKING:
    from pathlib import Path

    from forebay_sandbox.testing.foreign_engines import ForeignEngine


def assert_answers_a_chat(foreign: ForeignEngine) -> None:
    body = {
        "model": foreign.model,
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 8,
        "ignore_eos": True,
    }
    status, content = call(foreign.url, "POST", "/v1/chat/completions", body)
    assert status == 200
    answer: dict[str, Any] = json.loads(content)
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"]["role"] == "assistant"
    assert answer["usage"]["completion_tokens"] >= 1
    status, content = call(foreign.url, "GET", "/v1/models")
    assert [model["id"] for model in json.loads(content)["data"]] == [foreign.model]


def test_xpyd_sim_answers_a_chat(xpyd_engine: ForeignEngine) -> None:
    assert_answers_a_chat(xpyd_engine)


def test_llamacpp_answers_a_chat(llamacpp_engine: ForeignEngine) -> None:
    assert_answers_a_chat(llamacpp_engine)
    assert b"llamacpp:requests_processing" in call(llamacpp_engine.url, "GET", "/metrics")[1]


def test_llamacpp_ends_with_max_tokens_when_eos_is_ignored(llamacpp_engine: ForeignEngine) -> None:
    body = {"model": llamacpp_engine.model, "prompt": "hello", "max_tokens": 50, "ignore_eos": True}
    status, content = call(llamacpp_engine.url, "POST", "/v1/completions", body)
    assert status == 200
    assert json.loads(content)["usage"]["completion_tokens"] == 50


@pytest.mark.parametrize(
    "opened",
    ["running_xpyd()", "running_llamacpp(Path(sys.argv[1]))"],
)
def test_a_killed_parent_takes_its_engine_along(tmp_path: Path, opened: str) -> None:
    program = f"""
import signal, sys
from pathlib import Path
from forebay_sandbox.testing.foreign_engines import running_llamacpp, running_xpyd
with {opened} as foreign:
    print(foreign.process.pid, flush=True)
    signal.pause()
"""
    parent = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    child.wait(timeout=20)
