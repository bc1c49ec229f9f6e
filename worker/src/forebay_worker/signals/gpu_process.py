"""Runs NVML in a child process: starts `nvml.py`, reads what it prints, kills it if it hangs, and restarts it when it
ends. On the event loop, which it never blocks; keeps only the process."""

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
"""A process that lived this long resets the pauses."""

_END_SECONDS_MAX: Final = 2.0
_LINE_BYTES_MAX: Final = 1024 * 1024
_MODULE: Final = "forebay_worker.signals.nvml"


class Driver(Enum):
    """Meaning of a missing driver library."""

    EXPECTED = "expected"
    """The driver will come, and is asked for again."""

    PERHAPS = "perhaps"
    """There may be no GPU: it is asked for once."""


class GpuProcess:
    """This machine's GPUs, through NVML. ``devices``: indices and UUIDs as `device_names` returns them; () for all.

    The process gets this one's environment. ``start_seconds`` and ``hang_seconds``: how long it may be silent.
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

        ``received`` gets each reading and the errors in it; ``failed`` gets the reason for a missing reading. Neither
        may raise. Raises ``SignalAbsentError`` if there is no driver and none is expected.
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
        """Runs the process once. Returns why it ended."""
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", _MODULE, self._devices),
                stdin=PIPE,  # closing it tells the child that this process has ended
                stdout=PIPE,
                stderr=DEVNULL,
                limit=_LINE_BYTES_MAX,
                start_new_session=True,  # only this process handles Ctrl-C
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
                # It cannot die before the driver returns; no second process may hang beside it.
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
        """Hands on a line's reading. Returns the error if the line is one."""
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
    """Kills the process and closes its pipes, which must be its stdin and stdout; does not wait for a hanging
    driver."""
    assert process.stdin is not None
    assert process.stdout is not None
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
    process.stdin.close()
    with suppress(TimeoutError, ValueError):
        async with asyncio.timeout(_END_SECONDS_MAX):
            # To the end of the pipe: only that closes the transport.
            while await process.stdout.read(_LINE_BYTES_MAX):
                pass
            await process.wait()


def _ending(status: int) -> str:
    if status < 0:
        return f"the NVML process was ended by {signal.Signals(-status).name}"
    return f"the NVML process ended with status {status}"
