"""The worker's own HTTP port: /livez, /readyz, /metrics and /status."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from forebay_schemas.runtime.bind_errors import cannot_listen

Check = Callable[[], list[str]]


class OpsServer:
    """Serves the four pages on the event loop. ``not_alive`` and ``not_ready`` return what is wrong, [] for nothing."""

    def __init__(
        self, *, registry: CollectorRegistry, not_alive: Check, not_ready: Check, status: Callable[[], dict[str, Any]]
    ) -> None:
        self._registry = registry
        self._not_alive = not_alive
        self._not_ready = not_ready
        self._status = status
        self._runner: web.AppRunner | None = None

    async def start(self, *, host: str, port: int) -> int:
        """Listens; returns the port. Raises ``UsageError`` when it cannot."""
        app = web.Application()
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/status", self._get_status)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        try:
            await site.start()
        except (OSError, UnicodeError) as error:
            await self._runner.cleanup()
            raise cannot_listen(error, host=host, port=port, setting="FOREBAY_OPS") from None
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Closes the port."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _livez(self, _request: web.Request) -> web.Response:
        return _checked(self._not_alive())

    async def _readyz(self, _request: web.Request) -> web.Response:
        return _checked(self._not_ready())

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"content-type": CONTENT_TYPE_LATEST})

    async def _get_status(self, _request: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(self._status()), content_type="application/json")


def _checked(problems: list[str]) -> web.Response:
    if problems:
        return web.Response(status=503, text="\n".join(problems) + "\n")
    return web.Response(text="ok\n")
