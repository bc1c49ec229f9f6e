"""Processes of a Python program that begin in milliseconds: forked from one that has imported all that it needs.

A start of `forebay-worker` costs a second of CPU for imports, and the tests start hundreds. A process made here has its
own pid, streams, environment and folder, is a child of the test's own process, and ends like any other. What Python
looks at when it starts is fixed by then: with another environment than the test's in anything but what is listed here,
the program is started as usual. Starts processes; for several threads.
"""

from __future__ import annotations

import ctypes
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_SERVER: Final = Path(__file__).with_name("warm_server.py")
_PR_SET_CHILD_SUBREAPER: Final = 36

_FREE_PREFIXES: Final = ("FOREBAY_",)
_FREE_NAMES: Final = frozenset({"COLUMNS", "TERM", "PYTHONFAULTHANDLER", "PYTHONPATH"})
"""Variables that may differ: read after the start, or set again for each process."""


class WarmPython:
    """Starts programs that import little but ``modules``."""

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._lock = threading.Lock()
        self._server: tuple[int, subprocess.Popen[bytes], socket.socket] | None = None

    def popen(
        self,
        program: str,
        words: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | None = None,
        stdin: int | None = None,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
        warm: bool = True,
    ) -> subprocess.Popen[bytes]:
        """`subprocess.Popen` of `python -P -c PROGRAM WORDS...`, with Ctrl-C as a terminal has it. ``warm=False``: a
        new process."""
        if not warm or sys.platform != "linux" or _fixed(env) != _fixed(os.environ):
            return subprocess.Popen(
                [sys.executable, "-P", "-c", program, *words],
                env=env,
                cwd=cwd,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                # Shells start what runs in the background with SIGINT ignored, and that is inherited.
                preexec_fn=_heed_ctrl_c,
            )
        request = {
            "program": program,
            "words": ["-c", *words],
            "environment": dict(env),
            "folder": str(cwd or Path.cwd()),
        }
        return _Forked(self, json.dumps(request).encode(), stdin=stdin, stdout=stdout, stderr=stderr)

    def fork(self, request: bytes, streams: Sequence[int]) -> int:
        """The process id of a new child of this process; ``streams``: its first three."""
        with self._lock:
            channel = self._channel()
            with _subreaper():
                socket.send_fds(channel, [request], streams)
                answer = channel.recv(32)
        assert answer, f"the server that has imported {self._modules} has ended"
        return int(answer)

    def _channel(self) -> socket.socket:
        pid = os.getpid()
        if self._server is None or self._server[0] != pid:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            with theirs:
                command = [sys.executable, "-P", str(_SERVER), str(theirs.fileno()), *self._modules]
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], preexec_fn=_heed_ctrl_c
                )
            # It ends when this process does: its end of the pair is closed then.
            self._server = pid, process, ours
        return self._server[2]


_CHILD_ARGUMENTS: Final = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]
_PIPE_ENDS: Final = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")


class _Forked(subprocess.Popen[bytes]):
    """A process that was not executed but forked; all else of it is Popen's."""

    def __init__(self, python: WarmPython, request: bytes, **streams: Any) -> None:
        self._python = python
        self._request = request
        super().__init__([sys.executable, "-c"], **streams)

    def _execute_child(self, *arguments: Any) -> None:
        """Popen's own hook, called with the ends of the pipes that it has made."""
        given = _CHILD_ARGUMENTS.bind(self, *arguments).arguments
        theirs = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        try:
            self.pid = self._python.fork(self._request, [i if end == -1 else end for i, end in enumerate(theirs)])
            self._child_created = True
        finally:
            self._close_pipe_fds(*(given[name] for name in _PIPE_ENDS))  # type: ignore[attr-defined]


@contextmanager
def _subreaper() -> Iterator[None]:
    """Orphans among this process's descendants become its children while the block runs."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    try:
        yield
    finally:
        assert libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) == 0


def _fixed(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that must be the same for all."""
    return {
        name: value
        for name, value in environment.items()
        if name not in _FREE_NAMES and not name.startswith(_FREE_PREFIXES)
    }


def _heed_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
