"""The command `forebay` as people run it in a run: started, stopped, killed, its ends noted. Starts processes."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from chaos.facts import CommandRun, RunError
from chaos.workers import now_ms
from forebay_sandbox.kafka.access import KafkaAccess
from forebay_schemas.contract.topics import Pool

# The command itself, in a process that ends with this one however this one ends.
_PROGRAM = (
    "from forebay_sandbox.parent import exit_with_parent; exit_with_parent(); "
    "from forebay_producer.cli.app import main; main()"
)
_SECONDS_MAX = 240.0

_WAITS_FOR_OTHERS = (b"more would make others late", b"how fast they go is not known yet", b"without an outcome yet")
"""The last words of a replay that waits behind live traffic, as it must: on-call ends it after `_SECONDS_MAX`."""


class Command:
    """A running `forebay`; what it prints goes to ``out_path``, and what it says beside that to ``err_path``."""

    def __init__(self, arguments: Sequence[str], *, environment: Mapping[str, str], out_path: Path) -> None:
        self.words = " ".join(("forebay", *arguments))
        self.started_ms = now_ms()
        self.out_path = out_path
        self.err_path = out_path.with_suffix(".err")
        with out_path.open("wb") as out, self.err_path.open("wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, *arguments],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
            )

    def wait(self, seconds: float) -> bool:
        """Whether it ends by itself within this time."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.poll() is not None

    def signal(self, number: signal.Signals) -> None:
        """Sends it a signal, if it still runs."""
        self._process.send_signal(number)

    def kill(self) -> int:
        """kill -9, if it still runs; its exit code."""
        self._process.kill()
        self._process.communicate()
        return self._process.returncode


class Commands:
    """Runs `forebay` against a pool. ``runs``: those that have ended. For several threads."""

    def __init__(self, kafka: KafkaAccess, pool: Pool, *, folder: Path) -> None:
        self.runs: list[CommandRun] = []
        self._folder = folder
        self._numbers = itertools.count(1)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
        self._environment = {
            **kept,
            "FOREBAY_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
            "FOREBAY_POOL": pool.name,
            "COLUMNS": "200",
            # A crash within librdkafka says where it was called.
            "PYTHONFAULTHANDLER": "1",
        }

    def run(self, *arguments: str) -> str:
        """To its end; what it has printed."""
        return self.end(self.start(*arguments))

    def start(self, *arguments: str) -> Command:
        """Returns at once."""
        out_path = self._folder / f"forebay-{next(self._numbers)}.out"
        return Command(arguments, environment=self._environment, out_path=out_path)

    def end(self, command: Command, *, kill_after_seconds: float | None = None) -> str:
        """Waits for its end, or kills it after the time; returns its output."""
        killed = not command.wait(_SECONDS_MAX if kill_after_seconds is None else kill_after_seconds)
        code = command.kill()
        if killed and kill_after_seconds is None and not _waits_for_others(command.err_path):
            raise RunError(f"{command.words} does not end within {_SECONDS_MAX:.0f} s; see {command.err_path}")
        run = CommandRun(
            words=command.words,
            started_ms=command.started_ms,
            ended_ms=now_ms(),
            exit_code=None if killed else code,
            crashed=b"Traceback" in command.err_path.read_bytes(),
            out_path=command.out_path,
        )
        self.runs.append(run)
        return command.out_path.read_text(errors="replace")


def _waits_for_others(err_path: Path) -> bool:
    lines = err_path.read_bytes().splitlines()
    return bool(lines) and lines[-1].endswith(_WAITS_FOR_OTHERS)
