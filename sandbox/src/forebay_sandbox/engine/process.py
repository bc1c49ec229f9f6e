"""Runs the simulated engine in its own process, for tests and the demo. Starts and ends it; talks HTTP."""

from __future__ import annotations

import http.client
import json
import select
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from forebay_sandbox.engine.physics import EnginePhysics
from forebay_sandbox.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_START_SECONDS_MAX = 30.0
_STOP_SECONDS_MAX = 10.0
_ANSWER_SECONDS_MAX = 10.0


class EngineStartError(SandboxError):
    """An engine's process ended, or did not answer in time."""

    reason = "engine_start_failed"


def call(url: str, method: str, path: str, body: object = None) -> tuple[int, bytes]:
    """Sends one HTTP request with a JSON body; returns status and body. OSError: no answer."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=_ANSWER_SECONDS_MAX)
    try:
        content = None if body is None else json.dumps(body)
        connection.request(method, path, content, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def wait_until_healthy(url: str, process: subprocess.Popen[Any], *, path: str = "/health") -> None:
    """Waits until `path` answers 200. EngineStartError: the process ended, or half a minute passed."""
    deadline = time.monotonic() + _START_SECONDS_MAX
    while True:
        if process.poll() is not None:
            raise EngineStartError(f"the engine at {url} ended with exit code {process.returncode} before it answered")
        try:
            if call(url, "GET", path)[0] == 200:
                return
        except (OSError, http.client.HTTPException):
            pass
        if time.monotonic() > deadline:
            raise EngineStartError(f"the engine at {url} did not answer {path} within {_START_SECONDS_MAX:.0f} s")
        time.sleep(0.02)


def end_process(process: subprocess.Popen[Any]) -> None:
    """SIGTERM, SIGKILL when that does not help, and collect the process."""
    process.terminate()
    try:
        process.communicate(timeout=_STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


class EngineProcess:
    """A running simulated engine."""

    def __init__(self, *, process: subprocess.Popen[bytes], url: str, control_url: str) -> None:
        self.url = url
        """Without /v1."""
        self.control_url = control_url
        """Where /sandbox/* answers, also while the engine refuses connections."""
        self.process = process

    def faults(self, *specs: dict[str, Any]) -> None:
        """Replaces the active faults, e.g. by `{"kind": "status", "status": 503}`; none: no faults."""
        self._control("PUT", "/sandbox/faults", {"faults": specs})

    def fault_hits(self) -> list[int]:
        """The number of requests that each fault affected."""
        document = json.loads(self._control("GET", "/sandbox/faults"))
        return [fault["hits"] for fault in document["faults"]]

    def stats(self) -> dict[str, int]:
        """The counts of /sandbox/requests."""
        counts: dict[str, int] = json.loads(self._control("GET", "/sandbox/requests"))
        return counts

    def reset(self) -> None:
        """Restarts the counts; faults stay."""
        self._control("POST", "/sandbox/reset")

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()

    def _control(self, method: str, path: str, body: object = None) -> bytes:
        status, content = call(self.control_url, method, path, body)
        if status >= 400:
            raise SandboxError(f"the engine refuses {method} {path}: {json.loads(content)['error']['message']}")
        return content


@contextmanager
def running_engine(
    *,
    physics: EnginePhysics | None = None,
    models: Sequence[str] = (),
    speed: float = 1.0,
    port: int = 0,
    seed: int = 0,
    log_path: Path | None = None,
) -> Iterator[EngineProcess]:
    """An engine that answers /health, ended with the block, and with this process however it ends.

    No physics and no models: the command's defaults. `log_path` gets a JSON line for each request.
    """
    physics = physics or EnginePhysics()
    command = [sys.executable, "-P", "-m", "forebay_sandbox.engine.cli", "--with-parent"]
    command += [f"--port={port}", "--control-port=0", f"--speed={speed}", f"--seed={seed}"]
    command += [f"--{name.replace('_', '-')}={getattr(physics, name)}" for name in physics.__slots__]
    command += [f"--model={model}" for model in models]
    if log_path is not None:
        command.append(f"--log={log_path}")
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    try:
        url = read_line(process)
        control_url = read_line(process)
        wait_until_healthy(url, process)
        yield EngineProcess(process=process, url=url, control_url=control_url)
    finally:
        end_process(process)


def read_line(process: subprocess.Popen[bytes]) -> str:
    """The next line that a starting engine prints; `process` has an unbuffered pipe as stdout."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], _START_SECONDS_MAX)
    line = process.stdout.readline() if ready else b""
    if not line:
        raise EngineStartError(f"the engine did not say its URL; exit code {process.poll()}, its message is on stderr")
    return line.decode().strip()
