"""Worker processes of a run: started, signalled, watched. Starts processes and looks at their memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from chaos.facts import End, Life, RunError
from forebay_sandbox.engine.process import call
from forebay_schemas.errors import ExitCode

# The command itself, in a process that ends with this one however this one ends.
_PROGRAM = (
    "from forebay_sandbox.parent import exit_with_parent; exit_with_parent(); "
    "from forebay_worker.cli import main; main()"
)
_END_SECONDS_MAX = 60.0


def now_ms() -> int:
    """Epoch milliseconds."""
    return time.time_ns() // 1_000_000


class Workers:
    """``lives`` are all that ever ran. For one thread."""

    def __init__(self, *, folder: Path, settings: Mapping[str, str]) -> None:
        self.lives: list[Life] = []
        self._folder = folder
        self._settings = settings
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, slot: int, *, bootstrap_servers: str) -> Life:
        """Starts a worker and returns at once."""
        name = f"worker-{len(self.lives) + 1}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
        settings = {
            "FOREBAY_OPS_PORT": "0",
            "FOREBAY_OPS_HOST": "127.0.0.1",
            "FOREBAY_WORKER_ID": name,
            "FOREBAY_BOOTSTRAP_SERVERS": bootstrap_servers,
            **self._settings,
        }
        with self.log_path(name).open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, "run"],
                env={**kept, **settings},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
        life = Life(worker=name, slot=slot, started_ms=now_ms())
        self.lives.append(life)
        return life

    def log_path(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def of_slot(self, slot: int) -> Life | None:
        """The worker of a slot that is not leaving."""
        return next((life for life in self.lives if life.slot == slot and life.end is End.RUNNING), None)

    def all_work(self) -> bool:
        """Whether each has started far enough to obey signals and take requests."""
        return all(self._has_begun(life) for life in self.lives)

    def is_ready(self, life: Life) -> bool:
        """Whether every group has assigned its share to it."""
        if not self._has_begun(life):
            return False
        for line in self.log_path(life.worker).read_text(errors="replace").splitlines():
            if '"working"' in line:
                with suppress(OSError):
                    return call(f"http://127.0.0.1:{json.loads(line)['ops_port']}", "GET", "/readyz")[0] == 200
        return False

    def _has_begun(self, life: Life) -> bool:
        return '"working"' in self.log_path(life.worker).read_text(errors="replace")

    def kill(self, life: Life) -> None:
        """kill -9."""
        life.signalled_ms, life.end = now_ms(), End.KILLED
        self._processes[life.worker].kill()
        # As soon as it is dead nothing more comes of it: only then is the time known for sure.
        self._processes[life.worker].wait(_END_SECONDS_MAX)
        life.signalled_ms = now_ms()

    def terminate(self, life: Life) -> None:
        """SIGTERM; returns at once, it drains."""
        life.signalled_ms, life.end = now_ms(), End.TERMINATED
        self._processes[life.worker].terminate()

    def stop(self, life: Life) -> None:
        """SIGSTOP."""
        self._processes[life.worker].send_signal(signal.SIGSTOP)

    def go_on(self, life: Life) -> None:
        """SIGCONT."""
        self._processes[life.worker].send_signal(signal.SIGCONT)

    def look(self) -> list[Life]:
        """Records memory and ends; returns the workers that ended without an order."""
        crashed = []
        for life in self.lives:
            process = self._processes[life.worker]
            code = process.poll()
            if code is not None:
                if life.exit_code is None:
                    life.exit_code = code
                    if life.end is End.RUNNING:
                        # Cut off from all brokers while it starts, it rightly says so and ends; it is started again.
                        gave_up = code == ExitCode.UNREACHABLE and not self._has_begun(life)
                        life.end = End.UNBORN if gave_up else End.CRASHED
                        crashed.append(life)
                    elif code == -signal.SIGTERM and not self._has_begun(life):
                        life.end = End.UNBORN
                continue
            with suppress(psutil.Error):
                life.rss_mb.append((now_ms(), psutil.Process(process.pid).memory_info().rss / 1e6))
        return crashed

    def end_all(self) -> None:
        """SIGTERM to all; returns when all have ended."""
        for life in self.lives:
            if life.end is End.RUNNING:
                self.terminate(life)
        for life in self.lives:
            try:
                self._processes[life.worker].wait(_END_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                raise RunError(f"{life.worker} does not end on SIGTERM; see {self.log_path(life.worker)}") from None
        self.look()

    def kill_all(self) -> None:
        """Leaves none behind."""
        for process in self._processes.values():
            process.kill()
            process.communicate()
