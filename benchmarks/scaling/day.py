"""The arrivals of a day: the conversation trace's ten minutes again and again, thinned to a working day's shape."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from benchmarks.pacing.workloads import conversation_rows

DAY_SECONDS: Final = 86_400
TRACE_SECONDS: Final = 600
COPIES: Final = 4
"""Copies of the trace at once, each shifted: 27 requests a second at the top of the day."""
SECONDS_PER_TOKEN: Final = 0.02

SHAPE: Final = ((0, 0.15), (6, 0.15), (8, 0.25), (9.75, 0.3), (10, 1.0), (12, 0.95), (13, 0.7), (14, 0.9), (17, 0.8))
"""(hour, share of the top). At ten traffic is four times what it was at eight, within a quarter of an hour."""
SHAPE_END: Final = ((19, 0.4), (22, 0.25), (24, 0.15))


@dataclass(frozen=True, slots=True)
class Request:
    """``service_seconds``: how long a worker's slot is taken."""

    at_seconds: float
    service_seconds: float


def share_at(at_seconds: float) -> float:
    """The share of the top at a time of the day; straight lines between the points of `SHAPE`."""
    hour = at_seconds % DAY_SECONDS / 3600
    points = SHAPE + SHAPE_END
    for (start, low), (end, high) in pairwise(points):
        if hour < end:
            return low + (high - low) * (hour - start) / (end - start)
    return points[-1][1]


def requests_of_day(*, seed: int, constant: float | None = None) -> Iterator[Request]:
    """The day's requests in order of time. ``constant``: this share of the top all day, instead of the day's shape."""
    chance = random.Random(f"day {seed}")
    rows = sorted(
        ((at_seconds + copy * TRACE_SECONDS / COPIES) % TRACE_SECONDS, tokens * SECONDS_PER_TOKEN)
        for copy in range(COPIES)
        for at_seconds, tokens in conversation_rows()
    )
    for start in range(0, DAY_SECONDS, TRACE_SECONDS):
        for offset, service_seconds in rows:
            at_seconds = start + offset
            share = share_at(at_seconds) if constant is None else constant
            if chance.random() < share:
                yield Request(at_seconds, service_seconds)
