"""The user's own async function as a backend: loaded by its name, called with each request. The event loop.

A request that was running at two crashes is run in a process of its own: what kills that one costs no worker.
"""

from __future__ import annotations

import asyncio
import inspect
import operator
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, cast

import msgspec
import structlog

from forebay_schemas.contract.envelope_problems import shown
from forebay_schemas.contract.reasons import Reason
from forebay_schemas.errors import UsageError
from forebay_schemas.users_module import import_users_module
from forebay_worker.execution.handler_failures import HandlerFailures
from forebay_worker.execution.handler_stream import UnusableYieldError, YieldsTooLargeError, call
from forebay_worker.execution.json_body import why_not_json
from forebay_worker.partition.claims import SUSPECT_CRASHES
from forebay_worker.request.backend import BackendFailed
from forebay_worker.request.handler import Handler, HandlerAnswer, HandlerRequest, NotRetryableError
from forebay_worker.request.work import Answer, Failure, Retry, StreamSink, Work

log = structlog.get_logger("forebay.backend")


RunInChild = Callable[[bytes], Awaitable[Answer]]
"""Runs a `HandlerRequest`, as JSON, in a process of its own. Raises ``BackendFailed``, and ``NoChildError``."""


class NoChildError(Exception):
    """A process ended before it had imported the handler: that says nothing of the request."""


async def call_handler(
    handler: Handler, request: HandlerRequest, failures: HandlerFailures, *, sink: StreamSink | None = None
) -> Answer:
    """Runs a request in this process. Raises ``BackendFailed``, whatever the handler raised or returned.

    ``sink``: for what an async generator yields, as it comes.
    """
    try:
        returned = await call(handler, request, sink=sink)
    except YieldsTooLargeError as error:
        raise BackendFailed(Failure(reason=Reason.RESULT_TOO_LARGE, error=str(error))) from None
    except UnusableYieldError as error:
        raise _unusable(str(error)) from None
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - it is said, and the request's failure
        # sys.exit() in a handler, say: it ends its request, not the worker.
        failures.failed(request.request_id, error)
        problem = f"{type(error).__name__}: {error}"
        retry = Retry.FORBIDDEN if isinstance(error, NotRetryableError) else Retry.BY_REASON
        raise BackendFailed(Failure(reason=Reason.HANDLER_FAILED, error=problem, retry=retry)) from None
    given = returned if isinstance(returned, (HandlerAnswer, Answer)) else HandlerAnswer(body=returned)
    if (why := why_not_json(given.body)) is not None:
        raise _unusable(why)
    return Answer(
        body=given.body,
        prompt_tokens=_count(given.prompt_tokens, "prompt_tokens"),
        output_tokens=_count(given.output_tokens, "output_tokens"),
        content_chunks=given.content_chunks if isinstance(given, Answer) else None,
        first_token_seconds=given.first_token_seconds if isinstance(given, Answer) else None,
    )


def _unusable(problem: str) -> BackendFailed:
    """Once more it would answer the same."""
    error = f"the handler's answer: {problem}"
    return BackendFailed(Failure(reason=Reason.HANDLER_FAILED, error=error, retry=Retry.FORBIDDEN))


def _count(value: Any, field: str) -> int | None:
    """A number of tokens, numpy's integers too. Raises ``BackendFailed`` for what is none."""
    if value is None:
        return None
    count = -1
    with suppress(TypeError):
        count = -1 if isinstance(value, bool) else operator.index(value)
    if count < 0:
        raise _unusable(f"{field}: is {shown(value)}; give how many tokens it took, an integer, or None")
    return count


class HandlerBackend:
    """Runs the user's ``async def handler(request: HandlerRequest)``; what it returns is the result's body, or a
    `HandlerAnswer` with it.

    ``run_in_child``: for suspects of two crashes; None: they run alone in this process.
    """

    def __init__(self, handler: Handler, *, run_in_child: RunInChild | None = None) -> None:
        self._handler = handler
        self._run_in_child = run_in_child
        self._failures = HandlerFailures()

    async def run(self, work: Work) -> Answer:
        request = work.request
        assert request is not None
        asked = HandlerRequest(
            request_id=request.request_id,
            biz_type=request.biz_type,
            payload_json=request.payload,
            tier=work.tier,
            priority=work.priority,
            tenant=request.tenant,
            attempt=work.history.attempt,
            deadline_ms=work.deadline_ms,
        )
        if self._run_in_child is not None and work.crashes == SUSPECT_CRASHES:
            try:
                return await self._run_in_child(msgspec.json.encode(asked))
            except NoChildError as error:
                log.warning("no process of its own for a suspect", request_id=request.request_id, error=str(error))
                if work.crashes != SUSPECT_CRASHES:
                    # It took so long that others run here again: another attempt, in company.
                    raise BackendFailed(Failure(reason=Reason.HANDLER_FAILED, error=str(error))) from None
        return await call_handler(self._handler, asked, self._failures, sink=work.stream)

    async def close(self) -> None:
        """Says of its failures what is not said yet; a handler holds nothing that is ours."""
        self._failures.close()


def load_handler(name: str) -> Handler:
    """Imports ``module:function``; the current folder counts, as with `python -m`. Raises ``UsageError``."""
    fix = "give module:function, where function is an async def that takes the request; it may yield its answer"
    module_name, colon, function_name = name.partition(":")
    if not colon or not module_name or not function_name:
        raise UsageError("FOREBAY_HANDLER", f"{name!r} is not module:function", fix=fix)
    try:
        module = import_users_module(module_name)
    except Exception as error:  # noqa: BLE001 - a module may fail in any way while it is imported
        raise UsageError("FOREBAY_HANDLER", f"{module_name} cannot be imported: {error!r}", fix=fix) from None
    function: Any = getattr(module, function_name, None)
    if function is None:
        raise UsageError("FOREBAY_HANDLER", f"{module_name} has no {function_name}", fix=fix)
    # An object whose __call__ is async will do.
    called = None if inspect.isclass(function) else getattr(function, "__call__", None)  # noqa: B004
    if not (_is_async(function) or _is_async(called)):
        raise UsageError("FOREBAY_HANDLER", f"{name} is no async function", fix=fix)
    return cast(Handler, function)


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
