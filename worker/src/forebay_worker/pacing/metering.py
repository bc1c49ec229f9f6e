"""What the engine's counters teach the model of it, between two readings. Pure."""

from __future__ import annotations

from collections.abc import Callable

from forebay_worker.pacing.service_model import ServiceModel
from forebay_worker.signals.readings import EngineReading


def meter(
    model: ServiceModel,
    last: EngineReading | None,
    engine: EngineReading | None,
    *,
    was_busy: Callable[[float], bool],
) -> None:
    """Lets the model learn from the engine's counters over a time in which it always had work.

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
        if prompt_tokens >= 0 and output_tokens >= 0:  # else it was started anew
            model.meter(
                seconds=engine.at - last.at,
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
                in_flight=(engine.running_requests + last.running_requests) / 2,
            )
