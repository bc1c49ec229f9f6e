"""NVML from a safe distance: starts the process of `nvml.py`, reads what it prints, kills it when it hangs, and starts
it again when it ends. On the event loop, which it never blocks; keeps nothing but the process."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any, Final

from forebay_schemas.clock import Clock
from forebay_worker.signals.gpu_check import check_devices
from forebay_worker.signals.readings import GpuReading, SignalAbsentError

START_SECONDS: Final = 30.0
"""For the first line: without persistence mode the driver initialises every GPU first, seconds each."""
HANG_SECONDS: Final = 5.0
"""For each further line; one comes a second."""
PAUSE_SECONDS: Final = 1.0
"""Before the second start; doubled after each."""
PAUSE_SECONDS_MAX: Final = 60.0
"""A start takes 0.1 s of a core. Drivers can come late: in Kubernetes a daemon set installs them."""
HEALTHY_SECONDS: Final = 60.0
"""A process that lived as long starts the pauses anew."""

_END_SECONDS_MAX: Final = 2.0
_LINE_BYTES_MAX: Final = 1024 * 1024
_MODULE: Final = "forebay_worker.signals.nvml"


class Driver(Enum):
    """What it means when the dynamic loader finds no driver library."""

    EXPECTED = "expected"
    """It is to come, and asked for again."""

    PERHAPS = "perhaps"
    """There is no GPU here: one look, and no more."""


class GpuProcess:
    """The GPUs of this machine through NVML. ``devices``: indices and UUIDs as `device_names` returns them; () for all.

    The process sees this one's environment. ``start_seconds`` and ``hang_seconds``: how long it may be silent.
    """

    name = "nvml"

    def __init__(
        self,
        *,
        devices: Sequence[str],
        clock: Clock,
        driver: Driver = Driver.EXPECTED,
        start_seconds: float = START_SECONDS,
        hang_seconds: float = HANG_SECONDS,
    ) -> None:
        self._devices = ",".join(devices)
        self._clock = clock
        self._driver = driver
        self._start_seconds = start_seconds
        self._hang_seconds = hang_seconds

    async def follow(
        self, *, received: Callable[[GpuReading, str | None], None], failed: Callable[[str], None]
    ) -> None:
        """Runs until it is cancelled, and then ends the process.

        ``received`` gets each reading and what was wrong in it; ``failed`` gets why there is none. Neither may raise.
        Raises ``SignalAbsentError`` when there is no driver and none is expected.
        """
        pause_seconds = PAUSE_SECONDS
        while True:
            started = self._clock.monotonic()
            failed(await self._run_once(received, failed))
            if self._clock.monotonic() - started >= HEALTHY_SECONDS:
                pause_seconds = PAUSE_SECONDS
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, PAUSE_SECONDS_MAX)

    async def _run_once(self, received: Callable[[GpuReading, str | None], None], failed: Callable[[str], None]) -> str:
        """One life of the process. Returns why it ended."""
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", _MODULE, self._devices),
                stdin=PIPE,  # its end tells the process that this one is gone
                stdout=PIPE,
                stderr=DEVNULL,
                limit=_LINE_BYTES_MAX,
                start_new_session=True,  # Ctrl-C is this process's to answer
            )
        except OSError as error:
            return f"the NVML process does not start: {error}"
        try:
            return await self._listen(process, received, failed)
        finally:
            await end_process(process)

    async def _listen(
        self,
        process: Process,
        received: Callable[[GpuReading, str | None], None],
        failed: Callable[[str], None],
    ) -> str:
        assert process.stdout is not None
        patience_seconds = self._start_seconds
        last_words: str | None = None
        while True:
            try:
                line = await asyncio.wait_for(process.stdout.readline(), patience_seconds)
            except TimeoutError:
                error = f"NVML hangs: no answer for {patience_seconds:g} s; its process is killed"
                failed(error)
                process.kill()
                # It cannot die before the driver lets go of it; no second one shall hang beside it.
                await process.wait()
                return error
            except ValueError:
                return "the NVML process printed a line without end"
            if not line:
                break
            patience_seconds = self._hang_seconds
            last_words = self._take(line, received, failed)
        return last_words or _ending(await process.wait())

    def _take(
        self, line: bytes, received: Callable[[GpuReading, str | None], None], failed: Callable[[str], None]
    ) -> str | None:
        """Hands on what a line says. Returns the error that it is, if it is one."""
        try:
            said: Any = json.loads(line)
        except ValueError:
            said = None
        if not isinstance(said, dict) or "error" in said:
            if isinstance(said, dict) and said.get("no_driver") and self._driver is Driver.PERHAPS:
                raise SignalAbsentError("no NVIDIA driver was found")
            error = f"NVML: {said['error']}" if isinstance(said, dict) else f"the NVML process printed {line[:80]!r}"
            failed(error)
            return error
        checked = check_devices(said.get("devices"), at=self._clock.monotonic())
        problems = "; ".join(checked.problems) or None
        if checked.reading is not None:
            received(checked.reading, problems)
        else:
            failed(f"NVML: {problems}")
        return None


async def end_process(process: Process) -> None:
    """Kills it and closes its pipes, which it must have for stdin and stdout; does not wait for a hanging driver."""
    assert process.stdin is not None
    assert process.stdout is not None
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
    process.stdin.close()
    with suppress(TimeoutError, ValueError):
        async with asyncio.timeout(_END_SECONDS_MAX):
            # To the end of the pipe: only then is the transport closed.
            while await process.stdout.read(_LINE_BYTES_MAX):
                pass
            await process.wait()


def _ending(status: int) -> str:
    if status < 0:
        return f"the NVML process was ended by {signal.Signals(-status).name}"
    return f"the NVML process ended with status {status}"
