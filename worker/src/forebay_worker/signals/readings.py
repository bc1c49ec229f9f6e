"""What the engine and its GPUs say of themselves, and when they said it. Values only; all fields are optional."""

from __future__ import annotations

from dataclasses import dataclass

from forebay_schemas.errors import ForebayError


class SignalError(ForebayError):
    """A source of signals gave nothing that can be used; pacing goes on without it."""

    reason = "signal_missing"


class SignalAbsentError(SignalError):
    """There is no such source here, and none will come: it is not asked again."""

    reason = "signal_absent"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReading:
    """One look at the engine's own metrics. ``at``: monotonic seconds. None: the engine does not say."""

    at: float
    running_requests: float | None = None
    waiting_requests: float | None = None
    kv_used_share: float | None = None
    """Of the KV cache, 0 to 1."""
    preemptions_total: float | None = None
    prompt_tokens_total: float | None = None
    output_tokens_total: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """One look at the GPUs that the engine runs on. ``at``: monotonic seconds. Shares are 0 to 1."""

    at: float
    utilisation: float | None = None
    """Share of time with any kernel running, mean over the devices; 1 says nothing about saturation."""
    sm_utilisation: float | None = None
    """Share of the streaming multiprocessors at work, mean over the devices, where the GPUs tell it (GPM)."""
    memory_used_share: float | None = None
    """Of the fullest device."""
