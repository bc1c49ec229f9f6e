"""The command `forebay` as its users run it: a process of its own, with an environment of its own."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

_SECONDS_MAX = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What came of a command."""

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
        done = subprocess.run(
            [_program(), *map(str, arguments)],
            env=self._environment,
            input=stdin,
            capture_output=True,
            timeout=_SECONDS_MAX,
            check=False,
        )
        finished = Finished(code=done.returncode, out=done.stdout.decode(), err=done.stderr.decode())
        assert "Traceback" not in finished.err, finished.err
        return finished

    def at_terminal(self, *arguments: str | Path, columns: int = 80, stdin: bytes = b"") -> list[str]:
        """Its lines as a terminal of so many columns gets them on stdout, without colours. It must exit 0."""
        code, printed, err = self._at_terminal(arguments, columns=columns, stdin=stdin, stderr=subprocess.PIPE)
        assert code == 0, err
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed.decode()).replace("\r", "").splitlines()

    def bytes_at_terminal(self, *arguments: str | Path, columns: int = 200, stdin: bytes = b"") -> bytes:
        """All that it writes to a terminal, stderr too, as it comes."""
        return self._at_terminal(arguments, columns=columns, stdin=stdin, stderr=None)[1]

    def _at_terminal(
        self, arguments: tuple[str | Path, ...], *, columns: int, stdin: bytes, stderr: int | None
    ) -> tuple[int, bytes, str]:
        """Its exit code, what the terminal got, and stderr where that is a pipe."""
        controller, terminal = os.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        environment = {name: value for name, value in self._environment.items() if name != "COLUMNS"}
        process = subprocess.Popen(
            [_program(), *map(str, arguments)],
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
        process = subprocess.Popen(
            [_program(), *map(str, arguments)],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=subprocess.PIPE,
            # Shells start what runs in the background with SIGINT ignored, and that is inherited.
            preexec_fn=_heed_ctrl_c,
        )
        with process:
            try:
                yield process
            finally:
                process.kill()


def _heed_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _program() -> str:
    return str(Path(sys.executable).with_name("forebay"))


def _read_terminal(controller: int, printed: bytearray) -> None:
    with suppress(OSError):  # its other end is closed: there is no more
        while chunk := os.read(controller, 65_536):
            printed += chunk
