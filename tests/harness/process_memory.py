"""Memory of a process, and a memory limit like a container's. Reads /proc; writes cgroup files, for which it needs
root."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MIB = 1024 * 1024

_GROUPS = Path("/sys/fs/cgroup")


def resident_mib(pid: int) -> float:
    """Resident memory now."""
    return _status(pid, "VmRSS")


def peak_mib(pid: int) -> float:
    """The most that it ever held."""
    return _status(pid, "VmHWM")


def _status(pid: int, field: str) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.partition(f"{field}:")[2].split()[0]) / 1024


@contextmanager
def memory_limited(pid: int, limit_bytes: int) -> Iterator[bool]:
    """Ends the process when it takes more, as a container's limit does, where a cgroup can be made; yields whether."""
    group = _make_group(limit_bytes)
    if group is None:
        yield False
        return
    try:
        (group / "cgroup.procs").write_text(str(pid), encoding="ascii")
        yield True
    finally:
        for member in (group / "cgroup.procs").read_text(encoding="ascii").split():
            (group.parent / "cgroup.procs").write_text(member, encoding="ascii")
        for _ in range(50):
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.1)  # the kernel still counts what it has just let go


def _make_group(limit_bytes: int) -> Path | None:
    for parent, limit in ((_GROUPS / "memory", "memory.limit_in_bytes"), (_GROUPS, "memory.max")):
        group = parent / f"forebay-test-{secrets.token_hex(4)}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(limit_bytes), encoding="ascii")
        except OSError:
            group.rmdir()
            continue
        return group
    return None
