"""A handler for `FOREBAY_HANDLER` that does what the payload says, good or bad. Runs inside a worker."""

from __future__ import annotations

import asyncio
import sys
from typing import Any


async def obey(request: Any) -> Any:
    """The payload's ``do`` names what to do."""
    task = asyncio.current_task()
    assert task is not None
    match request.payload["do"]:
        case "answer":
            return {
                "request_id": request.request_id,
                "tier": request.tier,
                "priority": request.priority,
                "tenant": request.tenant,
                "attempt": request.attempt,
            }
        case "raise":
            raise RuntimeError("the handler is out of order")
        case "cancel_itself":
            task.cancel()
            await asyncio.sleep(0)
            return "never reached"
        case "raise_cancelled":
            raise asyncio.CancelledError
        case "exit":
            sys.exit(7)
        case "give_no_json":
            return {"value": object()}
        case "give_too_much":
            return {"text": "x" * (9 * 1024 * 1024)}
        case "sleep":
            await asyncio.sleep(request.payload["seconds"])
            return None
        case "swallow_cancellation":
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                return "I go on"
    return None


def no_coroutine(request: Any) -> Any:
    """Not async, so no handler."""
    return request
