"""The comparison: the same requests sent straight at an engine, each once, as a client without Forebay would.

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
"""How long such a client waits for an answer when its deadline is later than that."""

_REFUSALS: Final = (429, 503)


def direct_session() -> aiohttp.ClientSession:
    """A session that opens as many connections as there are requests: nothing but the engine limits them."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))


async def call_directly(
    session: aiohttp.ClientSession, arrival: Arrival, *, base_url: str, model: str, now: Callable[[], float]
) -> DirectCall:
    """Send one request and wait for its end; failing is an outcome. ``now`` gives seconds since the traffic's start."""
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
