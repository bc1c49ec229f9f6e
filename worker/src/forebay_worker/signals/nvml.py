"""The process that reads NVML: `python -m forebay_worker.signals.nvml [DEVICES]` prints a JSON object a line with each
device's values, once a second. It may crash or hang with the driver without harm to its parent.

Starts one daemon thread, which ends the process with its parent. Imports nothing heavy.
"""

from __future__ import annotations

import json
import os
import resource
import select
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pynvml  # type: ignore[import-untyped]

PERIOD_SECONDS = 1.0
_PARENT_LOOK_SECONDS = 1.0

# Errors that mean a value is not available, for good or for now; all others are faults.
_UNTOLD = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_NO_DATA,
        pynvml.NVML_ERROR_NOT_READY,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    }
)


class _SmSampler:
    """The share of busy SMs between one call and the next, from GPM (Hopper and later). In percent."""

    def __init__(self, take: Callable[[Any], object]) -> None:
        self._take = take
        self._older = pynvml.nvmlGpmSampleAlloc()
        self._newer = pynvml.nvmlGpmSampleAlloc()
        self._filled = False
        self._metrics = pynvml.c_nvmlGpmMetricsGet_t()
        self._metrics.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        self._metrics.numMetrics = 1
        self._metrics.metrics[0].metricId = pynvml.NVML_GPM_METRIC_SM_UTIL

    def percent(self) -> float | None:
        self._take(self._newer)
        value = None
        if self._filled:
            self._metrics.sample1, self._metrics.sample2 = self._older, self._newer
            pynvml.nvmlGpmMetricsGet(self._metrics)
            # The call succeeds and leaves 0 if the one metric failed.
            if self._metrics.metrics[0].nvmlReturn == pynvml.NVML_SUCCESS:
                value = float(self._metrics.metrics[0].value)
        self._older, self._newer, self._filled = self._newer, self._older, True
        return value


class _Device:
    """A GPU, or a MIG instance of one."""

    def __init__(self, name: str, handle: Any) -> None:
        self.name = name
        self._handle = handle
        is_instance = _or_else(False, lambda: bool(pynvml.nvmlDeviceIsMigDeviceHandle(handle).value))
        self._has_utilisation = not is_instance and not _in_mig_mode(handle)
        self._sampler = _or_else(None, lambda: _sm_sampler(handle, is_instance=is_instance))

    def look(self) -> dict[str, Any]:
        """The device's values. Null: not available. ``error``: the last fault."""
        row: dict[str, Any] = {"name": self.name, "error": None}
        row["utilisation_percent"] = self._reading_of(self._utilisation, row)
        row["sm_percent"] = self._reading_of(self._sm, row)
        row["memory_used_bytes"], row["memory_total_bytes"] = self._reading_of(self._memory, row) or (None, None)
        return row

    def product(self) -> str | None:
        """The product's name from the driver, such as ``NVIDIA H200``; None if it has none."""
        name = _or_else(None, lambda: pynvml.nvmlDeviceGetName(self._handle))
        return None if name is None else str(name)

    def _reading_of(self, read: Callable[[], Any], row: dict[str, Any]) -> Any:
        try:
            return read()
        except pynvml.NVMLError as error:
            if error.value not in _UNTOLD:
                row["error"] = str(error)
            return None

    def _utilisation(self) -> float | None:
        # In MIG mode it is not defined, and some drivers answer 0.
        return pynvml.nvmlDeviceGetUtilizationRates(self._handle).gpu if self._has_utilisation else None

    def _memory(self) -> tuple[int, int]:
        memory = pynvml.nvmlDeviceGetMemoryInfo(self._handle)
        return memory.used, memory.total

    def _sm(self) -> float | None:
        return self._sampler.percent() if self._sampler is not None else None


class _ClosedDevice:
    """A GPU that the driver counts and cannot open: lost, or not permitted. The others are read all the same."""

    def __init__(self, name: str, error: pynvml.NVMLError) -> None:
        self.name = name
        self._error = str(error)

    def look(self) -> dict[str, Any]:
        """A row without values. A lost GPU returns, if at all, only to a new process."""
        values = dict.fromkeys(("utilisation_percent", "sm_percent", "memory_used_bytes", "memory_total_bytes"))
        return {"name": self.name, "error": self._error, **values}

    def product(self) -> str | None:
        """Unknown."""
        return None


def _sm_sampler(handle: Any, *, is_instance: bool) -> _SmSampler | None:
    gpu = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle) if is_instance else handle
    if not pynvml.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice:
        return None
    if is_instance:
        instance = pynvml.nvmlDeviceGetGpuInstanceId(handle)
        return _SmSampler(lambda sample: pynvml.nvmlGpmMigSampleGet(gpu, instance, sample))
    return _SmSampler(lambda sample: pynvml.nvmlGpmSampleGet(gpu, sample))


def _in_mig_mode(handle: Any) -> bool:
    return bool(_or_else(False, lambda: pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE))


def _or_else(value: Any, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except pynvml.NVMLError:
        return value


def open_devices(names: list[str]) -> list[_Device | _ClosedDevice]:
    """The named devices, or all; a GPU in MIG mode stands for its instances. One that fails to open hides no other.

    Raises ``LookupError`` for a name without a device, and ``NVMLError`` if the driver cannot count them.
    """
    count = pynvml.nvmlDeviceGetCount()
    devices: list[_Device | _ClosedDevice] = []
    for name in names or [str(index) for index in range(count)]:
        try:
            by_index = name.isdigit()
            handle = pynvml.nvmlDeviceGetHandleByIndex(int(name)) if by_index else _by_uuid(name)
        except (pynvml.NVMLError_InvalidArgument, pynvml.NVMLError_NotFound):
            visible = ", ".join(f"{index} ({_uuid_of(index)})" for index in range(count)) or "none"
            raise LookupError(f"FOREBAY_GPU_DEVICES: no GPU {name}; visible: {visible}") from None
        except pynvml.NVMLError as error:
            devices.append(_ClosedDevice(name, error))
            continue
        devices += (_instances(handle) if _in_mig_mode(handle) else []) or [_Device(name, handle)]
    if not devices:
        raise LookupError("no GPU is visible")
    return devices


def _by_uuid(uuid: str) -> Any:
    return pynvml.nvmlDeviceGetHandleByUUID(uuid)


def _uuid_of(index: int) -> str:
    return str(_or_else("?", lambda: pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index))))


def _instances(gpu: Any) -> list[_Device | _ClosedDevice]:
    """The visible MIG instances of a GPU in MIG mode."""
    instances: list[_Device | _ClosedDevice] = []
    for index in range(_or_else(0, lambda: pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu))):
        try:
            handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
            instances.append(_Device(str(pynvml.nvmlDeviceGetUUID(handle)), handle))
        except pynvml.NVMLError_NotFound:
            continue
        except pynvml.NVMLError as error:
            instances.append(
                _ClosedDevice(f"{_or_else('?', lambda: pynvml.nvmlDeviceGetUUID(gpu))} instance {index}", error)
            )
    return instances


def exit_with_parent() -> None:
    """Ends the process with its parent. The end of standard input is the only sign that even kill -9 of the parent
    gives. A forked child of the parent may hold the pipe open, so the parent's pid is checked too. A signal on the
    parent's death does not work: Linux sends it when the *thread* that started this process ends."""
    parent_pid = os.getppid()

    def watch() -> None:
        while os.getppid() == parent_pid:
            if select.select([sys.stdin], [], [], _PARENT_LOOK_SECONDS)[0]:
                break
        os._exit(1)  # a driver call that hangs never lets the main thread exit

    threading.Thread(target=watch, name="exit-with-parent", daemon=True).start()


def _is_dead(row: dict[str, Any]) -> bool:
    return bool(row["error"]) and all(value is None for field, value in row.items() if field not in ("name", "error"))


def _write_line(**what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Returns only if NVML is of no use; the last line then gives the reason."""
    exit_with_parent()
    # A driver that crashes does so after each start: its core dumps must not fill the disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    names = [name for name in (sys.argv[1] if len(sys.argv) > 1 else "").split(",") if name]
    try:
        pynvml.nvmlInit()
        devices = open_devices(names)
    except (pynvml.NVMLError, LookupError) as error:
        _write_line(error=str(error), no_driver=isinstance(error, pynvml.NVMLError_LibraryNotFound))
        return 1
    while True:
        rows = [device.look() for device in devices]
        if all(_is_dead(row) for row in rows):
            # A lost GPU or a reloaded driver returns, if at all, only to a new process.
            _write_line(error="; ".join(f"GPU {row['name']}: {row['error']}" for row in rows))
            return 1
        _write_line(devices=rows)
        time.sleep(PERIOD_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
