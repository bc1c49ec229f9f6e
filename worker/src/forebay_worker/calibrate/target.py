"""Sends a calibration's requests: to an OpenAI-compatible server, streamed where it can be, or to a handler. On the
event loop; every failure is a value."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, Final, Protocol

import aiohttp
import msgspec

from forebay_schemas.clock import Clock
from forebay_schemas.contract.tiers import DEFAULT_PRIORITY, Tier
from forebay_schemas.errors import ForebayError
from forebay_worker.answers.endpoints import Shape, shape_of
from forebay_worker.answers.judge import AnswerReader
from forebay_worker.answers.verdict import Failed
from forebay_worker.calibrate.requests import Asked
from forebay_worker.calibrate.samples import Ended, Trouble
from forebay_worker.execution.answer_body import ANSWER_LIMITS, read_answer
from forebay_worker.execution.handler_stream import call
from forebay_worker.request.handler import Handler, HandlerRequest
from forebay_worker.settings import WorkerSettings
from forebay_worker.signals.connection_errors import trouble_words

ERROR_CHARACTERS: Final = 200
_TOO_MUCH: Final = frozenset({429, 503, 529})
_NOT_UNDERSTOOD: Final = frozenset({400, 422})
_UNSTREAMED: Final = frozenset({Shape.EMBEDDING, Shape.IMAGE})
_HANDLER_DEADLINE_MS: Final = 86_400_000

FORMS: Final[tuple[dict[str, Any], ...]] = (
    {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True},
    {"stream": True, "stream_options": {"include_usage": True}},
    {"stream": True},
    {},
)
"""Fields added to a body; the first form that the backend accepts is used. Without ignore_eos (vLLM, SGLang, llama.cpp)
a model may end an answer early; without usage, pieces count as tokens; without a stream there is no first token."""


class UnusableBackendError(ForebayError):
    """The backend does not answer in a way that can be measured."""

    reason = "backend_unusable"


class Target(Protocol):
    """Runs requests. ``run`` raises only if it is cancelled, which abandons the request."""

    async def run(self, asked: Asked) -> Ended: ...

    async def close(self) -> None: ...


class HttpTarget:
    """An OpenAI-compatible server. ``on_chunk`` is called with the time for each received piece of text."""

    def __init__(
        self, settings: WorkerSettings, *, concurrency_max: int, clock: Clock, on_chunk: Callable[[float], None]
    ) -> None:
        """Must be called in the event loop that uses it."""
        assert settings.backend_url is not None
        self._base = settings.backend_url.rstrip("/")
        self._paths = settings.all_biz_paths
        headers = {"content-type": "application/json", "x-forebay-worker": settings.worker_id}
        secret = settings.read_backend_key()
        if secret is not None:
            headers["authorization"] = f"Bearer {secret}"
        self._session = aiohttp.ClientSession(
            # A fresh connection costs less than a request on one that the server is about to close.
            connector=aiohttp.TCPConnector(limit=concurrency_max, force_close=True),
            timeout=aiohttp.ClientTimeout(
                total=settings.backend_timeout_seconds, sock_connect=settings.backend_connect_seconds
            ),
            headers=headers,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        self._clock = clock
        self._on_chunk = on_chunk
        self._form = FORMS[0]
        self._numbers = itertools.count(1)

    async def settle(self, asked: Asked) -> Ended:
        """Finds the request form that the backend accepts, by sending this request. Raises ``UnusableBackendError``."""
        ended: Ended | None = None
        for form in FORMS:
            self._form = form
            ended = await self.run(asked)
            if ended.trouble is not Trouble.FAILED or not _is_not_understood(ended.error):
                break
        assert ended is not None
        if ended.trouble is not None:
            raise UnusableBackendError(f"the backend did not answer a first request: {ended.error}")
        return ended

    async def run(self, asked: Asked) -> Ended:
        path = self._paths.get(asked.biz_type)
        started = self._clock.monotonic()
        if path is None:
            return self._failure(started, Trouble.FAILED, f"biz_type {asked.biz_type!r} has no path")
        form = {} if shape_of(path) in _UNSTREAMED else self._form
        body = msgspec.json.encode({**asked.payload, **form})
        headers = {"x-request-id": f"calibrate-{next(self._numbers)}"}
        try:
            async with self._session.post(
                self._base + path, data=body, headers=headers, allow_redirects=False
            ) as response:
                return await self._read(response, path, started)
        except TimeoutError as error:
            connecting = isinstance(error, aiohttp.ConnectionTimeoutError)
            problem = "no connection in time" if connecting else "no answer within FOREBAY_BACKEND_TIMEOUT_SECONDS"
            return self._failure(started, Trouble.UNREACHED if connecting else Trouble.TIMED_OUT, problem)
        except aiohttp.ClientConnectorError as error:
            return self._failure(started, Trouble.UNREACHED, trouble_words(error))
        except (aiohttp.ClientError, aiohttp.http_exceptions.HttpProcessingError, OSError) as error:
            return self._failure(started, Trouble.BROKEN_OFF, trouble_words(error))

    async def close(self) -> None:
        await self._session.close()

    async def _read(self, response: aiohttp.ClientResponse, path: str, started: float) -> Ended:
        reader = AnswerReader(
            shape=shape_of(path),
            status=response.status,
            content_type=response.content_type,
            limits=ANSWER_LIMITS,
        )
        first: float | None = None
        chunks = 0

        def note_chunks() -> None:
            nonlocal first, chunks
            if reader.content_chunks > chunks:
                now = self._clock.monotonic()
                first = now if first is None else first
                for _ in range(reader.content_chunks - chunks):
                    self._on_chunk(now)
                chunks = reader.content_chunks

        verdict = await read_answer(response, reader, on_piece=note_chunks)
        if isinstance(verdict, Failed):
            if verdict.gave_up:
                trouble = Trouble.BROKEN_OFF
            else:
                trouble = Trouble.REFUSED if verdict.status in _TOO_MUCH else Trouble.FAILED
            return self._failure(started, trouble, verdict.message[:ERROR_CHARACTERS])
        return Ended(
            started=started,
            ended=self._clock.monotonic(),
            first_token_at=first,
            chunks=chunks,
            prompt_tokens=verdict.prompt_tokens,
            # In a stream without usage, pieces stand for tokens.
            output_tokens=(verdict.content_chunks or None) if verdict.output_tokens is None else verdict.output_tokens,
        )

    def _failure(self, started: float, trouble: Trouble, error: str) -> Ended:
        return Ended(started=started, ended=self._clock.monotonic(), trouble=trouble, error=error)


class HandlerTarget:
    """The user's function; it reports no tokens."""

    def __init__(self, handler: Handler, *, timeout_seconds: float, clock: Clock) -> None:
        self._handler = handler
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._numbers = itertools.count(1)

    async def run(self, asked: Asked) -> Ended:
        started = self._clock.monotonic()
        request = HandlerRequest(
            request_id=f"calibrate-{next(self._numbers)}",
            biz_type=asked.biz_type,
            payload_json=msgspec.Raw(msgspec.json.encode(asked.payload)),
            tier=Tier.MID,
            priority=DEFAULT_PRIORITY[Tier.MID],
            tenant=None,
            attempt=1,
            deadline_ms=self._clock.wall_ms() + _HANDLER_DEADLINE_MS,
        )
        trouble, problem = None, None
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await call(self._handler, request)
        except TimeoutError:
            trouble, problem = Trouble.TIMED_OUT, "no answer within FOREBAY_BACKEND_TIMEOUT_SECONDS"
        except Exception as error:  # noqa: BLE001 - a handler may fail in any way
            trouble, problem = Trouble.FAILED, f"{type(error).__name__}: {error}"
        return Ended(started=started, ended=self._clock.monotonic(), trouble=trouble, error=problem)

    async def close(self) -> None:
        """Does nothing: a handler holds no resource of this package."""


def _is_not_understood(error: str | None) -> bool:
    return error is not None and any(error.startswith(f"HTTP {status}") for status in _NOT_UNDERSTOOD)
