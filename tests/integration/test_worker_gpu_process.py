"""GPUs through the real nvidia-ml-py, in its process, over a stub of the driver's library: values, errors, hang, crash.

The processes are found in /proc."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from forebay_schemas.clock import SystemClock
from forebay_worker.signals.gpu_check import device_names
from forebay_worker.signals.gpu_process import Driver, GpuProcess
from forebay_worker.signals.poller import SignalPoller
from forebay_worker.signals.readings import GpuReading
from harness.nvml_stub import DRIVER_NOT_LOADED, GPU_IS_LOST, NOT_SUPPORTED, NvmlStub, gpu_state
from harness.waiting import PATIENCE_SECONDS, wait_until

MIG_GPU = {
    **gpu_state(0, utilisation=0, memory_used=64, mig_mode=1, gpm=1),
    "0.mig.0.uuid": "MIG-a",
    "0.mig.0.memory_used": 10,
    "0.mig.0.memory_total": 40,
    "0.mig.0.sm": 30,
    "0.mig.3.uuid": "MIG-b",
    "0.mig.3.memory_used": 30,
    "0.mig.3.memory_total": 40,
    "0.mig.3.sm": 70,
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> NvmlStub:
    return NvmlStub(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def stub(compiled: NvmlStub, monkeypatch: pytest.MonkeyPatch) -> NvmlStub:
    for name, value in compiled.environment.items():
        monkeypatch.setenv(name, value)
    return compiled


class Follower:
    """Observations of a `GpuProcess`: the last reading and its problems, and every error."""

    def __init__(self) -> None:
        self.reading: GpuReading | None = None
        self.problem: str | None = None
        self.errors: list[str] = []

    def received(self, reading: GpuReading, problem: str | None) -> None:
        self.reading, self.problem = reading, problem

    def failed(self, error: str) -> None:
        self.errors.append(error)

    def values(self) -> tuple[float | None, float | None, float | None] | None:
        """Utilisation, SM utilisation, share of the memory."""
        reading = self.reading
        return None if reading is None else (reading.utilisation, reading.sm_utilisation, reading.memory_used_share)


@asynccontextmanager
async def following(devices: str = "", *, hang_seconds: float = 30.0) -> AsyncIterator[Follower]:
    follower = Follower()
    process = GpuProcess(devices=device_names(devices), clock=SystemClock(), hang_seconds=hang_seconds)
    task = asyncio.create_task(process.follow(received=follower.received, failed=follower.failed))
    try:
        yield follower
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert nvml_processes(os.getpid()) == []


async def until(what: str, look: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not look():
        assert time.monotonic() < deadline, f"not in time: {what}"
        await asyncio.sleep(0.02)


def nvml_processes(parent_pid: int) -> list[int]:
    """The NVML processes that this process started and that still run."""
    # Threads come and go while one looks.
    threads = [task.name for task in Path(f"/proc/{parent_pid}/task").iterdir()]
    children = [int(child) for thread in threads for child in proc(parent_pid, f"task/{thread}/children").split()]
    return [child for child in children if b"forebay_worker.signals.nvml" in proc(child, "cmdline")]


def proc(pid: int, what: str) -> bytes:
    """Nothing once the process, or its thread, has ended, even if nobody has waited for it."""
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes()
    except OSError:
        return b""


def test_utilisation_memory_and_busy_sms_of_all_gpus_arrive(stub: NvmlStub) -> None:
    two = {"gpus": 2, **gpu_state(0, utilisation=30, gpm=1, sm=12.5), **gpu_state(1, utilisation=70, memory_used=72)}
    stub.answer(two)

    async def look() -> None:
        async with following() as follower:
            await until("both samples of the SMs", lambda: follower.values() == (0.5, 0.125, 0.9))
            stub.answer({**two, "0.utilisation": 100, "1.utilisation": 100})
            await until("the change", lambda: follower.values() == (1.0, 0.125, 0.9))
            assert follower.errors == []

    asyncio.run(look())


@pytest.mark.parametrize(
    ("devices", "state", "expected"),
    [
        pytest.param("1", {}, (0.7, None, 0.9), id="index"),
        pytest.param("GPU-0,1", {}, (0.5, None, 0.9), id="uuid-and-index"),
        pytest.param("0", MIG_GPU, (None, 0.5, 0.75), id="a-gpu-in-mig-mode-is-its-instances"),
        pytest.param("MIG-a", MIG_GPU, (None, 0.3, 0.25), id="mig-uuid"),
        pytest.param(
            "0", gpu_state(0, utilisation=0, mig_mode=1), (None, None, 0.5), id="mig-mode-without-visible-instances"
        ),
        pytest.param("0", {"0.utilisation": 4294967295}, (None, None, 0.5), id="absurd-utilisation"),
        pytest.param(
            "0", {"0.memory_used": 2**64 - 1, "0.memory_total": 2**64 - 1}, (0.3, None, None), id="absurd-memory"
        ),
        pytest.param(
            "0", {"nvmlDeviceGetUtilizationRates.error": NOT_SUPPORTED}, (None, None, 0.5), id="unsupported-utilisation"
        ),
        pytest.param("0", {"0.gpm": 1, "0.sm": 80, "0.utilisation": 0}, (None, 0.8, 0.5), id="zero-for-unsupported"),
        pytest.param("0", {"0.gpm": 1, "0.sm": 80, "0.sm_error": 3}, (0.3, None, 0.5), id="unsupported-sm-utilisation"),
        pytest.param(
            "0", {"0.gpm": 1, "nvmlGpmSampleGet.error": 4}, (0.3, None, 0.5), id="sm-utilisation-not-permitted"
        ),
        pytest.param(
            "", {"1.nvmlDeviceGetUtilizationRates.error": GPU_IS_LOST}, (0.3, None, 0.9), id="one-of-two-ailing"
        ),
        pytest.param(
            "",
            {"1.nvmlDeviceGetHandleByIndex_v2.error": GPU_IS_LOST},
            (0.3, None, 0.5),
            id="one-of-two-cannot-be-opened",
        ),
        pytest.param(
            "0,1", {"1.nvmlDeviceGetHandleByIndex_v2.error": 4}, (0.3, None, 0.5), id="one-of-two-is-not-permitted"
        ),
    ],
)
def test_each_device_tells_what_it_can(
    stub: NvmlStub, devices: str, state: dict[str, object], expected: tuple[float | None, ...]
) -> None:
    both = {**gpu_state(0, utilisation=30), **gpu_state(1, utilisation=70, memory_used=72)}
    stub.answer({"gpus": 2, **both, **state})

    async def look() -> None:
        async with following(devices) as follower:
            await until(f"{expected}", lambda: follower.values() == expected)
            assert follower.errors == []

    asyncio.run(look())


@pytest.mark.parametrize(
    ("state", "error"),
    [
        pytest.param({"nvmlInitWithFlags.error": DRIVER_NOT_LOADED}, "NVML: Driver Not Loaded", id="no-driver"),
        pytest.param({"gpus": 0}, "NVML: no GPU is visible", id="no-gpu"),
        pytest.param(
            {"gpus": 1, **gpu_state(0), "nvmlDeviceGetUtilizationRates.error": NOT_SUPPORTED, "0.memory_total": 0},
            "NVML: GPU 0: memory 40 of 0 bytes refused",
            id="nothing-usable",
        ),
        pytest.param({"crash": "nvmlInitWithFlags"}, "the NVML process was ended by SIGABRT", id="crash"),
    ],
)
def test_a_driver_of_no_use_is_named(stub: NvmlStub, state: dict[str, object], error: str) -> None:
    stub.answer(state)

    async def look() -> None:
        async with following() as follower:
            await until("an error", lambda: follower.errors)
            assert follower.errors[0] == error
            assert follower.reading is None

    asyncio.run(look())


def test_a_machine_without_the_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A file that is no library stops the search, also where there is a driver.
    (tmp_path / "libnvidia-ml.so.1").write_text("no library", encoding="utf-8")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))

    async def look() -> None:
        async with following() as follower:
            await until("an error", lambda: follower.errors)
            assert follower.errors[0] == "NVML: NVML Shared Library Not Found"

    asyncio.run(look())


def test_where_no_driver_is_expected_one_look_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("no library", encoding="utf-8")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    clock = SystemClock()

    async def look() -> None:
        process = GpuProcess(devices=(), clock=clock, driver=Driver.PERHAPS)
        poller = SignalPoller(engine=None, gpu=process, clock=clock)
        await poller.start()
        try:
            await until("the end of it", lambda: poller.sources(clock.monotonic())["gpu"]["error"])
            found = poller.sources(clock.monotonic())["gpu"]
            assert (found["state"], found["error"]) == ("off", "no NVIDIA driver was found")
            await asyncio.sleep(1.5)  # a second start would be due by now
            assert nvml_processes(os.getpid()) == []
        finally:
            await poller.stop()

    with capture_logs() as lines:
        asyncio.run(look())
    assert [(line["log_level"], line["event"]) for line in lines] == [("info", "signal is not here")]


def test_a_driver_that_is_there_is_read_though_none_was_expected(stub: NvmlStub) -> None:
    stub.answer({"gpus": 1, **gpu_state(0, utilisation=30)})

    async def look() -> None:
        clock = SystemClock()
        poller = SignalPoller(engine=None, gpu=GpuProcess(devices=(), clock=clock, driver=Driver.PERHAPS), clock=clock)
        await poller.start()
        try:
            await until("a reading", lambda: poller.latest_gpu(clock.monotonic()))
        finally:
            await poller.stop()

    asyncio.run(look())


def test_an_unknown_device_is_named_with_those_that_are_there(stub: NvmlStub) -> None:
    stub.answer({"gpus": 2, **gpu_state(0), **gpu_state(1)})

    async def look() -> None:
        async with following("GPU-7") as follower:
            await until("an error", lambda: follower.errors)
            assert follower.errors[0] == "NVML: FOREBAY_GPU_DEVICES: no GPU GPU-7; visible: 0 (GPU-0), 1 (GPU-1)"

    asyncio.run(look())


@pytest.mark.parametrize(
    ("trouble", "error"),
    [
        pytest.param({"crash": "nvmlDeviceGetMemoryInfo"}, "the NVML process was ended by SIGABRT", id="crash"),
        pytest.param(
            {"hang": "nvmlDeviceGetUtilizationRates"},
            "NVML hangs: no answer for 2.5 s; its process is killed",
            id="hang",
        ),
        pytest.param(
            {f"nvmlDeviceGet{what}.error": GPU_IS_LOST for what in ("UtilizationRates", "MemoryInfo")},
            "NVML: GPU 0: GPU is lost",
            id="lost",
        ),
    ],
)
def test_after_a_crash_a_hang_or_a_lost_gpu_a_new_process_reads_on(
    stub: NvmlStub, trouble: dict[str, object], error: str
) -> None:
    well = {"gpus": 1, **gpu_state(0, utilisation=30)}
    stub.answer(well)

    async def look() -> None:
        async with following(hang_seconds=2.5) as follower:
            await until("a reading", lambda: follower.reading)
            (first,) = nvml_processes(os.getpid())
            stub.answer({**well, **trouble})
            await until("the error", lambda: error in follower.errors)
            stub.answer({**well, "0.utilisation": 90})
            await until("a reading of a new process", lambda: follower.values() == (0.9, None, 0.5))
            assert first not in nvml_processes(os.getpid())

    asyncio.run(look())


def test_the_pauses_between_starts_grow(stub: NvmlStub) -> None:
    stub.answer({"crash": "nvmlInitWithFlags"})

    async def look() -> None:
        async with following() as follower:
            times: list[float] = []
            while len(times) < 3:
                await until("another failure", lambda: len(follower.errors) > len(times))
                times.append(time.monotonic())
            assert times[1] - times[0] >= 0.9
            assert times[2] - times[1] >= 1.9

    asyncio.run(look())


@pytest.mark.parametrize("hang", ["nowhere", "nvmlDeviceGetMemoryInfo"], ids=["at-work", "hanging"])
def test_the_process_dies_with_its_parent_even_in_a_hanging_driver(stub: NvmlStub, hang: str) -> None:
    stub.answer({"gpus": 1, **gpu_state(0), "hang": hang})
    code = (
        "import asyncio; from forebay_schemas.clock import SystemClock; "
        "from forebay_worker.signals.gpu_process import GpuProcess; "
        "asyncio.run(GpuProcess(devices=(), clock=SystemClock()).follow("
        "received=lambda *_: None, failed=lambda _: None))"
    )
    with subprocess.Popen([sys.executable, "-c", code], env=os.environ) as parent:
        (child,) = wait_until("the child", lambda: nvml_processes(parent.pid))
        wait_until("the child has loaded NVML", lambda: b"libnvidia-ml" in proc(child, "maps"))
        parent.kill()
    wait_until("the child is gone", lambda: not proc(child, "cmdline"))


def test_the_log_says_once_that_the_gpu_is_missing_and_once_that_it_is_back(stub: NvmlStub) -> None:
    stub.answer({"nvmlInitWithFlags.error": DRIVER_NOT_LOADED})
    clock = SystemClock()

    async def look() -> None:
        poller = SignalPoller(engine=None, gpu=GpuProcess(devices=(), clock=clock), clock=clock)
        await poller.start()
        try:
            await until("a second start", lambda: nvml_processes(os.getpid()) == [] and len(lines) == 1)
            assert poller.sources(clock.monotonic())["gpu"]["error"] == "NVML: Driver Not Loaded"
            await asyncio.sleep(1.5)  # nothing to wait for: nothing more shall be said
            stub.answer({"gpus": 1, **gpu_state(0)})
            await until("a reading", lambda: poller.latest_gpu(clock.monotonic()))
            await until("the second line", lambda: len(lines) == 2)
        finally:
            await poller.stop()

    with capture_logs() as lines:
        asyncio.run(look())
    assert [(line["log_level"], line["signal"], line["source"]) for line in lines] == [
        ("warning", "gpu", "nvml"),
        ("info", "gpu", "nvml"),
    ]
    assert lines[0]["error"] == "NVML: Driver Not Loaded"
