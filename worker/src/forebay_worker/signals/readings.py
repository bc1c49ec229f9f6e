"""Readings of the engine and its GPUs, with their time. Values only; all fields are optional."""

from __future__ import annotations

from dataclasses import dataclass

from forebay_schemas.errors import ForebayError


class SignalError(ForebayError):
    """A source of signals gave no usable reading; pacing goes on without it."""

    reason = "signal_missing"


class SignalAbsentError(SignalError):
    """The source does not exist here and never will: it is not asked again."""

    reason = "signal_absent"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReading:
    """One reading of the engine's own metrics. ``at``: monotonic seconds. None: the engine does not report it."""

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
    """One reading of the engine's GPUs. ``at``: monotonic seconds. Shares are 0 to 1."""

    at: float
    utilisation: float | None = None
    """Share of time with any kernel running, mean over the devices; 1 says nothing about saturation."""
    sm_utilisation: float | None = None
    """Share of the streaming multiprocessors at work, mean over the devices, if the GPUs report it (GPM)."""
    memory_used_share: float | None = None
    """Of the fullest device."""
