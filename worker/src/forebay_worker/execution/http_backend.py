"""An OpenAI-compatible server over HTTP as a backend. The event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace

import aiohttp
import msgspec

from forebay_schemas.contract.reasons import Reason
from forebay_worker.answers.endpoints import Shape, choices_in, shape_of
from forebay_worker.answers.judge import EVENT_STREAM, AnswerReader
from forebay_worker.answers.verdict import Failed, Verdict, bounded, with_words
from forebay_worker.execution.answer_body import ANSWER_LIMITS, GRACE_SECONDS, Room, read_answer
from forebay_worker.execution.api_key import ApiKey
from forebay_worker.execution.connections import AGE_SECONDS, Connections, Exchange, Timeouts
from forebay_worker.execution.engine_priority import EnginePriority, with_priority
from forebay_worker.execution.http_failure import failure_of, retry_after_seconds
from forebay_worker.request.backend import BackendFailed
from forebay_worker.request.retry_policy import RetryStatuses
from forebay_worker.request.work import Answer, Failure, FailureScope, Work
from forebay_worker.signals.connection_errors import trouble_words

# What aiohttp unpacks, or what needs no unpacking.
_ENCODINGS = frozenset({"", "identity", "gzip", "deflate", "br", "zstd"})
_UNAUTHORIZED = frozenset({401, 403})


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """How a backend is called. ``base_url``: without a slash at its end. ``paths``: by biz_type. ``api_key``: the key,
    or the file that holds it, as in FOREBAY_BACKEND_API_KEY. ``age_seconds``: of connections, least and most."""

    base_url: str
    paths: Mapping[str, str]
    api_key: str | None
    worker_id: str
    engine_priority: EnginePriority
    retry_statuses: RetryStatuses
    timeouts: Timeouts
    age_seconds: tuple[float, float] = AGE_SECONDS
    grace_seconds: float = GRACE_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class _Endpoint:
    url: str
    shape: Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reply:
    status: int
    location: str | None
    retry_after_seconds: float | None
    verdict: Verdict


class HttpBackend:
    """An OpenAI-compatible server. The payload goes to the path of its biz_type as the bytes that came."""

    def __init__(self, options: HttpOptions) -> None:
        """Must be called in the event loop that uses it."""
        self._loop = asyncio.get_running_loop()
        self._options = options
        self._endpoints = {
            biz_type: _Endpoint(url=options.base_url + path, shape=shape_of(path))
            for biz_type, path in options.paths.items()
        }
        self._key = None if options.api_key is None else ApiKey(options.api_key, now=self._loop.time())
        self._room = Room()
        self._connections = Connections(
            # Who asks and for which time: an engine's log then tells a retry or a replay from a repetition.
            headers={"content-type": "application/json", "x-forebay-worker": options.worker_id},
            timeouts=options.timeouts,
            age_seconds=options.age_seconds,
        )

    async def run(self, work: Work) -> Answer:
        request = work.request
        assert request is not None
        endpoint = self._endpoints.get(request.biz_type)
        if endpoint is None:
            known = ", ".join(sorted(self._endpoints))
            raise BackendFailed(
                Failure(reason=Reason.UNKNOWN_BIZ_TYPE, error=f"biz_type {request.biz_type!r} is none of {known}")
            )
        work.executions += 1
        payload = with_priority(work, bytes(request.payload), self._options.engine_priority)
        reply = await self._ask(endpoint, work, payload)
        if isinstance(reply.verdict, Failed):
            raise BackendFailed(
                failure_of(
                    reply.verdict,
                    status=reply.status,
                    location=reply.location,
                    retry_after_seconds=reply.retry_after_seconds,
                    retry_statuses=self._options.retry_statuses,
                )
            )
        answer = reply.verdict
        return Answer(
            body=msgspec.Raw(answer.body), prompt_tokens=answer.prompt_tokens, output_tokens=answer.output_tokens
        )

    async def close(self) -> None:
        await self._connections.close()

    async def _ask(self, endpoint: _Endpoint, work: Work, payload: bytes) -> _Reply:
        """Asks with the present key, and once more when it was refused and its file has another by now."""
        headers = _headers(work)
        key = self._key
        if key is None:
            return await self._try_to_post(endpoint, payload, headers)
        secret = key.value(self._loop.time())
        reply = await self._try_to_post(endpoint, payload, {**headers, "authorization": f"Bearer {secret}"})
        if reply.status in _UNAUTHORIZED and key.has_another(secret):
            secret = key.value(self._loop.time())
            reply = await self._try_to_post(endpoint, payload, {**headers, "authorization": f"Bearer {secret}"})
        return reply

    async def _try_to_post(self, endpoint: _Endpoint, payload: bytes, headers: Mapping[str, str]) -> _Reply:
        """Raises ``BackendFailed`` where there was no answer."""
        try:
            return await self._post(endpoint, payload, headers)
        except TimeoutError as error:
            raise BackendFailed(_timeout(error)) from None
        except aiohttp.ClientResponseError as error:
            # Another protocol (TLS, HTTP/2), broken headers or chunks, an encoding that was not asked for. As a
            # connection that broke off: whoever answers one so mostly answers all so.
            problem = bounded(trouble_words(error))
            failure = Failure(reason=Reason.BACKEND_BAD_RESPONSE, error=problem, scope=FailureScope.BACKEND)
            raise BackendFailed(failure) from None
        except (aiohttp.ClientError, OSError) as error:
            connecting = isinstance(error, aiohttp.ClientConnectorError)
            scope = FailureScope.CONNECTION if connecting else FailureScope.BACKEND
            failure = Failure(reason=Reason.BACKEND_UNAVAILABLE, error=trouble_words(error), scope=scope)
            raise BackendFailed(failure) from None

    async def _post(self, endpoint: _Endpoint, payload: bytes, headers: Mapping[str, str]) -> _Reply:
        exchange = Exchange()
        lease = self._connections.take()
        try:
            return await self._exchange(lease.session, endpoint, payload, headers, exchange)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, aiohttp.ClientConnectionResetError):
            # Servers close idle connections at a moment of their own, llama.cpp's after each hundredth answer too.
            # That says nothing of the backend or the request.
            if not exchange.was_stale(self._loop.time()):
                raise
        finally:
            self._connections.give_back(lease)
        return await self._exchange(self._connections.unshared, endpoint, payload, headers, None)

    async def _exchange(
        self,
        session: aiohttp.ClientSession,
        endpoint: _Endpoint,
        payload: bytes,
        headers: Mapping[str, str],
        exchange: Exchange | None,
    ) -> _Reply:
        async with session.post(
            endpoint.url, data=payload, headers=headers, allow_redirects=False, trace_request_ctx=exchange
        ) as response:
            content_type = response.content_type if "content-type" in response.headers else ""
            is_stream = content_type == EVENT_STREAM or b'"stream"' in payload
            reader = AnswerReader(
                shape=endpoint.shape,
                status=response.status,
                content_type=content_type,
                limits=ANSWER_LIMITS,
                choices_asked=choices_in(payload) if is_stream else 1,
            )
            verdict = await read_answer(response, reader, room=self._room, grace_seconds=self._options.grace_seconds)
            encoding = response.headers.get("content-encoding", "").lower()
            if isinstance(verdict, Failed) and encoding not in _ENCODINGS:
                # It came as it was packed, and reads like rubbish.
                verdict = replace(
                    verdict, message=with_words(f"content-encoding: {encoding}", verdict.message.encode())
                )
            headers_given = response.headers
            return _Reply(
                status=response.status,
                location=headers_given.get("location"),
                retry_after_seconds=retry_after_seconds(headers_given.get("retry-after"), headers_given.get("date")),
                verdict=verdict,
            )


def _headers(work: Work) -> dict[str, str]:
    assert work.request is not None
    request_id = work.request.request_id
    return {
        "x-request-id": execution_id(work),
        "x-forebay-request-id": request_id,
        "x-forebay-attempt": str(work.attempt),
        "x-forebay-replay-count": str(work.history.replay_count),
        **work.trace_headers,
    }


def execution_id(work: Work) -> str:
    """What the engine knows an execution by. Engines that take the id for their own refuse one that still runs, and
    what a lost connection or a passed time limit left there may run on.

    The request's id for the first execution. Then ``-r1`` after a replay, ``-2`` for the second attempt, ``-c1`` after
    a worker crashed with it, ``-u1`` for another execution of the same attempt in this worker.
    """
    assert work.request is not None
    parts = [work.request.request_id]
    if work.history.replay_count:
        parts.append(f"r{work.history.replay_count}")
    if work.attempt > 1:
        parts.append(str(work.attempt))
    if work.crashes:
        parts.append(f"c{work.crashes}")
    if work.executions > 1:
        parts.append(f"u{work.executions - 1}")
    return "-".join(parts)


def _timeout(error: TimeoutError) -> Failure:
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        problem = "no connection to the backend in time"
        return Failure(reason=Reason.BACKEND_UNAVAILABLE, error=problem, scope=FailureScope.CONNECTION)
    return Failure(reason=Reason.BACKEND_TIMEOUT, error="no answer within the time limit")
