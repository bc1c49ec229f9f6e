"""Pacing: how many requests may be in flight. Policies are small pure objects: a sample in, a limit out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One execution that ended: what a policy learns from."""

    now: float
    service_seconds: float
    in_flight: int
    succeeded: bool


class PacingPolicy(Protocol):
    """Finds the limit for one backend. Times are monotonic seconds."""

    @property
    def limit_requests(self) -> int:
        """How many requests may be in flight now; at least 1."""
        ...

    def observe(self, sample: Sample) -> None:
        """Learns from an execution that ended."""
        ...


class FixedLimit:
    """The same limit always."""

    __slots__ = ("limit_requests",)

    def __init__(self, *, limit_requests: int) -> None:
        if limit_requests < 1:
            raise ValueError("limit_requests must be at least 1")
        self.limit_requests = limit_requests

    def observe(self, sample: Sample) -> None:
        """A fixed limit learns nothing."""
