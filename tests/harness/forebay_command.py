"""The command `forebay` as its users run it: a process of its own, with an environment of its own."""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from forebay_producer.cli import app as forebay
from harness.warm_process import WarmPython

_SECONDS_MAX = 120.0

_PROGRAM = "from forebay_schemas.runtime.entry import forebay; forebay()"
"""The whole of the script `forebay`."""

_PYTHON = WarmPython("forebay_schemas.runtime.entry", "forebay_producer.cli.app", *forebay.MODULES.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Exit code and output of a command that has ended."""

    code: int
    out: str
    err: str

    @property
    def records(self) -> list[dict[str, Any]]:
        """Its JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


class ForebayCommand:
    """Runs `forebay` against a pool; ``settings`` are FOREBAY_ variables."""

    def __init__(self, *, bootstrap_servers: str, pool: str, **settings: str) -> None:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("FOREBAY_") or name == "FOREBAY_KAFKA_PROPERTIES"
        }
        self._environment = {
            **kept,
            "FOREBAY_BOOTSTRAP_SERVERS": bootstrap_servers,
            "FOREBAY_POOL": pool,
            # A dozen columns wide, messages would be broken in the middle of what is looked for.
            "COLUMNS": "200",
            **settings,
        }

    def run(self, *arguments: str | Path, stdin: bytes = b"") -> Finished:
        """Runs it to its end."""
        with self.running(*arguments) as process:
            out, err = process.communicate(stdin, timeout=_SECONDS_MAX)
        finished = Finished(code=process.returncode, out=out.decode(), err=err.decode())
        assert "Traceback" not in finished.err, finished.err
        return finished

    def at_terminal(self, *arguments: str | Path, columns: int = 80, stdin: bytes = b"") -> list[str]:
        """The stdout lines that a terminal of ``columns`` columns shows, without colours. The command must exit 0."""
        code, printed, err = self._at_terminal(arguments, columns=columns, stdin=stdin, stderr=subprocess.PIPE)
        assert code == 0, err
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed.decode()).replace("\r", "").splitlines()

    def bytes_at_terminal(self, *arguments: str | Path, columns: int = 200, stdin: bytes = b"") -> bytes:
        """All bytes that the command writes to a terminal, stderr included."""
        return self._at_terminal(arguments, columns=columns, stdin=stdin, stderr=None)[1]

    def _at_terminal(
        self, arguments: tuple[str | Path, ...], *, columns: int, stdin: bytes, stderr: int | None
    ) -> tuple[int, bytes, str]:
        """Its exit code, what the terminal got, and stderr where that is a pipe."""
        controller, terminal = os.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        environment = {name: value for name, value in self._environment.items() if name != "COLUMNS"}
        process = _PYTHON.popen(
            _PROGRAM,
            [str(word) for word in arguments],
            env=environment | {"TERM": "xterm"},
            stdin=subprocess.PIPE,
            stdout=terminal,
            stderr=terminal if stderr is None else stderr,
        )
        os.close(terminal)
        printed = bytearray()
        reader = threading.Thread(target=_read_terminal, args=(controller, printed))
        reader.start()
        _, err = process.communicate(stdin, timeout=_SECONDS_MAX)
        reader.join(_SECONDS_MAX)
        os.close(controller)
        return process.returncode, bytes(printed), (err or b"").decode()

    @contextmanager
    def running(
        self, *arguments: str | Path, stdout: int | IO[bytes] = subprocess.PIPE
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Starts it with pipes, and kills it at the end if it still runs."""
        process = _PYTHON.popen(
            _PROGRAM,
            [str(word) for word in arguments],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=subprocess.PIPE,
        )
        with process:
            try:
                yield process
            finally:
                process.kill()


def _read_terminal(controller: int, printed: bytearray) -> None:
    with suppress(OSError):  # its other end is closed: there is no more
        while chunk := os.read(controller, 65_536):
            printed += chunk
