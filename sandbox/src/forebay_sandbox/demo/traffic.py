"""The demo's traffic: which request comes when. A real trace's arrivals and lengths, its clock bent so that the rate
is a valley, a pulse of four times the valley, and the valley again. Pure: no clock, no chance, no I/O."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from forebay_sandbox.demo.trace import TraceRow
from forebay_schemas.contract.tiers import DEFAULT_TTL_MS, Tier
from forebay_schemas.errors import UsageError

PULSE_FACTOR: Final = 4.0
"""The pulse's rate over the valley's."""

# With these two an idle engine serves the median request in a quarter of a second and prefill is a seventh of its work;
# the trace's own lengths belong to GPUs that take ten times as long.
PROMPT_SCALE: Final = 0.2
OUTPUT_SCALE: Final = 0.6
OUTPUT_TOKENS_MAX: Final = 110
"""What the clients ask for at most (max_tokens)."""

# A quarter high, a quarter mid, half low.
_TIERS: Final = (Tier.LOW, Tier.HIGH, Tier.LOW, Tier.MID)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """The rate over time: ``valley_per_second``, but ``PULSE_FACTOR`` times that from start to end of the pulse."""

    total_seconds: float
    valley_per_second: float
    pulse_start_seconds: float
    pulse_end_seconds: float

    @classmethod
    def of(cls, *, total_seconds: float, valley_per_second: float) -> Pulse:
        """The demo's shape: the pulse takes the second fifth of the time. Raises ``UsageError``."""
        if not 5 <= total_seconds <= 600:
            raise UsageError("--seconds", f"is {total_seconds:g}", fix="give 5 to 600")
        if not 0.5 <= valley_per_second <= 200:
            raise UsageError("--rate", f"is {valley_per_second:g}", fix="give 0.5 to 200 requests per second")
        return cls(
            total_seconds=total_seconds,
            valley_per_second=valley_per_second,
            pulse_start_seconds=total_seconds / 5,
            pulse_end_seconds=2 * total_seconds / 5,
        )

    def rate_at(self, seconds: float) -> float:
        """Requests per second expected at a time."""
        in_pulse = self.pulse_start_seconds <= seconds < self.pulse_end_seconds
        return self.valley_per_second * (PULSE_FACTOR if in_pulse else 1.0)

    def expected_by(self, seconds: float) -> float:
        """Requests expected from 0 until a time: the integral of the rate."""
        pulse_part = min(max(seconds - self.pulse_start_seconds, 0), self.pulse_end_seconds - self.pulse_start_seconds)
        return self.valley_per_second * (seconds + (PULSE_FACTOR - 1) * pulse_part)

    def when(self, expected: float) -> float:
        """The time by which so many requests are expected: the inverse of `expected_by`."""
        start, end = self.pulse_start_seconds, self.pulse_end_seconds
        at_start, at_end = self.expected_by(start), self.expected_by(end)
        if expected <= at_start:
            return expected / self.valley_per_second
        if expected <= at_end:
            return start + (expected - at_start) / (PULSE_FACTOR * self.valley_per_second)
        return end + (expected - at_end) / self.valley_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request to come, ``at_seconds`` after the traffic's start."""

    number: int
    at_seconds: float
    tier: Tier
    prompt_tokens: int
    output_tokens: int

    @property
    def ttl_ms(self) -> int:
        """The deadline that its client gives it: the tier's default."""
        return DEFAULT_TTL_MS[self.tier]

    def payload(self, *, model: str) -> dict[str, Any]:
        """The request body as an OpenAI client would send it. A token is four characters of prompt."""
        return {
            "model": model,
            "messages": [{"role": "user", "content": "bay " * self.prompt_tokens}],
            "max_tokens": self.output_tokens,
        }


def schedule(pulse: Pulse, trace: Sequence[TraceRow]) -> list[Arrival]:
    """All arrivals in order of time: as many as the pulse expects, spaced as unevenly as the trace's own.

    The trace's time, measured in requests at its mean rate, becomes the pulse's. A trace too short starts again.
    """
    count = int(pulse.expected_by(pulse.total_seconds))
    mean_gap = trace[-1].at_seconds / (len(trace) - 1)
    round_seconds = trace[-1].at_seconds + mean_gap
    rows = itertools.islice(itertools.cycle(trace), count)
    moments = [(index // len(trace)) * round_seconds + row.at_seconds for index, row in enumerate(rows)]
    stretch = pulse.expected_by(pulse.total_seconds) / (moments[-1] + mean_gap)
    return [
        Arrival(
            number=index,
            at_seconds=pulse.when(moment * stretch),
            tier=_TIERS[index % len(_TIERS)],
            prompt_tokens=max(1, round(trace[index % len(trace)].prompt_tokens * PROMPT_SCALE)),
            output_tokens=min(OUTPUT_TOKENS_MAX, max(2, round(trace[index % len(trace)].output_tokens * OUTPUT_SCALE))),
        )
        for index, moment in enumerate(moments)
    ]
