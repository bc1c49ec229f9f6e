"""A worker's progress between start and end. The event loop's thread writes it; any thread reads it."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import Literal

State = Literal["waiting_for_kafka", "working", "draining"]


@dataclass(slots=True, kw_only=True)
class RunState:
    """``waits_for``: the condition for starting work; None once it holds. ``heartbeat``: when the event loop last
    turned. ``assigned_by``: when even an empty assignment counts as one. Monotonic seconds."""

    heartbeat: float
    waits_for: str | None = "waiting for Kafka"
    assigned_by: float = math.inf
    drain: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> State:
        """For /status."""
        if self.drain.is_set():
            return "draining"
        return "working" if self.waits_for is None else "waiting_for_kafka"
