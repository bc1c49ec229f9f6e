"""The comparison: the same requests sent directly to an engine, each once, as by a client without Forebay.

Runs in the caller's event loop; talks HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import aiohttp

from forebay_sandbox.demo.ledger import DirectCall, DirectOutcome
from forebay_sandbox.demo.traffic import Arrival

PATIENCE_SECONDS_MAX: Final = 10.0
"""The client's timeout for requests with a later deadline."""

_REFUSALS: Final = (429, 503)


def direct_session() -> aiohttp.ClientSession:
    """A session without a limit on connections: only the engine limits them."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))


async def call_directly(
    session: aiohttp.ClientSession, arrival: Arrival, *, base_url: str, model: str, now: Callable[[], float]
) -> DirectCall:
    """Sends one request and waits for its end; a failure is an outcome. ``now`` gives seconds since the traffic's
    start."""
    patience_seconds = min(PATIENCE_SECONDS_MAX, arrival.ttl_ms / 1000)
    outcome = DirectOutcome.FAILED
    try:
        async with asyncio.timeout(patience_seconds):
            url = f"{base_url}/v1/chat/completions"
            async with session.post(url, json=arrival.payload(model=model)) as response:
                await response.read()
                if response.status == 200:
                    outcome = DirectOutcome.COMPLETED
                elif response.status in _REFUSALS:
                    outcome = DirectOutcome.REFUSED
    except TimeoutError:
        outcome = DirectOutcome.TIMED_OUT
    except aiohttp.ClientError:
        pass
    return DirectCall(arrival=arrival, outcome=outcome, ended_seconds=now())
