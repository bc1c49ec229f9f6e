"""A suspect's own process: `python -m forebay_worker.execution.handler_child MODULE:FUNCTION` imports the handler, says
so, reads one request from stdin, runs it and writes how it ended to stdout, in frames.

Ends with its parent, which it notices by the end of stdin. What the handler prints goes to stderr.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from dataclasses import asdict
from typing import Any, BinaryIO

import msgspec

from forebay_schemas.contract.reasons import Reason
from forebay_schemas.contract.topics import LATER_BYTES_MAX
from forebay_schemas.errors import ForebayError
from forebay_schemas.runtime.log import configure_logging
from forebay_worker.execution.handler_backend import call_handler, load_handler
from forebay_worker.execution.handler_failures import HandlerFailures
from forebay_worker.request.backend import BackendFailed
from forebay_worker.request.handler import Handler, HandlerRequest
from forebay_worker.request.work import Answer, Failure, Retry

LENGTH_BYTES = 4
FRAME_BYTES_MAX = LATER_BYTES_MAX + 64 * 1024


class Ended(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How an execution ended: an answer with its ``body``, or a ``failure``, whose reason is a code."""

    body: msgspec.Raw = msgspec.Raw(b"null")
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    failure: dict[str, Any] | None = None


def main() -> None:
    """The process."""
    requests, ends = os.fdopen(os.dup(0), "rb", buffering=0), os.fdopen(os.dup(1), "wb")
    # The handler's own input is empty, and its output must not come between frames.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    configure_logging(level=os.environ.get("FOREBAY_LOG_LEVEL", "info"), service="forebay-worker")
    try:
        handler = load_handler(sys.argv[1])
    except ForebayError as error:
        sys.exit(str(error))
    _write(ends, b"ready")
    request = msgspec.json.decode(_read(requests), type=HandlerRequest)
    threading.Thread(target=_exit_with_parent, args=(requests,), daemon=True).start()
    _write(ends, asyncio.run(_run(handler, request)))
    os._exit(0)  # whatever threads the handler has left


async def _run(handler: Handler, request: HandlerRequest) -> bytes:
    try:
        return _encode(await call_handler(handler, request, HandlerFailures()))
    except asyncio.CancelledError:
        return _encode_failure(Failure(reason=Reason.HANDLER_FAILED, error="the handler cancelled itself"))
    except BackendFailed as error:
        return _encode_failure(error.failure)


def _encode(answer: Answer) -> bytes:
    try:
        body = msgspec.json.encode(answer.body)
    except (TypeError, ValueError) as error:
        problem = f"the handler's answer: body: cannot be written as JSON: {error}"
        return _encode_failure(Failure(reason=Reason.HANDLER_FAILED, error=problem, retry=Retry.FORBIDDEN))
    if len(body) > LATER_BYTES_MAX:
        problem = f"the result has {len(body)} bytes, a record may have {LATER_BYTES_MAX}"
        return _encode_failure(Failure(reason=Reason.RESULT_TOO_LARGE, error=problem))
    ended = Ended(body=msgspec.Raw(body), prompt_tokens=answer.prompt_tokens, output_tokens=answer.output_tokens)
    return msgspec.json.encode(ended)


def _encode_failure(failure: Failure) -> bytes:
    return msgspec.json.encode(Ended(failure=asdict(failure) | {"reason": failure.reason.code}))


def _read(stream: BinaryIO) -> bytes:
    length = int.from_bytes(_read_all(stream, LENGTH_BYTES), "big")
    return _read_all(stream, length)


def _read_all(stream: BinaryIO, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = stream.read(count - len(data))
        if not more:
            os._exit(1)  # the parent is gone
        data += more
    return data


def _write(stream: BinaryIO, data: bytes) -> None:
    stream.write(len(data).to_bytes(LENGTH_BYTES, "big") + data)
    stream.flush()


def _exit_with_parent(stream: BinaryIO) -> None:
    stream.read(1)
    os._exit(1)


if __name__ == "__main__":
    main()
