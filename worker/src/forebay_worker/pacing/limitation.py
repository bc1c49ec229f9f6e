"""A gate's answers: its present limitation, the pace of a request, a change of its limit. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


class Limitation(msgspec.Struct, frozen=True, gc=False):
    """The reason why the next request cannot start: a signal, and the threshold that it has reached."""

    signal: str
    value: float
    threshold: float


class Pace(msgspec.Struct, frozen=True, gc=False):
    """Duration of a request that starts now: ``ahead_seconds``, plus a time for each prompt token and each output
    token. All 0 while the backend is unknown."""

    ahead_seconds: float
    prompt_token_seconds: float
    output_token_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitChange:
    """A change of the limit. ``at_ms``: epoch milliseconds. ``cause``: text for people."""

    at_ms: int
    before: int
    after: int
    cause: str
