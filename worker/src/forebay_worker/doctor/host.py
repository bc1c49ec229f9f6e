"""Checks the memory, cores and open files that the machine or container allows. Reads cgroup files; judges purely."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forebay_schemas.doctor.findings import Finding, ok, warning
from forebay_worker.settings import WorkerSettings

CHECK: Final = "host"

_CGROUP: Final = Path("/sys/fs/cgroup")
_MIB: Final = 1024 * 1024

RESIDENT_BYTES: Final = 256 * _MIB
"""Interpreter, Kafka clients with 64 MB of prefetch, and all else with a bound of its own; besides the memory that
settings bound."""

CORES_MIN: Final = 0.25
FILES_BESIDE: Final = 128
"""Connections to brokers, pipes and the like; each request in flight has one more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLimits:
    """None: there is no limit, or it is unknown."""

    memory_bytes: int | None
    cores: float | None
    open_files: int | None


def read_host_limits(cgroup: Path = _CGROUP) -> HostLimits:
    """The limits of this process; of cgroups only version 2, which containers use today."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return HostLimits(
        memory_bytes=_memory_bytes(_text(cgroup / "memory.max")),
        cores=_cores(_text(cgroup / "cpu.max")),
        open_files=None if files == resource.RLIM_INFINITY else files,
    )


def memory_bytes_needed(settings: WorkerSettings) -> int:
    """The most memory that a worker may take. The chart's default limit and the docs use the same sum."""
    return RESIDENT_BYTES + settings.buffer_bytes_max + settings.in_flight_bytes_max


def host_findings(limits: HostLimits, settings: WorkerSettings) -> list[Finding]:
    """Limits that a worker with these settings would reach. Pure."""
    findings: list[Finding] = []
    needed = memory_bytes_needed(settings)
    if limits.memory_bytes is not None and limits.memory_bytes < needed:
        findings.append(
            warning(
                CHECK,
                f"the memory limit is {limits.memory_bytes // _MIB} MiB; FOREBAY_BUFFER_BYTES_MAX, "
                f"FOREBAY_IN_FLIGHT_BYTES_MAX and the worker may take {needed // _MIB} MiB",
                fix="raise the memory limit, or lower FOREBAY_IN_FLIGHT_BYTES_MAX or FOREBAY_BUFFER_BYTES_MAX",
            )
        )
    if limits.cores is not None and limits.cores < CORES_MIN:
        findings.append(
            warning(
                CHECK,
                f"the CPU limit is {limits.cores:g} cores; heartbeats to Kafka may come late",
                fix=f"give it {CORES_MIN:g} cores or more",
            )
        )
    files_needed = settings.limit_max + FILES_BESIDE
    if settings.backend_url is not None and limits.open_files is not None and limits.open_files < files_needed:
        findings.append(
            warning(
                CHECK,
                f"{limits.open_files} files may be open; FOREBAY_LIMIT_MAX={settings.limit_max} needs {files_needed}",
                fix="raise the limit of open files (ulimit -n), or lower FOREBAY_LIMIT_MAX",
            )
        )
    return findings or [ok(CHECK, _shown(limits))]


def _shown(limits: HostLimits) -> str:
    memory = "no memory limit" if limits.memory_bytes is None else f"memory limit {limits.memory_bytes // _MIB} MiB"
    cores = "no CPU limit" if limits.cores is None else f"CPU limit {limits.cores:g} cores"
    files = "any number of" if limits.open_files is None else str(limits.open_files)
    return f"{memory}, {cores}, {files} open files"


def _memory_bytes(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _cores(text: str) -> float | None:
    """``cpu.max``: microseconds of CPU time in each period, and the period."""
    quota, _, period = text.partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
