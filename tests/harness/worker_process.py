"""Worker processes: the command `forebay-worker run` as a user starts it, ended with the test. Starts and signals
processes; speaks HTTP to their ops port."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from forebay_sandbox.engine.process import call
from forebay_worker import cli as forebay_worker
from harness.waiting import PATIENCE_SECONDS, wait_until
from harness.warm_process import WarmPython

# The command itself, in a process that ends with this one however this one ends.
_PROGRAM = (
    "from forebay_sandbox.parent import exit_with_parent; exit_with_parent(); "
    "from forebay_worker.cli import main; main()"
)

_PYTHON = WarmPython(
    "forebay_sandbox.parent", "forebay_schemas.runtime.entry", "forebay_worker.cli", *forebay_worker.MODULES.values()
)

# Before anything of ours is imported, so that whoever reads the wall clock gets the wrong one.
WRONG_CLOCK = (
    "import time; right, right_ns = time.time, time.time_ns; "
    "time.time = lambda: right() + {seconds}; time.time_ns = lambda: right_ns() + round({seconds} * 1e9); "
)

PLAIN = {
    "FOREBAY_OPS_PORT": "0",
    "FOREBAY_OPS_HOST": "127.0.0.1",
    "FOREBAY_PACING_POLICY": "fixed",
    "FOREBAY_LANE_ORDER": "fifo",
    "FOREBAY_MID_SHARE": "0",
    "FOREBAY_LOW_SHARE": "0",
    "FOREBAY_HIGH_RESERVE_SHARE": "0",
    "FOREBAY_GPU": "none",
}
"""The limit is what a test says, and tiers and arrival alone decide the order: the tests of pacing and lanes say
otherwise."""


def clean_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with only these FOREBAY_ variables."""
    return {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")} | dict(settings)


class WorkerProcess:
    """A running worker."""

    def __init__(
        self, *, settings: Mapping[str, str], log_path: Path, folder: Path, wall_ahead_seconds: float = 0.0
    ) -> None:
        """Starts it in ``folder`` and returns at once; its log goes to ``log_path``."""
        program = WRONG_CLOCK.format(seconds=wall_ahead_seconds) + _PROGRAM if wall_ahead_seconds else _PROGRAM
        self.log_path = log_path
        self._url: str | None = None
        with log_path.open("wb") as log:
            self.process = _PYTHON.popen(
                program,
                ["run"],
                env=clean_environment({**PLAIN, **settings}),
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                warm=not wall_ahead_seconds,
            )

    def wait_listening(self, *, seconds: float = PATIENCE_SECONDS) -> None:
        """Return when its ops port answers."""
        port = wait_until(f"the worker's ops port; its log is {self.log_path}", self._logged_port, seconds=seconds)
        self._url = f"http://127.0.0.1:{port}"

    def wait_ready(self, *, seconds: float = PATIENCE_SECONDS) -> None:
        """Return when every tier's group has assigned partitions to it."""
        self.wait_listening(seconds=seconds)
        what = f"a ready worker; its log is {self.log_path}"
        wait_until(what, lambda: self.get("/readyz")[0] == 200, seconds=seconds)

    @property
    def url(self) -> str:
        """Its ops port's, once it listens."""
        assert self._url is not None
        return self._url

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of a page of the ops port."""
        status, body = call(self.url, "GET", path)
        return status, body.decode()

    def status(self) -> dict[str, Any]:
        """/status."""
        status, body = self.get("/status")
        assert status == 200
        document: dict[str, Any] = json.loads(body)
        return document

    def limited_by(self) -> str | None:
        """The signal that limits dispatch now."""
        limitation = self.status()["limited_by"]
        return None if limitation is None else str(limitation["signal"])

    def waiting(self) -> dict[str, int]:
        """Number of requests waiting in each lane."""
        return {tier: values["waiting"] for tier, values in self.status()["tiers"].items()}

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of this name with these labels."""
        return sum(
            sample.value
            for family in text_string_to_metric_families(self.get("/metrics")[1])
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def terminate(self) -> float:
        """SIGTERM; returns the seconds until its end, which must be a clean one."""
        started = time.monotonic()
        self.process.terminate()
        code = self.process.wait(PATIENCE_SECONDS)
        assert code == 0, f"exit code {code}:\n{self.log_tail()}"
        return time.monotonic() - started

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.communicate()

    def events(self) -> list[dict[str, Any]]:
        """The lines it has logged."""
        lines = []
        for line in self.log_path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                event = {"event": line}
            lines.append(event if isinstance(event, dict) else {"event": line})
        return lines

    def logged(self, event: str) -> list[dict[str, Any]]:
        """The lines it has logged of this event."""
        return [line for line in self.events() if line.get("event") == event]

    def assigned(self, topic: str) -> list[int]:
        """The partitions of a topic that it owns."""
        owned: list[int] = []
        for intake in self.status()["intakes"].values():
            owned += intake["assigned"].get(topic, [])
        return owned

    def log_tail(self) -> str:
        return "\n".join(self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-20:])

    def _logged_port(self) -> int | None:
        code = self.process.poll()
        assert code is None, f"the worker ended with exit code {code}:\n{self.log_tail()}"
        said = ("working", "waiting for Kafka")
        return next((event["ops_port"] for event in self.events() if event.get("event") in said), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Exit code and output of a command that has ended."""

    exit_code: int
    stdout: str
    stderr: str
    seconds: float


def run_worker_command(settings: Mapping[str, str], *options: str, seconds: float = PATIENCE_SECONDS) -> Ended:
    """Runs `forebay-worker run`, which must come to its end by itself."""
    started = time.monotonic()
    process = _PYTHON.popen(
        "from forebay_schemas.runtime.entry import forebay_worker; forebay_worker()",
        ["run", *options],
        env=clean_environment({**PLAIN, **settings}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        try:
            out, err = process.communicate(timeout=seconds)
        finally:
            process.kill()
    took = time.monotonic() - started
    return Ended(exit_code=process.returncode, stdout=out.decode(), stderr=err.decode(), seconds=took)
