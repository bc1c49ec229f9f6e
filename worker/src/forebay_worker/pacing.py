"""Pacing: how many requests may be in flight. Policies are small pure objects: what ended in, a limit out."""

from __future__ import annotations

from typing import Protocol


class PacingPolicy(Protocol):
    """Finds the limit for one backend. Times are monotonic seconds."""

    @property
    def limit_requests(self) -> int:
        """How many requests may be in flight now; at least 1."""
        ...

    def observe(self, now: float, service_seconds: float, in_flight: int, succeeded: bool) -> None:
        """Learns from an execution that ended; ``in_flight`` counts it."""
        ...


class FixedLimit:
    """The same limit always."""

    __slots__ = ("limit_requests",)

    def __init__(self, *, limit_requests: int) -> None:
        if limit_requests < 1:
            raise ValueError("limit_requests must be at least 1")
        self.limit_requests = limit_requests

    def observe(self, now: float, service_seconds: float, in_flight: int, succeeded: bool) -> None:
        """A fixed limit learns nothing."""
