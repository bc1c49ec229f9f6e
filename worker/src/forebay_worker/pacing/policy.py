"""Pacing: how many requests may be in flight. Policies are small pure objects: ended requests and readings go in, a
limit comes out. They never read a clock and do no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import msgspec

from forebay_worker.signals.readings import EngineReading, GpuReading


class Ended(msgspec.Struct, frozen=True, gc=False):
    """An execution that ended. ``at``: monotonic seconds; ``in_flight`` counts it.

    ``succeeded``: the backend answered. Token counts are the engine's, else the predicted ones. Seconds count from the
    request's start to its answer.
    """

    at: float
    service_seconds: float
    in_flight: int
    succeeded: bool
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """The input of a policy's decision. ``now``: monotonic seconds; a missing or stale reading is None.

    Of all workers that share the backend: ``in_flight``; ``waiting``, requests that only the limit keeps from starting;
    ``reserved``, slots that only some of them may take; ``dropped``, those given up for their deadlines since the last
    decision. ``token_seconds``: recent time of an output token, end to end, less the prompt's share; None before the
    first answer. ``knee_requests``: with fewer in flight the backend's work costs notably more; the workers' part of it
    if there is external load.
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
    """Finds the limit of one backend, for all workers that share it. Each worker has a policy of its own, which
    receives its own answers; `adopt` and `cut_to` keep them together."""

    @property
    def limit_requests(self) -> int:
        """The number of requests that may be in flight now; at least 1."""
        ...

    @property
    def limit_exact(self) -> float:
        """The same with its fraction."""
        ...

    @property
    def hard_cuts(self) -> int:
        """Number of cuts that the backend forced: it refused, or was about to preempt."""
        ...

    @property
    def token_seconds_target(self) -> float | None:
        """Target time of an output token; None for a policy without one."""
        ...

    def observe(self, ended: Ended, /) -> None:
        """Learns from an ended execution."""
        ...

    def refused(self, now: float, /) -> str | None:
        """Notes that the backend refused a request because it is overloaded (429, 503, 529). Returns as `step` does."""
        ...

    def adopt(self, limit: float, now: float, /) -> None:
        """Replaces its own limit by the one on which all workers agree. Keeps a lower one just after a hard cut, which
        the others do not know yet."""
        ...

    def cut_to(self, limit: float, now: float, /) -> str | None:
        """Applies a cut that another worker had to make. Returns as `step` does."""
        ...

    def step(self, signals: Signals, /) -> str | None:
        """Decides, once a second. Returns why the limit changed, with figures and units, or None if it did not."""
        ...
