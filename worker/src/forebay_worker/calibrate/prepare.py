"""Preparation of a calibration: checks whether the engine is in use, and gets a first answer. HTTP, on the event loop,
within the calibration's time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, TypeVar

import aiohttp
import msgspec
from yarl import URL

from forebay_schemas.clock import Clock
from forebay_schemas.errors import ForebayError
from forebay_worker.calibrate.requests import Asked, Asks, MadeAsks
from forebay_worker.calibrate.samples import Ended
from forebay_worker.calibrate.target import UnusableBackendError
from forebay_worker.execution.answer_body import read_at_most
from forebay_worker.settings import WorkerSettings
from forebay_worker.signals.engine_metrics import engine_name, read_engine_metrics
from forebay_worker.signals.fetch import fetch
from forebay_worker.signals.readings import SignalError
from forebay_worker.wiring.signals import metrics_url

LOOKS: Final = 3
"""Readings of an engine that may be in use: between two requests of another client it looks idle."""
LOOK_SECONDS: Final = 0.3
PROBE_PROMPT_TOKENS: Final = 50
MODELS_SECONDS: Final = 5.0
MODELS_BYTES_MAX: Final = 1024 * 1024
QUIET_SECONDS: Final = 3.0
"""Silence before a line on the reason for waiting."""
PROGRESS_SECONDS: Final = 10.0

T = TypeVar("T")


class InUseError(ForebayError):
    """Other clients use the backend."""

    reason = "backend_in_use"


class Patience:
    """The calibration's time, from now on. ``began``: monotonic seconds. ``say`` gets a line for people."""

    def __init__(self, *, seconds: float, clock: Clock, say: Callable[[str], None]) -> None:
        self.began = clock.monotonic()
        self._seconds = seconds
        self._clock = clock
        self._say = say

    async def wait(self, what: str, doing: Coroutine[Any, Any, T]) -> T:
        """The result of ``doing``; every few seconds prints that it waits for ``what``.

        Raises ``UnusableBackendError`` when the time is over.
        """
        talk = asyncio.create_task(self._talk(what))
        limit = asyncio.timeout(self.began + self._seconds - self._clock.monotonic())
        try:
            async with limit:
                return await doing
        except TimeoutError:
            if not limit.expired():
                raise
            raise UnusableBackendError(
                f"--max-duration, {self._seconds:g} s, was over before anything was measured: it waited for {what}"
            ) from None
        finally:
            talk.cancel()

    async def _talk(self, what: str) -> None:
        pause = QUIET_SECONDS
        while True:
            await asyncio.sleep(pause)
            pause = PROGRESS_SECONDS
            self._say(f"waiting for {what}: {self._clock.monotonic() - self.began:.0f} s of {self._seconds:g} s")


class Settling(Protocol):
    """The part of `HttpTarget` that gets a first answer."""

    async def settle(self, asked: Asked) -> Ended: ...


async def probe(target: Settling, source: Asks, patience: Patience) -> None:
    """The request form that the backend accepts, and the length of its tokens. The first request may load the model, so
    it does not count. Raises ``UnusableBackendError``."""
    if not isinstance(source, MadeAsks):
        await patience.wait("a first answer", target.settle(source.next()))
        return
    short = source.sized(PROBE_PROMPT_TOKENS, 2)
    answered = await patience.wait("a first answer, of 2 tokens", target.settle(short))
    source.answered(short, prompt_tokens=answered.prompt_tokens)
    full = source.next()
    answered = await patience.wait("a first answer of full length", target.settle(full))
    source.answered(full, prompt_tokens=answered.prompt_tokens)


async def look_at_engine(settings: WorkerSettings, *, even_if_busy: bool) -> str | None:
    """The engine whose metrics the page has; None without one. Raises ``InUseError``."""
    url = metrics_url(settings)
    if url is None:
        return None
    name = None
    async with aiohttp.ClientSession() as session:
        for look in range(LOOKS):
            try:
                page = (await fetch(session, URL(url))).body.decode(errors="replace")
                name = engine_name(page, prefix=settings.metrics_prefix)
                reading = read_engine_metrics(page, at=0.0, prefix=settings.metrics_prefix)
            except SignalError:
                return name
            busy = (reading.running_requests or 0.0) + (reading.waiting_requests or 0.0)
            if busy and not even_if_busy:
                raise InUseError(
                    f"others use the backend, requests now: {busy:g}; measuring would slow them down, and they would "
                    "spoil the figures; stop them, or say --even-if-busy"
                )
            if look < LOOKS - 1:
                await asyncio.sleep(LOOK_SECONDS)
    return name


async def first_model(settings: WorkerSettings) -> str | None:
    """The first model that the backend lists; None if it lists none."""
    assert settings.backend_url is not None
    secret = settings.read_backend_key()
    headers = {} if secret is None else {"authorization": f"Bearer {secret}"}
    timeout = aiohttp.ClientTimeout(total=MODELS_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(headers=headers, timeout=timeout) as session,
            session.get(settings.backend_url.rstrip("/") + "/v1/models", allow_redirects=False) as response,
        ):
            return str(msgspec.json.decode(await read_at_most(response, MODELS_BYTES_MAX))["data"][0]["id"])
    except (aiohttp.ClientError, OSError, ValueError, LookupError, TypeError):
        # The first request will show any error of the backend.
        return None
