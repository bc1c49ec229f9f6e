"""An OpenAI-compatible server over HTTP as a backend. The event loop."""

from __future__ import annotations

import re
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
import msgspec

from forebay_schemas.contract.reasons import Reason
from forebay_worker.execution.engine_priority import with_priority
from forebay_worker.execution.sse import assemble_stream
from forebay_worker.request.backend import BackendFailed
from forebay_worker.request.work import Answer, Failure, Work
from forebay_worker.settings import DEFAULT_BIZ_PATHS, WorkerSettings
from forebay_worker.signals.connection_errors import trouble_words

TOKENS_MAX = 10_000_000
"""No engine's context holds more; a larger count is an error, or meant to spoil what pacing learns."""

ERROR_BODY_BYTES_MAX = 2_000

# 529 is what some providers answer for "overloaded".
_UNAVAILABLE = frozenset({502, 503, 529})
_TIMED_OUT = frozenset({408, 504})
_SECONDS = re.compile(r"[0-9]+(\.[0-9]+)?")
_TOO_MANY = 429
_TOO_MUCH = frozenset({429, 503, 529})


class HttpBackend:
    """An OpenAI-compatible server. The payload goes to the path of its biz_type as the bytes that came."""

    def __init__(self, settings: WorkerSettings) -> None:
        """Must be called in the event loop that uses it."""
        assert settings.backend_url is not None
        base = settings.backend_url.rstrip("/")
        self._priority_order = settings.engine_priority
        self._retry_statuses = frozenset(settings.retry_statuses)
        self._urls = {biz: base + path for biz, path in {**DEFAULT_BIZ_PATHS, **settings.biz_paths}.items()}
        # Who asks and for which time: an engine's log then tells a retry or a replay from a repetition.
        headers = {"content-type": "application/json", "x-forebay-worker": settings.worker_id}
        if settings.backend_api_key is not None:
            headers["authorization"] = f"Bearer {settings.backend_api_key.get_secret_value()}"
        timeout = aiohttp.ClientTimeout(
            total=settings.backend_timeout_seconds, connect=None, sock_connect=settings.backend_connect_seconds
        )
        reuse = aiohttp.TraceConfig()
        reuse.on_connection_reuseconn.append(_note_reuse)
        self._pooled = aiohttp.ClientSession(
            # One connection for each request in flight: the gate bounds them, the pool must not queue.
            connector=aiohttp.TCPConnector(limit=settings.limit_max, keepalive_timeout=30),
            timeout=timeout,
            headers=headers,
            trace_configs=[reuse],
        )
        self._fresh = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=settings.limit_max, force_close=True), timeout=timeout, headers=headers
        )

    async def run(self, work: Work) -> Answer:
        request = work.request
        assert request is not None
        url = self._urls.get(request.biz_type)
        if url is None:
            known = ", ".join(sorted(self._urls))
            raise BackendFailed(
                Failure(reason=Reason.UNKNOWN_BIZ_TYPE, error=f"biz_type {request.biz_type!r} is none of {known}")
            )
        headers = {
            "x-request-id": request.request_id,
            "x-forebay-attempt": str(work.attempt),
            "x-forebay-replay-count": str(work.history.replay_count),
            **work.trace_headers,
        }
        try:
            payload = with_priority(work, bytes(request.payload), self._priority_order)
            reply = await self._post(url, data=payload, headers=headers)
        except TimeoutError as error:
            connecting = isinstance(error, aiohttp.ConnectionTimeoutError)
            reason = Reason.BACKEND_UNAVAILABLE if connecting else Reason.BACKEND_TIMEOUT
            problem = "no connection to the backend in time" if connecting else "no answer within the time limit"
            failure = Failure(reason=reason, error=problem, of_backend=connecting, reached=not connecting)
            raise BackendFailed(failure) from None
        except aiohttp.ClientPayloadError as error:
            # As a refused connection: a backend that goes away in the middle of its answers charges nobody.
            problem = f"the answer broke off: {error}"
            raise BackendFailed(Failure(reason=Reason.BACKEND_BAD_RESPONSE, error=problem, of_backend=True)) from None
        except aiohttp.http_exceptions.HttpProcessingError as error:
            problem = f"the answer is no HTTP: {error}"
            raise BackendFailed(Failure(reason=Reason.BACKEND_BAD_RESPONSE, error=problem)) from None
        except (aiohttp.ClientError, OSError) as error:
            failure = Failure(
                reason=Reason.BACKEND_UNAVAILABLE,
                error=trouble_words(error),
                of_backend=True,
                reached=not isinstance(error, aiohttp.ClientConnectorError),
            )
            raise BackendFailed(failure) from None
        if reply.status != 200:
            raise BackendFailed(_refusal(reply, may_retry=reply.status in self._retry_statuses))
        return _read_answer(reply.body, reply.content_type)

    async def _post(self, url: str, *, data: bytes, headers: dict[str, str]) -> _Reply:
        connection = _Connection()
        try:
            return await _exchange(self._pooled, url, data=data, headers=headers, trace_request_ctx=connection)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, aiohttp.ClientConnectionResetError):
            # Servers close idle connections at a moment of their own, llama.cpp's after each hundredth answer too.
            # That says nothing of the backend or the request.
            if not connection.reused:
                raise
        return await _exchange(self._fresh, url, data=data, headers=headers)

    async def close(self) -> None:
        await self._pooled.close()
        await self._fresh.close()


class _Connection:
    """What is known of the connection that carries a request."""

    __slots__ = ("reused",)

    def __init__(self) -> None:
        self.reused = False


async def _note_reuse(_session: aiohttp.ClientSession, context: Any, _: aiohttp.TraceConnectionReuseconnParams) -> None:
    context.trace_request_ctx.reused = True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reply:
    status: int
    content_type: str
    retry_after_seconds: float | None
    body: bytes


async def _exchange(session: aiohttp.ClientSession, url: str, **request: Any) -> _Reply:
    async with session.post(url, **request) as response:
        return _Reply(
            status=response.status,
            content_type=response.content_type,
            retry_after_seconds=_retry_after_seconds(response.headers.get("retry-after"), response.headers.get("date")),
            body=await response.read(),
        )


def _retry_after_seconds(retry_after: str | None, date: str | None) -> float | None:
    """Both forms of Retry-After: seconds, and a date, which counts from the response's own date: clocks differ."""
    if retry_after is None:
        return None
    if _SECONDS.fullmatch(retry_after.strip()):
        return float(retry_after)
    try:
        seconds = (parsedate_to_datetime(retry_after) - parsedate_to_datetime(date or "")).total_seconds()
    except (ValueError, TypeError):
        return None
    return max(0.0, seconds)


def _refusal(reply: _Reply, *, may_retry: bool) -> Failure:
    status, seconds = reply.status, reply.retry_after_seconds
    error = f"HTTP {status}: {reply.body[:ERROR_BODY_BYTES_MAX].decode(errors='replace').strip()}"
    if status == _TOO_MANY:
        reason = Reason.BACKEND_OVERLOADED
    elif status in _UNAVAILABLE:
        reason = Reason.BACKEND_UNAVAILABLE
    elif status in _TIMED_OUT:
        reason = Reason.BACKEND_TIMEOUT
    elif 400 <= status < 500:
        reason = Reason.BACKEND_REJECTED
    elif status >= 500:
        reason = Reason.BACKEND_ERROR
    else:
        reason = Reason.BACKEND_BAD_RESPONSE
    return Failure(
        reason=reason,
        error=error,
        of_backend=status == _TOO_MANY or status in _UNAVAILABLE,
        http_status=status,
        refused=status in _TOO_MUCH,
        retryable=may_retry,
        retry_after_seconds=seconds,
    )


class _Completion(msgspec.Struct, gc=False):
    usage: Any = None


_completion_decoder = msgspec.json.Decoder(_Completion)


def _read_answer(body: bytes, content_type: str) -> Answer:
    try:
        if content_type == "text/event-stream":
            body = msgspec.json.encode(assemble_stream(body))
        elif not body.isascii():
            body.decode()  # the decoder skips what it does not need, and whoever reads the result would stumble
        usage = _completion_decoder.decode(body).usage
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        shown = body[:200].decode(errors="replace")
        problem = f"the answer is no completion object ({error}): {shown}"
        raise BackendFailed(Failure(reason=Reason.BACKEND_BAD_RESPONSE, error=problem)) from None
    return Answer(
        body=msgspec.Raw(body),
        prompt_tokens=_token_count(usage, "prompt_tokens"),
        output_tokens=_token_count(usage, "completion_tokens"),
    )


def _token_count(usage: object, name: str) -> int | None:
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if type(count) is int and 0 <= count <= TOKENS_MAX else None
