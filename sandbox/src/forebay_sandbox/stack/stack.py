"""A whole Forebay around a Kafka: the pool's topics, simulated engines and workers, each in its own process.

Starts processes marked with a run's token, so that the holder of the token can end them; waits until each is ready.
Their output goes to files. The caller ends them.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forebay_sandbox.engine.physics import EnginePhysics
from forebay_sandbox.engine.process import call
from forebay_sandbox.errors import SandboxError
from forebay_sandbox.kafka.access import KafkaAccess, kafka_from_environment
from forebay_sandbox.kafka.local import free_port
from forebay_sandbox.kafka.spec import HOST
from forebay_sandbox.process import END_SECONDS_MAX, token_option

MODEL: Final = "qwen2.5-72b"
WORKERS: Final = 2
PHYSICS: Final = EnginePhysics(a_seconds=0.002, b_seconds=0.00045, c_seconds=0.00003, max_num_seqs=64, own_queue_max=32)
"""An engine that serves about 20 of the demo's requests a second, so that a laptop's traffic can overload it."""

TOKEN_SECONDS_TARGET: Final = 0.008
"""Promised to the engine's clients: about a hundred tokens a second."""

LIMIT_START: Final = 8
"""The initial limit, harmless for so small an engine. The workers find the rest."""

_READY_SECONDS_MAX = 60.0
_LOG_LINES = 15


class StackStartError(SandboxError):
    """A part of the stack ended or was not ready in time. The message ends with its last output."""

    reason = "stack_start_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A process of the stack that answers HTTP."""

    name: str
    url: str
    ready_path: str
    process: subprocess.Popen[bytes]
    log_path: Path

    def ready(self) -> bool:
        """Whether it answers 200. Raises ``StackStartError`` if it has ended."""
        if (status := self.process.poll()) is not None:
            raise StackStartError(f"{self.name} ended with exit code {status} ({self.log_path}):\n{self.last_words()}")
        try:
            return call(self.url, "GET", self.ready_path)[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def last_words(self) -> str:
        """The end of its output."""
        return "\n".join(self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A running stack. URLs are without /v1."""

    kafka: KafkaAccess
    pool: str
    engines: tuple[Part, ...]
    workers: tuple[Part, ...]

    @property
    def parts(self) -> tuple[Part, ...]:
        return (*self.engines, *self.workers)


class Launcher:
    """Starts the parts of one run in ``folder``; logs go to ``log_dir``."""

    def __init__(self, *, token: str, folder: Path, log_dir: Path) -> None:
        self._token = token
        self._folder = folder
        self._log_dir = log_dir
        folder.mkdir(parents=True, exist_ok=True)
        log_dir.mkdir(parents=True, exist_ok=True)

    def start(self, *, kafka: KafkaAccess, pool: str, engines: Sequence[str]) -> Stack:
        """Starts everything and waits until it is ready. The workers use the first of ``engines`` (names).

        Raises ``ForebayError`` and leaves what it has started to the caller, who holds the token.
        """
        started = tuple(self._engine(name) for name in engines)
        return self._start(kafka=kafka, pool=pool, engines=started, backend=backend_settings(started[0].url))

    def start_exporter(self, *, kafka: KafkaAccess, pool: str) -> Part:
        """Starts `forebay exporter` for the pool, whose topics must exist, and waits until it is ready."""
        port = free_port()
        command = [_command("forebay"), "exporter", f"--pool={pool}", f"--host={HOST}", f"--port={port}"]
        env = client_environment(kafka, pool=pool)
        exporter = self._spawn("exporter", command, port=port, ready_path="/readyz", env=env)
        _wait_until((exporter,), Part.ready)
        return exporter

    def start_without_engine(self, *, kafka: KafkaAccess, pool: str, backend: dict[str, str]) -> Stack:
        """Starts a stack without engines; the ``backend`` variables name what executes requests, such as a handler.

        Returns once every worker has partitions, so that the first requests reach all workers.
        """
        stack = self._start(kafka=kafka, pool=pool, engines=(), backend=backend)
        _wait_until(stack.workers, _owns_partitions)
        return stack

    def _start(self, *, kafka: KafkaAccess, pool: str, engines: tuple[Part, ...], backend: dict[str, str]) -> Stack:
        env = client_environment(kafka, pool=pool)
        self._create_topics(env)
        workers = tuple(self._worker(f"worker-{number}", env=env | backend) for number in range(1, WORKERS + 1))
        stack = Stack(kafka=kafka, pool=pool, engines=engines, workers=workers)
        _wait_until(stack.parts, Part.ready)
        return stack

    def engine_log(self, name: str) -> Path:
        """The log of executions of engine ``name``."""
        return self._folder / f"{name}.executions.jsonl"

    def _engine(self, name: str) -> Part:
        port = free_port()
        options = [f"--{field.replace('_', '-')}={getattr(PHYSICS, field)}" for field in PHYSICS.__slots__]
        command = ["-m", "forebay_sandbox.engine.cli", f"--port={port}", f"--model={MODEL}", *options]
        command.append(f"--log={self.engine_log(name)}")
        return self._spawn(name, command, port=port, ready_path="/health", env=_plain_environment())

    def _worker(self, name: str, *, env: dict[str, str]) -> Part:
        port = free_port()
        env = env | {
            "FOREBAY_WORKER_ID": name,
            "FOREBAY_OPS_HOST": HOST,
            "FOREBAY_OPS_PORT": str(port),
        }
        return self._spawn(name, [_command("forebay-worker"), "run"], port=port, ready_path="/readyz", env=env)

    def _spawn(self, name: str, arguments: list[str], *, port: int, ready_path: str, env: dict[str, str]) -> Part:
        log_path = self._log_dir / f"{name}.log"
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                # -X takes any text: it puts the token on the command line, as -D does for the brokers.
                [sys.executable, "-P", "-X", token_option(self._token), *arguments],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C goes to the owner alone, who ends the parts in order.
                start_new_session=True,
            )
        url = f"http://{HOST}:{port}"
        return Part(name=name, url=url, ready_path=ready_path, process=process, log_path=log_path)

    def _create_topics(self, env: dict[str, str]) -> None:
        command = [sys.executable, "-P", _command("forebay"), "topics", "create"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=_READY_SECONDS_MAX, check=False)
        if done.returncode != 0:
            raise StackStartError(f"forebay topics create ended with {done.returncode}:\n{done.stderr.strip()}")


def backend_settings(engine_url: str) -> dict[str, str]:
    """The settings of the stack's workers for their engine; further workers need the same."""
    return {
        "FOREBAY_BACKEND_URL": engine_url,
        "FOREBAY_TPOT_TARGET_SECONDS": str(TOKEN_SECONDS_TARGET),
        "FOREBAY_LIMIT_START": str(LIMIT_START),
    }


def client_environment(kafka: KafkaAccess, *, pool: str) -> dict[str, str]:
    """An environment for Forebay's commands with this cluster and pool, and no other setting of Forebay."""
    env = _plain_environment() | {"FOREBAY_BOOTSTRAP_SERVERS": kafka.bootstrap_servers, "FOREBAY_POOL": pool}
    if kafka_from_environment() is not None and (properties := os.environ.get("FOREBAY_KAFKA_PROPERTIES")):
        env["FOREBAY_KAFKA_PROPERTIES"] = properties
    return env


def _plain_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}


def _command(name: str) -> str:
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise SandboxError(f"the command {name} is not installed beside {sys.executable}; run tools/bootstrap")
    return str(path)


def _wait_until(parts: Sequence[Part], is_so: Callable[[Part], bool]) -> None:
    deadline = time.monotonic() + _READY_SECONDS_MAX
    waiting = list(parts)
    while waiting := [part for part in waiting if not is_so(part)]:
        if time.monotonic() > deadline:
            part = waiting[0]
            raise StackStartError(
                f"{part.name} was not ready after {_READY_SECONDS_MAX:.0f} s ({part.log_path}):\n{part.last_words()}"
            )
        time.sleep(0.1)


def _owns_partitions(worker: Part) -> bool:
    if not worker.ready():
        return False
    intakes = json.loads(call(worker.url, "GET", "/status")[1])["intakes"]
    return all(any(intake["assigned"].values()) for intake in intakes.values())


def end_workers(stack: Stack) -> None:
    """Sends SIGTERM to the workers, so that they leave their groups, and waits for their end."""
    for worker in stack.workers:
        worker.process.terminate()
    for worker in stack.workers:
        try:
            worker.process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            worker.process.kill()
