"""Checks that the GPUs report the values that pacing uses. Starts a process that may crash or hang, or asks
Prometheus."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE
from contextlib import suppress
from typing import Any, Final

from forebay_schemas.clock import SystemClock
from forebay_schemas.doctor.findings import Finding, failed, ok, skipped, warning
from forebay_worker.settings import WorkerSettings
from forebay_worker.signals.gpu_check import check_devices, device_names
from forebay_worker.signals.gpu_process import end_process
from forebay_worker.signals.gpu_prometheus import PrometheusGpu
from forebay_worker.signals.readings import GpuReading

CHECK: Final = "gpu"
NVML_SECONDS: Final = 10.0
"""Without persistence mode the driver initialises every GPU first; a worker waits for longer."""

PROMETHEUS_SECONDS: Final = 4.0
_MODULE: Final = "forebay_worker.signals.nvml_inventory"


async def check_gpu(settings: WorkerSettings) -> Finding:
    """One finding on the source in ``FOREBAY_GPU``."""
    match settings.gpu:
        case "none":
            return skipped(CHECK, "FOREBAY_GPU=none: the GPU is not asked")
        case "prometheus":
            return await _ask_prometheus(settings)
        case "auto" | "nvml":
            said = await _ask_nvml(settings.gpu_devices or "")
            return nvml_finding(said, expected=settings.gpu == "nvml")


def nvml_finding(said: dict[str, Any] | str, *, expected: bool) -> Finding:
    """``said``: the output of `nvml_inventory`, or why there is none. ``expected``: ``FOREBAY_GPU`` is nvml. Pure."""
    if isinstance(said, str):
        return failed(CHECK, said, fix="look at nvidia-smi and the kernel's log, or set FOREBAY_GPU=none")
    error = said.get("error")
    if error is not None and said.get("no_driver") and not expected:
        return ok(CHECK, "FOREBAY_GPU=auto: no NVIDIA driver here, so pacing goes without GPU signals")
    if error is not None:
        fix = "look at nvidia-smi and the kernel's log, or set FOREBAY_GPU=none"
        if said.get("no_driver"):
            fix = (
                "run it where the driver's libnvidia-ml.so.1 is (in Kubernetes: the nvidia runtime), or set FOREBAY_GPU"
            )
        return failed(CHECK, f"NVML: {error}", fix=fix)
    devices: list[dict[str, Any]] = said["devices"]
    products = ", ".join(f"{one['name']} {one['product'] or 'of no name'}" for one in devices)
    found = f"NVML, driver {said['driver'] or 'of unknown version'}: {len(devices)} device(s): {products}"
    checked = check_devices(devices, at=0.0)
    if checked.reading is None or checked.problems:
        problems = "; ".join(checked.problems)
        return warning(
            CHECK, f"{found}; but {problems}", fix="look at nvidia-smi; pacing uses the values that are reported"
        )
    return ok(CHECK, found)


async def _ask_nvml(devices: str) -> dict[str, Any] | str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", _MODULE, ",".join(device_names(devices))),
        stdin=PIPE,  # closing it tells the child that this process has ended
        stdout=PIPE,
        stderr=DEVNULL,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(NVML_SECONDS):
            printed = await process.stdout.read()
            status = await process.wait()
    except TimeoutError:
        return f"NVML hangs: no answer for {NVML_SECONDS:g} s"
    finally:
        await end_process(process)
    try:
        said = json.loads(printed)
    except ValueError:
        return f"NVML's process ended with status {status} and said nothing"
    return said if isinstance(said, dict) else "NVML's process said nothing that can be read"


async def _ask_prometheus(settings: WorkerSettings) -> Finding:
    assert settings.gpu_prometheus_url is not None
    source = PrometheusGpu(url=settings.gpu_prometheus_url, query=settings.gpu_prometheus_query, clock=SystemClock())
    answers: asyncio.Queue[Finding] = asyncio.Queue()
    fix = "check FOREBAY_GPU_PROMETHEUS_URL and FOREBAY_GPU_PROMETHEUS_QUERY"

    def received(reading: GpuReading, problem: str | None) -> None:
        share = reading.utilisation or 0.0
        if problem is not None:
            answers.put_nowait(warning(CHECK, f"Prometheus: {problem}", fix=fix))
        else:
            answers.put_nowait(ok(CHECK, f"Prometheus answers the query: utilisation {share:.0%}"))

    def unavailable(error: str) -> None:
        answers.put_nowait(failed(CHECK, error, fix=fix))

    following = asyncio.create_task(source.follow(received=received, failed=unavailable))
    try:
        return await asyncio.wait_for(answers.get(), PROMETHEUS_SECONDS)
    except TimeoutError:
        return failed(CHECK, f"Prometheus: no answer within {PROMETHEUS_SECONDS:g} s", fix=fix)
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
