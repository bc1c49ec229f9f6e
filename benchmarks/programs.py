"""Starts the measured programs as child processes, watches what they use, and ends them. Reads the process table."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from forebay_sandbox.kafka.access import KafkaAccess
from forebay_sandbox.kafka.local import free_port
from forebay_schemas.errors import ForebayError

ROOT = Path(__file__).resolve().parent.parent
READY_SECONDS_MAX = 30.0
END_SECONDS_MAX = 30.0
RUN_SECONDS_MAX = 120.0
_LOG_LINES_SHOWN = 20


class BenchError(ForebayError):
    """A measurement could not be made; ``str(error)`` says why."""

    reason = "bench_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """A child's use of processor and memory, from its start to its end. ``most_bytes``: resident memory, sampled every
    20 ms."""

    seconds: float
    cpu_seconds: float
    most_bytes: int


class Program:
    """A running child."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log_path: Path) -> None:
        self._name = name
        self._process = process
        self._log_path = log_path
        self._seen = psutil.Process(process.pid)
        self._started_at = time.monotonic()
        self.ops_url = ""
        """URL of a worker's operations port."""

    def check_alive(self) -> None:
        """Raises ``BenchError`` with the end of the program's log when it has ended."""
        if (status := self._process.poll()) is not None:
            raise self._ended(status)

    def _ended(self, status: int) -> BenchError:
        lines = self.lines()[-_LOG_LINES_SHOWN:]
        return BenchError("\n".join([f"{self._name} ended by itself with status {status}:", *lines]))

    def lines(self) -> list[str]:
        """Its lines on stdout and stderr."""
        return self._log_path.read_text(errors="replace").splitlines()

    def watch_to_end(self) -> Usage:
        """Waits until it has ended by itself. Raises ``BenchError`` when it fails, or goes on for too long."""
        most_bytes = 0
        while True:
            # Unlike `poll`, this also tells what it used.
            ended, status, used = os.wait4(self._process.pid, os.WNOHANG)
            seconds = time.monotonic() - self._started_at
            if ended:
                break
            if seconds > RUN_SECONDS_MAX:
                raise BenchError(f"{self._name} has not ended after {RUN_SECONDS_MAX:.0f} s")
            most_bytes = max(most_bytes, self._seen.memory_info().rss)
            time.sleep(0.02)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        if self._process.returncode:
            raise self._ended(self._process.returncode)
        return Usage(seconds=seconds, cpu_seconds=used.ru_utime + used.ru_stime, most_bytes=most_bytes)

    def cpu_seconds(self) -> float:
        """User and system time of all its threads so far."""
        times = self._seen.cpu_times()
        return times.user + times.system

    def resident_bytes(self) -> int:
        """Resident memory, that of its children included."""
        total = self._seen.memory_info().rss
        for child in self._seen.children(recursive=True):
            try:
                total += child.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        return total

    def end(self) -> None:
        """SIGTERM, then SIGKILL when that does not end it in time."""
        self._process.terminate()
        try:
            self._process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def raw_program(role: str, kafka: KafkaAccess, *, source: str, sink: str, group: str, logs: Path) -> Iterator[Program]:
    """One of `benchmarks.raw`."""
    arguments = [sys.executable, "-m", "benchmarks.raw", role, "--source", source, "--sink", sink, "--group", group]
    with _running(f"raw {role}", arguments, _environment(kafka, {}), logs) as program:
        yield program


@contextmanager
def counting_program(kafka: KafkaAccess, *, source: str, records: int, logs: Path) -> Iterator[Program]:
    """The one of `benchmarks.raw` that ends by itself."""
    arguments = [sys.executable, "-m", "benchmarks.raw", "count", "--source", source, "--records", str(records)]
    with _running("raw count", arguments, _environment(kafka, {}), logs) as program:
        yield program


@contextmanager
def list_program(kafka: KafkaAccess, *, pool: str, logs: Path) -> Iterator[Program]:
    """`forebay dead-letters list`."""
    command = [str(Path(sys.executable).with_name("forebay")), "dead-letters", "list", "--output", "json"]
    with _running("dead-letters list", command, _environment(kafka, {"FOREBAY_POOL": pool}), logs) as program:
        yield program


@contextmanager
def worker_program(
    kafka: KafkaAccess, *, pool: str, handler: str, limit_requests: int, logs: Path
) -> Iterator[Program]:
    """A Forebay worker with a handler of `benchmarks.handlers` and a fixed limit; ready when the block begins."""
    port = free_port()
    settings = {
        "FOREBAY_POOL": pool,
        "FOREBAY_HANDLER": f"benchmarks.handlers:{handler}",
        "FOREBAY_PACING_POLICY": "fixed",
        "FOREBAY_LANE_ORDER": "fifo",
        "FOREBAY_LIMIT_MAX": str(limit_requests),
        "FOREBAY_OPS_PORT": str(port),
    }
    command = [str(Path(sys.executable).with_name("forebay-worker")), "run"]
    with _running("worker", command, _environment(kafka, settings), logs) as program:
        program.ops_url = f"http://127.0.0.1:{port}"
        _wait_ready(program, f"{program.ops_url}/readyz")
        yield program


@contextmanager
def streams_worker(
    kafka: KafkaAccess, *, pool: str, backend_url: str, limit_requests: int, logs: Path
) -> Iterator[Program]:
    """A Forebay worker before a backend, with a fixed limit; ready when the block begins."""
    port = free_port()
    settings = {
        "FOREBAY_POOL": pool,
        "FOREBAY_BACKEND_URL": backend_url,
        "FOREBAY_PACING_POLICY": "fixed",
        "FOREBAY_LANE_ORDER": "fifo",
        "FOREBAY_LIMIT_MAX": str(limit_requests),
        "FOREBAY_HIGH_RESERVE_SHARE": "0",
        "FOREBAY_GPU": "none",
        "FOREBAY_OPS_PORT": str(port),
    }
    command = [str(Path(sys.executable).with_name("forebay-worker")), "run"]
    with _running("streams worker", command, _environment(kafka, settings), logs) as program:
        program.ops_url = f"http://127.0.0.1:{port}"
        _wait_ready(program, f"{program.ops_url}/readyz")
        yield program


@contextmanager
def streams_engine(kafka: KafkaAccess, *, logs: Path) -> Iterator[str]:
    """The engine of `benchmarks.stream_programs`; gives its URL."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.stream_programs", "engine", "--port", str(port)]
    with _running("streams engine", command, _environment(kafka, {}), logs) as program:
        _wait_ready(program, f"http://127.0.0.1:{port}/active")
        yield f"http://127.0.0.1:{port}"


@contextmanager
def streams_reader(kafka: KafkaAccess, *, url: str, streams: int, tokens: int, logs: Path) -> Iterator[Program]:
    """The HTTP client of `benchmarks.stream_programs`, which reads streams and throws them away."""
    command = [sys.executable, "-m", "benchmarks.stream_programs", "reader", "--url", url]
    command += ["--streams", str(streams), "--tokens", str(tokens)]
    with _running("streams reader", command, _environment(kafka, {}), logs) as program:
        yield program


@contextmanager
def paced_worker(
    kafka: KafkaAccess, *, pool: str, backend_url: str, metrics_url: str | None, number: int, logs: Path
) -> Iterator[str]:
    """A Forebay worker with all its defaults before a backend; gives the URL of its operations port.

    ``metrics_url``: where it looks for the engine's metrics; None: where it does by default.
    """
    port = free_port()
    settings = {
        "FOREBAY_POOL": pool,
        "FOREBAY_BACKEND_URL": backend_url,
        "FOREBAY_WORKER_ID": f"worker-{number}",
        "FOREBAY_OPS_PORT": str(port),
    }
    if metrics_url is not None:
        settings["FOREBAY_METRICS_URL"] = metrics_url
    command = [str(Path(sys.executable).with_name("forebay-worker")), "run"]
    with _running(f"worker {number}", command, _environment(kafka, settings), logs) as program:
        _wait_ready(program, f"http://127.0.0.1:{port}/readyz")
        yield f"http://127.0.0.1:{port}"


def _environment(kafka: KafkaAccess, settings: Mapping[str, str]) -> dict[str, str]:
    # What the caller's shell sets for other programs must not change what is measured.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    if "FOREBAY_KAFKA_PROPERTIES" in os.environ:
        inherited["FOREBAY_KAFKA_PROPERTIES"] = os.environ["FOREBAY_KAFKA_PROPERTIES"]
    return {**inherited, "FOREBAY_BOOTSTRAP_SERVERS": kafka.bootstrap_servers, "PYTHONPATH": str(ROOT), **settings}


@contextmanager
def _running(name: str, command: Sequence[str], environment: Mapping[str, str], logs: Path) -> Iterator[Program]:
    log_path = logs / f"{name.replace(' ', '-')}-{time.time_ns()}.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=dict(environment), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        program = Program(name, process, log_path)
        try:
            yield program
        finally:
            program.end()


def _wait_ready(program: Program, url: str) -> None:
    deadline = time.monotonic() + READY_SECONDS_MAX
    while time.monotonic() < deadline:
        program.check_alive()
        try:
            with urllib.request.urlopen(url, timeout=1) as answer:  # noqa: S310 - our own http URL
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.01)
    raise BenchError(f"the worker was not ready after {READY_SECONDS_MAX:.0f} s")
