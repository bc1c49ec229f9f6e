"""The sandbox's folders, atomic writes and locks. Touches the disk; starts nothing."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from forebay_sandbox.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Iterator


def cache_root() -> Path:
    """The sandbox's folder in the user's cache, created if missing: $XDG_CACHE_HOME or ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME")
    root = (Path(base) if base else Path.home() / ".cache") / "forebay-sandbox"
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    return root


def resource(name: str) -> Path:
    """A file that ships inside this package."""
    return Path(str(files("forebay_sandbox") / "resources" / name))


def write_atomically(path: Path, text: str) -> None:
    """Writes a file so that readers see the old content or the new."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


@contextmanager
def locked(path: Path, *, wait_seconds: float) -> Iterator[None]:
    """Holds ``path`` exclusively among all processes; the lock ends with its holder. Waits up to ``wait_seconds``."""
    deadline = time.monotonic() + wait_seconds
    with path.open("w", encoding="utf-8") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise SandboxError(f"another process has held {path} for {wait_seconds:.0f} s; end it") from None
                time.sleep(0.05)
            else:
                break
        yield
