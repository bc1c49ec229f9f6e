"""Finds valid settings that have no effect or contradict each other. Pure."""

from __future__ import annotations

from forebay_schemas.doctor.findings import Finding, failed, ok, warning
from forebay_worker.settings import WorkerSettings

CHECK = "settings"

_OF_ONE_POLICY = {"tpot_target_seconds": "slo_aimd", "gpu_utilisation_target": "gpu_target"}
_OF_HTTP = (
    "backend_api_key",
    "backend_connect_seconds",
    "backend_timeout_seconds",
    "biz_paths",
    "engine_priority",
    "retry_statuses",
)


def settings_findings(settings: WorkerSettings) -> list[Finding]:
    """A finding for each contradiction, or one that there is none; `load_worker_settings` has refused invalid ones."""
    given = settings.model_fields_set
    findings = [
        _without_effect(name, f"FOREBAY_PACING_POLICY is {settings.pacing_policy}, and only {policy} reads it")
        for name, policy in _OF_ONE_POLICY.items()
        if name in given and settings.pacing_policy != policy
    ]
    if settings.pacing_policy == "fixed":
        findings += [
            _without_effect(name, "FOREBAY_PACING_POLICY is fixed, which only reads FOREBAY_LIMIT_MAX")
            for name in ("limit_min", "limit_start", "prefill_seconds_max")
            if name in given
        ]
    if settings.handler is not None:
        findings += [
            _without_effect(name, "FOREBAY_HANDLER takes the place of a backend over HTTP")
            for name in _OF_HTTP
            if name in given
        ]
    if "gpu_devices" in given and settings.gpu not in ("auto", "nvml"):
        findings.append(_without_effect("gpu_devices", f"FOREBAY_GPU is {settings.gpu}"))
    findings += [
        _without_effect(name, f"FOREBAY_GPU is {settings.gpu}, not prometheus")
        for name in ("gpu_prometheus_url", "gpu_prometheus_query")
        if name in given and settings.gpu != "prometheus"
    ]
    if settings.pacing_policy == "gpu_target" and settings.gpu == "none":
        findings.append(
            failed(
                CHECK,
                "FOREBAY_PACING_POLICY=gpu_target follows the GPU's utilisation, and FOREBAY_GPU=none never tells it",
                fix="set FOREBAY_GPU to nvml or prometheus, or choose slo_aimd",
            )
        )
    if settings.backend_url is not None and settings.backend_connect_seconds > settings.backend_timeout_seconds:
        findings.append(
            warning(
                CHECK,
                f"FOREBAY_BACKEND_CONNECT_SECONDS ({settings.backend_connect_seconds:g}) is longer than "
                f"FOREBAY_BACKEND_TIMEOUT_SECONDS ({settings.backend_timeout_seconds:g}), which covers it",
                fix="raise the second to what the longest answer takes",
            )
        )
    return findings or [ok(CHECK, "no setting contradicts another")]


def _without_effect(name: str, why: str) -> Finding:
    return warning(CHECK, f"FOREBAY_{name.upper()} has no effect: {why}", fix="leave it out, or change the other one")
