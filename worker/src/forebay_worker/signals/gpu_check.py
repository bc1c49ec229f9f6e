"""Validates GPU readings, and parses FOREBAY_GPU_DEVICES. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from forebay_schemas.errors import UsageError
from forebay_worker.signals.readings import GpuReading

PERCENT_MAX: Final = 101.0
"""Up to here it is 100, rounded. Unknown values are 4294967295 from NVML, and 9.2e18 or 1.4e14 from DCGM."""
BYTES_MAX: Final = 2.0**50
"""A pebibyte: no device has as much. NVML's "not available" is 2**64 - 1."""
_SM_BUSY_SHARE: Final = 0.05

_INDEX = re.compile(r"[0-9]{1,4}")
_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]+")


def device_names(devices: str) -> tuple[str, ...]:
    """The indices and UUIDs in FOREBAY_GPU_DEVICES, each once; () for all. Raises ``UsageError``."""
    names = [name.strip() for name in devices.split(",")] if devices.strip(" ,") else []
    for name in names:
        if not _INDEX.fullmatch(name) and not _UUID.fullmatch(name):
            raise UsageError(
                "FOREBAY_GPU_DEVICES",
                f"{name!r} is no GPU's index or UUID",
                fix='give what `nvidia-smi -L` lists, "0,1" or "GPU-..." or "MIG-..." say; nothing for all',
            )
    return tuple(dict.fromkeys(names))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedGpus:
    """``reading``: None if no value can be used. ``problems``: refused values and errors, as text for people."""

    reading: GpuReading | None
    problems: tuple[str, ...]


def check_percent(value: object) -> float | None:
    """A share of 0 to 1 from a percentage of 0 to 100; None if the value is not a percentage."""
    number = _number(value)
    return None if number is None or not 0 <= number <= PERCENT_MAX else min(number / 100, 1.0)


def check_devices(devices: object, *, at: float) -> CheckedGpus:
    """Reads the NVML process's list of devices: utilisation is their mean, memory the fullest one's.

    ``devices``: a list of objects with ``name`` and, each a number or null, ``utilisation_percent``, ``sm_percent``,
    ``memory_used_bytes``, ``memory_total_bytes``; ``error`` if a device answered nothing. ``at``: monotonic seconds.
    """
    problems: list[str] = []
    utilisations: list[float] = []
    sm_utilisations: list[float] = []
    memory_shares: list[float] = []
    for device in devices if isinstance(devices, list) else ():
        if not isinstance(device, dict):
            problems.append(f"unreadable: {device!r:.80}")
            continue
        name = f"GPU {device.get('name')}"
        if device.get("error"):
            problems.append(f"{name}: {device['error']}")
        sm_utilisation = _checked_percent(device, "sm_percent", name, problems)
        utilisation = _checked_percent(device, "utilisation_percent", name, problems)
        if utilisation == 0 and sm_utilisation is not None and sm_utilisation > _SM_BUSY_SHARE:
            # A driver that cannot report it, for example under virtualisation, may answer 0.
            problems.append(f"{name}: utilisation 0 while {sm_utilisation:.0%} of the SMs were busy")
            utilisation = None
        memory_share = _checked_memory(device, name, problems)
        for value, values in (
            (utilisation, utilisations),
            (sm_utilisation, sm_utilisations),
            (memory_share, memory_shares),
        ):
            if value is not None:
                values.append(value)
    reading = GpuReading(
        at=at,
        utilisation=_mean(utilisations),
        sm_utilisation=_mean(sm_utilisations),
        memory_used_share=max(memory_shares, default=None),
    )
    if reading == GpuReading(at=at):
        return CheckedGpus(reading=None, problems=tuple(problems) or ("the GPUs tell neither utilisation nor memory",))
    return CheckedGpus(reading=reading, problems=tuple(problems))


def _checked_percent(device: dict[Any, Any], field: str, name: str, problems: list[str]) -> float | None:
    value = device.get(field)
    share = check_percent(value)
    if share is None and value is not None:
        problems.append(f"{name}: {field} {value!r:.40} refused")
    return share


def _checked_memory(device: dict[Any, Any], name: str, problems: list[str]) -> float | None:
    used, total = device.get("memory_used_bytes"), device.get("memory_total_bytes")
    if used is None and total is None:
        return None
    used_bytes, total_bytes = _number(used), _number(total)
    if used_bytes is None or total_bytes is None or not 0 <= used_bytes <= total_bytes <= BYTES_MAX or not total_bytes:
        problems.append(f"{name}: memory {used!r:.40} of {total!r:.40} bytes refused")
        return None
    return used_bytes / total_bytes


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
