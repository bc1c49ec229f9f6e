"""Runs a handler in a process of its own, for a request that may kill it. The event loop, which it never blocks."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from typing import Final

import msgspec

from forebay_schemas.contract.reasons import REASONS_BY_CODE, Reason
from forebay_worker.execution.handler_backend import NoChildError
from forebay_worker.execution.handler_child import FRAME_BYTES_MAX, LENGTH_BYTES, Ended
from forebay_worker.request.backend import BackendFailed
from forebay_worker.request.work import Answer, Failure, FailureScope, Retry

_MODULE: Final = "forebay_worker.execution.handler_child"
_END_SECONDS_MAX: Final = 2.0


async def run_in_child(handler_name: str, request: bytes) -> Answer:
    """Runs a request, a `HandlerRequest` as JSON, by the handler ``module:function`` in a new process.

    Raises ``BackendFailed`` when the handler fails, and with the reason ``worker_crashed`` when the process dies of the
    request; ``NoChildError`` when it dies before it gets the request. Cancelling it kills the process.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", _MODULE, handler_name),
            stdin=PIPE,  # its end tells the process that this one is gone
            stdout=PIPE,
            start_new_session=True,  # Ctrl-C is this process's to answer, and what the handler starts ends with it
        )
    except OSError as error:
        raise NoChildError(f"the process does not start: {error}") from None
    try:
        return await _converse(process, request)
    finally:
        await _end(process)


async def _converse(process: Process, request: bytes) -> Answer:
    assert process.stdin is not None
    if await _read_frame(process) is None:
        raise NoChildError(f"the process {_ending(await process.wait())} before it had imported the handler")
    with suppress(ConnectionError):
        process.stdin.write(len(request).to_bytes(LENGTH_BYTES, "big") + request)
        await process.stdin.drain()
    frame = await _read_frame(process)
    if frame is None:
        error = f"the process that ran it alone {_ending(await process.wait())}"
        raise BackendFailed(Failure(reason=Reason.WORKER_CRASHED, error=error))
    ended = msgspec.json.decode(frame, type=Ended)
    if ended.failure is not None:
        fields = ended.failure
        kinds = {"scope": FailureScope(fields["scope"]), "retry": Retry(fields["retry"])}
        raise BackendFailed(Failure(**fields | kinds | {"reason": REASONS_BY_CODE[fields["reason"]]}))
    return Answer(body=ended.body, prompt_tokens=ended.prompt_tokens, output_tokens=ended.output_tokens)


async def _read_frame(process: Process) -> bytes | None:
    """None when the process ended, or wrote what is no frame, for which it is killed."""
    assert process.stdout is not None
    try:
        length = int.from_bytes(await process.stdout.readexactly(LENGTH_BYTES), "big")
        if length > FRAME_BYTES_MAX:
            process.kill()
            return None
        return await process.stdout.readexactly(length)
    except asyncio.IncompleteReadError:
        return None


async def _end(process: Process) -> None:
    """Kills it with all that it started, and closes its pipes."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.stdin.close()
    with suppress(TimeoutError):
        async with asyncio.timeout(_END_SECONDS_MAX):
            # To the end of the pipe: only then is the transport closed.
            while await process.stdout.read(FRAME_BYTES_MAX):
                pass
            await process.wait()


def _ending(status: int) -> str:
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"
