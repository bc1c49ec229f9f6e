"""How far a worker has come between its start and its end. The event loop's thread writes it; any thread reads it."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import Literal

State = Literal["waiting_for_kafka", "working", "draining"]


@dataclass(slots=True, kw_only=True)
class RunState:
    """``waits_for``: what must come before the work begins; None from then on. ``heartbeat``: when the event loop last
    turned. ``assigned_by``: when even an empty share of the partitions counts as assigned. Monotonic seconds."""

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
