"""What a gate says: what limits it, what a request would take, how its limit changed. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


class Limitation(msgspec.Struct, frozen=True, gc=False):
    """What keeps the next request from starting: a signal, and the threshold that it has reached."""

    signal: str
    value: float
    threshold: float


class Pace(msgspec.Struct, frozen=True, gc=False):
    """What a request would take that started now: ``ahead_seconds``, so much for each prompt token, and so much for
    each output token. All 0 while nothing is known of the backend."""

    ahead_seconds: float
    prompt_token_seconds: float
    output_token_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitChange:
    """The limit changed. ``at_ms``: epoch milliseconds; ``cause`` is for people."""

    at_ms: int
    before: int
    after: int
    cause: str
