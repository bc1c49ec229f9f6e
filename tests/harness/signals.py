"""Stops a process in mid work and lets it go on. Sends signals."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def frozen(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """SIGSTOP while the block runs: the process keeps what it has, its connections too, and does nothing."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)
