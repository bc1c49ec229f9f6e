"""An HTTP backend on a raw engine, in one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from forebay_worker.execution.http_backend import HttpBackend
from forebay_worker.request.backend import BackendFailed
from forebay_worker.request.work import Answer, Failure
from forebay_worker.settings import load_worker_settings
from forebay_worker.wiring.choices import http_options
from harness.raw_engine import AnswerRaw, RawEngine, raw_engine
from simulated.works import make_work


@asynccontextmanager
async def calling(url: str, *, options: dict[str, Any] | None = None, **settings: object) -> AsyncIterator[HttpBackend]:
    """A backend of an engine at ``url``. ``options``: of `HttpOptions`, beside those of the settings."""
    given = http_options(load_worker_settings(flags={"backend_url": url, **settings}, config=None))
    backend = HttpBackend(replace(given, **(options or {})))
    try:
        yield backend
    finally:
        await backend.close()


@asynccontextmanager
async def asking(
    answer: AnswerRaw, *, options: dict[str, Any] | None = None, **settings: object
) -> AsyncIterator[tuple[HttpBackend, RawEngine]]:
    """A backend and its engine, which answers by ``answer``."""
    async with raw_engine(answer) as engine, calling(engine.url, options=options, **settings) as backend:
        yield backend, engine


def ask(answer: AnswerRaw, *, biz_type: str = "chat_completion", **options: Any) -> Answer | Failure:
    """The outcome of one request. ``options``: of `HttpOptions`."""

    async def scenario() -> Answer | Failure:
        async with asking(answer, options=options) as (backend, _):
            return await outcome_of(backend, biz_type=biz_type)

    return asyncio.run(scenario())


async def outcome_of(backend: HttpBackend, **request: Any) -> Answer | Failure:
    """The outcome of one request. ``request``: of `make_work`."""
    try:
        return await backend.run(make_work(**request))
    except BackendFailed as failed:
        return failed.failure
