"""Learns the engine's model from its counters, between two readings. Pure."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from forebay_worker.pacing.service_model import ServiceModel
from forebay_worker.signals.readings import EngineReading


class AtStart(msgspec.Struct, frozen=True, gc=False):
    """A gate's counters when a request started, all since the gate was made.

    - ``prefilled_tokens``: prompt tokens that the backend had taken in.
    - ``prompt_tokens``: prompt tokens of all requests started until then, its own included.
    - ``in_flight_seconds``: the sum of all requests' times in flight.
    """

    prefilled_tokens: float = 0.0
    prompt_tokens: int = 0
    in_flight_seconds: float = 0.0

    def mean_in_flight(self, in_flight_seconds: float, seconds: float) -> float:
        """Mean number in flight over the ``seconds`` since then."""
        return (in_flight_seconds - self.in_flight_seconds) / seconds


def meter(
    model: ServiceModel,
    last: EngineReading | None,
    engine: EngineReading | None,
    *,
    was_busy: Callable[[float], bool],
) -> None:
    """Updates the model from the engine's counters over a period in which it always had work.

    ``was_busy``: whether the engine always had work since that monotonic time.
    """
    if engine is None or engine.prompt_tokens_total is None or engine.output_tokens_total is None:
        model.unmetered()
    elif (
        last is not None
        and engine.at > last.at
        and last.prompt_tokens_total is not None
        and last.output_tokens_total is not None
    ):
        if not (engine.running_requests and last.running_requests and was_busy(last.at)):
            model.unmetered()
            return
        prompt_tokens = engine.prompt_tokens_total - last.prompt_tokens_total
        output_tokens = engine.output_tokens_total - last.output_tokens_total
        if prompt_tokens >= 0 and output_tokens >= 0:  # else the engine was restarted
            model.meter(
                seconds=engine.at - last.at,
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
                in_flight=(engine.running_requests + last.running_requests) / 2,
            )
