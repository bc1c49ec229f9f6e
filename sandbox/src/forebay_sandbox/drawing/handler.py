"""The drawing service's image model, as a handler for `FOREBAY_HANDLER`. Runs inside a worker; draws without a GPU.

`draw` sleeps for the prompt's time and logs each drawing to the file that the environment names.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import os
from io import BytesIO
from pathlib import Path
from typing import Any, Final, Protocol

from PIL import Image

from forebay_sandbox.engine.ledger import ExecutionLedger, ExecutionOutcome
from forebay_schemas.clock import SystemClock

HANDLER: Final = f"{__name__}:draw"

SECONDS_VARIABLE: Final = "SANDBOX_DRAWING_SECONDS"
"""The mean time of a drawing."""
LOG_VARIABLE: Final = "SANDBOX_DRAWING_LOG"
"""The file of executed drawings, a line each. All workers of a run append to it."""

JITTER_SHARE: Final = 1 / 3
"""The largest deviation of a drawing's time, as a share of the mean: uniform, by the prompt."""

_PATH: Final = "/v1/images/generations"
_COLORS_A_SIDE: Final = 8
_PIXELS_A_SIDE: Final = 64


class DrawingRequest(Protocol):
    """The fields of a request that `draw` reads."""

    @property
    def request_id(self) -> str: ...

    @property
    def payload(self) -> dict[str, Any]: ...


async def draw(request: DrawingRequest) -> dict[str, Any]:
    """Draws the payload's ``prompt``. Returns an answer of OpenAI's images API."""
    prompt = request.payload["prompt"]
    execution = _ledger().begin(request_id=request.request_id, path=_PATH)
    try:
        await asyncio.sleep(drawing_seconds(prompt, mean_seconds=float(os.environ[SECONDS_VARIABLE])))
    except asyncio.CancelledError:
        execution.end(ExecutionOutcome.DISCONNECTED)
        raise
    execution.end(ExecutionOutcome.COMPLETED)
    return {
        "created": SystemClock().wall_ms() // 1000,
        "data": [{"b64_json": base64.b64encode(png_of(prompt)).decode()}],
        "output_format": "png",
        "size": f"{_PIXELS_A_SIDE}x{_PIXELS_A_SIDE}",
    }


def drawing_seconds(prompt: str, *, mean_seconds: float) -> float:
    """The drawing time of a prompt, always the same."""
    evenly = int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:4], "big") / 2**32
    return mean_seconds * (1 + JITTER_SHARE * (2 * evenly - 1))


def png_of(prompt: str) -> bytes:
    """The picture of a prompt as a PNG: 64 coloured squares, always the same."""
    colors = hashlib.shake_256(prompt.encode()).digest(3 * _COLORS_A_SIDE**2)
    pattern = Image.frombytes("RGB", (_COLORS_A_SIDE, _COLORS_A_SIDE), colors)
    picture = pattern.resize((_PIXELS_A_SIDE, _PIXELS_A_SIDE), Image.Resampling.NEAREST)
    file = BytesIO()
    picture.save(file, format="PNG")
    return file.getvalue()


@functools.cache
def _ledger() -> ExecutionLedger:
    return ExecutionLedger(clock=SystemClock(), log_path=Path(os.environ[LOG_VARIABLE]))
