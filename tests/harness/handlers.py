"""A handler for `FOREBAY_HANDLER` that does what the payload says, good or bad. Runs inside a worker."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from forebay_worker import HandlerAnswer, NotRetryableError


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
        case "echo":
            return {"text": request.payload["text"]}
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
        case "give_nan":
            return {"scores": [0.5, float("nan")]}
        case "count_tokens":
            return HandlerAnswer(body={"text": "hi"}, prompt_tokens=7, output_tokens=30)
        case "reject":
            raise NotRetryableError("no such voice")
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
        case "note":
            _note(request)
        case "note_and_sleep":
            _note(request)
            await asyncio.sleep(request.payload["seconds"])
        case "wait_at_gate":
            _note(request)
            await _pass_gate(request)
        case "block_at_gate":
            _note(request)
            _block_at_gate(request)
        case "kill_after":
            _note(request)
            await asyncio.sleep(request.payload["seconds"])
            os.kill(os.getpid(), getattr(signal, request.payload.get("signal", "SIGKILL")))
            await asyncio.sleep(60)
        case "kill_worker_at_gate":
            _note(request)
            await _pass_gate(request)
            os.kill(os.getpid(), signal.SIGKILL)
    return None


def _note(request: Any) -> None:
    with (Path(request.payload["folder"]) / "starts").open("a", encoding="utf-8") as log:
        log.write(f"{request.request_id}\n")


async def _pass_gate(request: Any) -> None:
    gate = Path(request.payload["folder"]) / f"open-{request.payload['gate']}"
    while not gate.exists():  # noqa: ASYNC110 - another process opens it
        await asyncio.sleep(0.02)


def _block_at_gate(request: Any) -> None:
    gate = Path(request.payload["folder"]) / f"open-{request.payload['gate']}"
    while not gate.exists():
        time.sleep(0.02)


async def count_up(request: Any) -> Any:
    """Yields numbers, one at a time."""
    for number in range(request.payload["to"]):
        yield {"number": number}
        await asyncio.sleep(0.05)
