"""Pacing: how many requests may be in flight. Policies are small pure objects: what ended and what was read go in, a
limit comes out. They never look at a clock and do no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import msgspec

from forebay_worker.signals.readings import EngineReading, GpuReading


class Ended(msgspec.Struct, frozen=True, gc=False):
    """An execution that ended. ``at``: monotonic seconds; ``in_flight`` counts it.

    ``succeeded``: the backend answered. Token counts are what the engine said, else what was predicted; the seconds
    count from the request's start to its answer.
    """

    at: float
    service_seconds: float
    in_flight: int
    succeeded: bool
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """What is known when a policy decides. ``now``: monotonic seconds; a reading that is missing or stale is None.

    Of all workers that share the backend: ``in_flight``; ``waiting``, requests that could start but for the limit;
    ``reserved``, slots that only some of them may take; ``dropped``, those given up for their deadlines since the last
    decision. ``token_seconds``: what an output token takes lately, end to end, the prompt's share taken off; None
    before the first answer. ``knee_requests``: with fewer in flight the backend's work grows notably dearer; the
    workers' part of it, where strangers use the same engine.
    """

    now: float
    in_flight: int
    waiting: int
    reserved: int = 0
    dropped: int = 0
    token_seconds: float | None = None
    knee_requests: float = 0.0
    engine: EngineReading | None = None
    gpu: GpuReading | None = None


class PacingPolicy(Protocol):
    """Finds the limit for one backend: for all workers that share it. Each of them has a policy of its own, which sees
    its own answers; `adopt` and `cut_to` hold them together."""

    @property
    def limit_requests(self) -> int:
        """How many requests may be in flight now; at least 1."""
        ...

    @property
    def limit_exact(self) -> float:
        """The same with its fraction."""
        ...

    @property
    def hard_cuts(self) -> int:
        """How often the backend itself made it cut the limit: it refused, or was about to preempt."""
        ...

    @property
    def token_seconds_target(self) -> float | None:
        """What an output token may take; None for a policy that has no such target."""
        ...

    def observe(self, ended: Ended, /) -> None:
        """Learns from an execution that ended."""
        ...

    def refused(self, now: float, /) -> str | None:
        """The backend refused a request as too much for it (429, 503, 529). Returns as `step` does."""
        ...

    def adopt(self, limit: float, now: float, /) -> None:
        """The limit as all workers on the backend find it takes the place of its own; not a higher one just after a
        hard cut, of which the others do not know yet."""
        ...

    def cut_to(self, limit: float, now: float, /) -> str | None:
        """Another worker was made to cut its limit to this. Returns as `step` does."""
        ...

    def step(self, signals: Signals, /) -> str | None:
        """Decides, once a second. Returns why the limit changed, with figures and units, or None if it did not."""
        ...
