"""Handlers that the measured worker runs in place of a backend. They do nothing: only the worker counts."""

from __future__ import annotations

import asyncio
from typing import Any

_BODY = {"ok": True}


async def noop(request: Any) -> dict[str, bool]:  # noqa: ARG001 - what a handler is given
    """Answers at once."""
    return _BODY


async def sleepy(request: Any) -> dict[str, bool]:  # noqa: ARG001
    """Answers after a second, so that the worker stands at its limit while the rest waits."""
    await asyncio.sleep(1.0)
    return _BODY
