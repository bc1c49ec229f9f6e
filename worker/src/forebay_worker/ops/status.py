"""/status of dispatch and pacing: what limits each tier now, why the limit is what it is, and the accuracy of
predictions. Pure: it reads and changes nothing."""

from __future__ import annotations

from typing import Any

import msgspec

from forebay_schemas.contract.reasons import Reason
from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_worker.dispatch.blame import Cause
from forebay_worker.dispatch.dispatcher import Dispatcher
from forebay_worker.dispatch.limitations import limitation_of, waiting_requests
from forebay_worker.pacing.estimates import Accuracy
from forebay_worker.pacing.gate import Gate
from forebay_worker.pacing.limitation import Limitation
from forebay_worker.pacing.policies.gpu_target import GpuTarget
from forebay_worker.pacing.policies.slo_aimd import SloAimd
from forebay_worker.telemetry.stats import Stats

RUNNING_SHOWN = 100

_MISSED = (Reason.DEADLINE_PASSED_WAITING, Reason.DEADLINE_PASSED_RUNNING, Reason.RETRY_TOO_LATE)


def shown(found: Limitation | None) -> dict[str, Any] | None:
    """A value for the document."""
    return None if found is None else msgspec.structs.asdict(found)


def breaker_status(dispatcher: Dispatcher) -> dict[str, Any]:
    """The breaker's state and, while the backend serves nobody, its errors, their cause and the remedy."""
    breaker, trouble = dispatcher.breaker, dispatcher.failures.trouble
    return {
        "state": breaker.state,
        "opened": breaker.opened_count,
        "error": None if trouble is None else trouble.words,
        "cause": None if trouble is None else trouble.cause,
        "fix": None if trouble is None else trouble.advice,
    }


def credentials_refused(dispatcher: Dispatcher) -> list[str]:
    """For /readyz: a backend that refuses the credentials; [] for any other error, since only this one waits for a
    person."""
    trouble = dispatcher.failures.trouble
    if trouble is None or trouble.cause is not Cause.CREDENTIALS:
        return []
    return [f"the backend answers every request with {trouble.words}: {trouble.advice}"]


def pacing_status(gate: Gate, *, policy: str, now: float) -> dict[str, Any]:
    """The limit, its last changes with their causes (latest last), and the model of the backend."""
    model = gate.model
    return {
        "policy": policy,
        "limit_requests": gate.limit_requests,
        "target": _target(gate),
        "changes_total": gate.changes_total,
        "changes": [
            {"at_ms": change.at_ms, "before": change.before, "after": change.after, "cause": change.cause}
            for change in gate.changes
        ],
        "model": {
            "learns_from": "engine_counters" if model.is_metered else "answers",
            "step_seconds": round(model.step_seconds, 6),
            "sequence_seconds": round(model.sequence_seconds, 7),
            "prompt_token_seconds": round(model.prompt_token_seconds, 8),
            "token_seconds": None if model.token_seconds is None else round(model.token_seconds, 6),
            "knee_requests": round(gate.knee_requests, 1),
            "prefill_backlog_seconds": round(gate.prefill_seconds(now), 3),
            "kv_tokens": None if gate.kv_tokens is None else round(gate.kv_tokens),
        },
    }


def _target(gate: Gate) -> dict[str, Any] | None:
    policy = gate.policy
    if isinstance(policy, SloAimd):
        seconds = round(policy.token_seconds_target, 6)
        return {"signal": "token_seconds", "value": seconds, "stretch": round(policy.stretch, 2)}
    if isinstance(policy, GpuTarget):
        return {"signal": "gpu_utilisation", "value": policy.target_share}
    return None


def tiers_status(dispatcher: Dispatcher, *, stats: Stats, now: float, now_ms: int) -> dict[Tier, dict[str, Any]]:
    """Each tier: waiting and running requests, the wait of a new request, and the outcomes of the others.

    ``now``: monotonic seconds; ``now_ms``: epoch milliseconds.
    """
    work_seconds, waits = dispatcher.shedder.work_seconds(), dispatcher.shedder.waits(now)
    return {
        tier: {
            "waiting": waiting_requests(dispatcher, tier),
            "waiting_bytes": dispatcher.lanes[tier].size_bytes,
            "oldest_seconds": _age_seconds(dispatcher.lanes[tier].oldest_enqueued_at, now_ms),
            "work_seconds": _rounded(work_seconds.get(tier)),
            "estimated_wait_seconds": _rounded(waits.get(tier)),
            "lookahead_records": dispatcher.lookahead.credits[tier].capacity_records,
            "running": dispatcher.slots.by_tier[tier] - dispatcher.named_starts.of_tier(tier),
            "limited_by": shown(limitation_of(dispatcher, tier, now)),
            "deadline_missed": sum(stats.outcomes.get((tier, reason), 0) for reason in _MISSED),
            "doomed": stats.outcomes.get((tier, Reason.DEADLINE_UNREACHABLE), 0),
            "shed": stats.outcomes.get((tier, Reason.SHED_OVERLOAD), 0),
            "estimates": {
                "service_seconds": _accuracy(dispatcher.estimates.service_seconds(tier)),
                "output_tokens": _accuracy(dispatcher.estimates.output_tokens(tier)),
            },
        }
        for tier in TIERS
    }


def running_status(dispatcher: Dispatcher, *, now: float, now_ms: int) -> list[dict[str, Any]]:
    """The running requests, longest first; at most a hundred."""
    return [
        {
            "request_id": work.request_id,
            "tier": work.tier,
            "running_seconds": round(now - work.started, 3),
            "deadline_in_seconds": (work.deadline_ms - now_ms) / 1000,
        }
        for work in sorted(dispatcher.running.values(), key=lambda work: work.started)[:RUNNING_SHOWN]
    ]


def _accuracy(of_tier: Accuracy | None) -> dict[str, Any] | None:
    if of_tier is None:
        return None
    return {
        "answers": of_tier.answers,
        "actual_over_predicted": of_tier.actual_over_predicted,
        "error_p90": of_tier.error_p90,
    }


def _age_seconds(enqueued_at: int | None, now_ms: int) -> float | None:
    return None if enqueued_at is None else max(0, now_ms - enqueued_at) / 1000


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
