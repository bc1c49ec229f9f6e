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
from forebay_worker.execution.stream_usage import REFUSALS, UsageRefusals, with_usage
from forebay_worker.request.backend import BackendFailed
from forebay_worker.request.retry_policy import RetryStatuses
from forebay_worker.request.work import Answer, Failure, FailureScope, StreamSink, Work
from forebay_worker.signals.connection_errors import trouble_words

# What aiohttp unpacks, or what needs no unpacking.
_ENCODINGS = frozenset({"", "identity", "gzip", "deflate", "br", "zstd"})
_UNAUTHORIZED = frozenset({401, 403})


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """How a backend is called. ``base_url``: without a slash at its end. ``paths``: by biz_type. ``api_key``: the key,
    or the file that holds it, as in FOREBAY_BACKEND_API_KEY. ``age_seconds``: of connections, least and most.
    ``adds_usage``: whether streams that do not ask for their usage are made to."""

    base_url: str
    paths: Mapping[str, str]
    api_key: str | None
    worker_id: str
    engine_priority: EnginePriority
    retry_statuses: RetryStatuses
    timeouts: Timeouts
    adds_usage: bool = True
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
    first_token_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """One call of the backend, which may take several connections. ``sink``: where the events of a stream go."""

    endpoint: _Endpoint
    payload: bytes
    headers: Mapping[str, str]
    sink: StreamSink | None


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
        self._usage_refusals = UsageRefusals()
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
        begun_at = self._loop.time()
        payload = with_priority(work, bytes(request.payload), self._options.engine_priority)
        reply, usage_added = await self._ask_with_usage(endpoint, work, payload)
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
        first_token_at = reply.first_token_at
        return Answer(
            body=msgspec.Raw(answer.body),
            prompt_tokens=answer.prompt_tokens,
            output_tokens=answer.output_tokens,
            content_chunks=answer.content_chunks,
            first_token_seconds=None if first_token_at is None else first_token_at - begun_at,
            usage_added=usage_added,
        )

    async def close(self) -> None:
        await self._connections.close()

    async def _ask_with_usage(self, endpoint: _Endpoint, work: Work, payload: bytes) -> tuple[_Reply, bool]:
        """Asks, for the usage of a stream too; without that where the engine refuses it. The reply, and whether usage
        was asked for that the payload does not ask for."""
        asking = None
        if self._options.adds_usage and not self._usage_refusals.is_refused(endpoint.url, self._loop.time()):
            asking = with_usage(payload, endpoint.shape)
        if asking is None:
            return await self._ask(endpoint, work, payload), False
        if work.stream is not None:
            work.stream.usage_added = True
        reply = await self._ask(endpoint, work, asking)
        if reply.status not in REFUSALS:
            return reply, True
        if work.stream is not None:
            work.stream.usage_added = False
        reply = await self._ask(endpoint, work, payload)
        if reply.status not in REFUSALS:
            self._usage_refusals.refused(endpoint.url, self._loop.time())
        return reply, False

    async def _ask(self, endpoint: _Endpoint, work: Work, payload: bytes) -> _Reply:
        """Asks with the present key, and once more when it was refused and its file has another by now."""
        call = _Call(endpoint=endpoint, payload=payload, headers=_headers(work), sink=work.stream)
        key = self._key
        if key is None:
            return await self._try_to_post(call)
        secret = key.value(self._loop.time())
        reply = await self._try_to_post(_with_key(call, secret))
        if reply.status in _UNAUTHORIZED and key.has_another(secret):
            reply = await self._try_to_post(_with_key(call, key.value(self._loop.time())))
        return reply

    async def _try_to_post(self, call: _Call) -> _Reply:
        """Raises ``BackendFailed`` where there was no answer."""
        try:
            return await self._post(call)
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

    async def _post(self, call: _Call) -> _Reply:
        exchange = Exchange()
        lease = self._connections.take()
        try:
            return await self._exchange(lease.session, call, exchange)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, aiohttp.ClientConnectionResetError):
            # Servers close idle connections at a moment of their own, llama.cpp's after each hundredth answer too.
            # That says nothing of the backend or the request.
            if not exchange.was_stale(self._loop.time()):
                raise
        finally:
            self._connections.give_back(lease)
        return await self._exchange(self._connections.unshared, call, None)

    async def _exchange(self, session: aiohttp.ClientSession, call: _Call, exchange: Exchange | None) -> _Reply:
        endpoint, payload = call.endpoint, call.payload
        first_token_at: float | None = None

        def note_first_token() -> bool:
            nonlocal first_token_at
            if reader.has_begun:
                first_token_at = self._loop.time()
            return first_token_at is not None

        async with session.post(
            endpoint.url, data=payload, headers=call.headers, allow_redirects=False, trace_request_ctx=exchange
        ) as response:
            content_type = response.content_type if "content-type" in response.headers else ""
            is_stream = content_type == EVENT_STREAM or b'"stream"' in payload
            reader = AnswerReader(
                shape=endpoint.shape,
                status=response.status,
                content_type=content_type,
                limits=ANSWER_LIMITS,
                choices_asked=choices_in(payload) if is_stream else 1,
                on_event=None if call.sink is None else call.sink.add,
            )
            verdict = await read_answer(
                response,
                reader,
                room=self._room,
                grace_seconds=self._options.grace_seconds,
                on_piece=note_first_token if is_stream else None,
            )
            encoding = response.headers.get("content-encoding", "").lower()
            if isinstance(verdict, Failed) and encoding not in _ENCODINGS:
                # It came as it was packed, and reads like rubbish.
                words = with_words(f"content-encoding: {encoding}", verdict.message.encode())
                verdict = replace(verdict, message=words, body=None)
            headers_given = response.headers
            return _Reply(
                status=response.status,
                location=headers_given.get("location"),
                retry_after_seconds=retry_after_seconds(headers_given.get("retry-after"), headers_given.get("date")),
                verdict=verdict,
                first_token_at=first_token_at,
            )


def _with_key(call: _Call, secret: str) -> _Call:
    return replace(call, headers={**call.headers, "authorization": f"Bearer {secret}"})


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
