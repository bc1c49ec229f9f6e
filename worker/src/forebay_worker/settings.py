"""Every setting of the worker. Reads the environment and the config file, through `load_settings`."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import SplitResult, urlsplit

from pydantic import Field, SecretStr, field_validator

from forebay_schemas.contract.biz_types import DEFAULT_PATHS
from forebay_schemas.contract.coordination import BACKEND_CHARS_MAX
from forebay_schemas.errors import UsageError
from forebay_schemas.properties import from_file
from forebay_schemas.runtime.settings import CommonSettings, load_settings
from forebay_worker.execution.engine_priority import EnginePriority
from forebay_worker.lanes.order import LaneOrder
from forebay_worker.signals.gpu_check import device_names

PacingPolicyName = Literal["slo_aimd", "latency_ratio", "gpu_target", "gradient2", "fixed"]


def default_worker_id() -> str:
    """Unique among running workers: in Kubernetes the host name is the pod's."""
    return f"{socket.gethostname()}-{os.getpid()}"


class WorkerSettings(CommonSettings):
    """The settings of `forebay-worker run`."""

    backend_url: str | None = Field(
        default=None,
        description="The OpenAI-compatible backend, such as http://127.0.0.1:8000; may have a path, and /v1 at its end",
    )
    backend_api_key: SecretStr | None = Field(
        default=None,
        description="Sent to the backend as a bearer token; ${directory:/a/folder:file} reads it from a file",
    )
    backend_connect_seconds: float = Field(default=5.0, gt=0, description="Time limit for connecting to the backend")
    backend_timeout_seconds: float = Field(default=600.0, gt=0, description="Time limit for one call of the backend")
    biz_paths: dict[str, str] = Field(
        default_factory=dict, description='More biz_types and their backend paths, as JSON: {"rerank": "/v1/rerank"}'
    )
    handler: str | None = Field(
        default=None, description="module:function, an async function that takes the request and returns its body"
    )
    pacing_policy: PacingPolicyName = Field(
        default="slo_aimd",
        description="How the limit is found: slo_aimd, latency_ratio, gpu_target, gradient2 or fixed",
    )
    limit_min: int = Field(
        default=4, ge=1, le=100_000, description="Smallest limit of the policy, for all workers on the backend together"
    )
    limit_start: int = Field(
        default=32,
        ge=1,
        le=100_000,
        description="Limit at the start, for all workers on the backend together",
    )
    limit_max: int = Field(
        default=256,
        ge=1,
        le=100_000,
        description="Largest number in flight, for all workers on the backend together; with fixed: the limit",
    )
    tpot_target_seconds: float = Field(
        default=0.05, gt=0, description="slo_aimd: target time of an output token, as a client sees it"
    )
    prefill_seconds_max: float = Field(
        default=0.05, gt=0, description="Prompts that may wait for prefill in the backend, in seconds of its work"
    )
    gpu_utilisation_target: float = Field(
        default=0.9, gt=0, le=1, description="gpu_target: target share of time in which the GPU is busy"
    )
    lane_order: LaneOrder = Field(
        default=LaneOrder.SJF_AGED, description="Order within a tier and priority: fifo, edf or sjf_aged"
    )
    engine_priority: EnginePriority = Field(
        default=EnginePriority.NONE,
        description="Passes the tier on as the payload's priority: none, lower_first (vLLM) or higher_first (SGLang)",
    )
    stream_usage: bool = Field(
        default=True,
        description="Asks the backend for the usage of streamed chats and completions whose payload does not",
    )
    tenant_weights: dict[str, Annotated[float, Field(gt=0, le=1000)]] = Field(
        default_factory=dict, description='Shares of tenants within a tier, 1 each unless given, as JSON: {"search": 3}'
    )
    mid_share: float = Field(
        default=0.05, ge=0, le=1, description="Share of the limit that mid gets at least, while it waits"
    )
    low_share: float = Field(
        default=0.01, ge=0, le=1, description="Share of the limit that low gets at least, while it waits"
    )
    high_reserve_share: float = Field(
        default=0.17,
        ge=0,
        lt=1,
        description="Share of the limit for high alone, if a high request came in the last minute",
    )
    metrics_url: str | None = Field(
        default=None, description="URL of the engine's metrics; the backend's /metrics unless given"
    )
    metrics_prefix: str = Field(
        default="",
        pattern=r"^[a-zA-Z_:]?[a-zA-Z0-9_:]{0,63}$",
        description="Prefix of the engine's metric names, such as ray_ behind Ray Serve",
    )
    gpu: Literal["auto", "nvml", "prometheus", "none"] = Field(
        default="auto", description="Source of GPU utilisation; auto: NVML if there is a driver"
    )
    gpu_devices: str | None = Field(default=None, description="GPU indexes or UUIDs, comma-separated; all unless given")
    gpu_prometheus_url: str | None = Field(default=None, description="With gpu=prometheus: the Prometheus server")
    gpu_prometheus_query: str = Field(
        default="avg(DCGM_FI_DEV_GPU_UTIL)", description="With gpu=prometheus: PromQL that gives percent"
    )
    buffer_bytes_max: int = Field(
        default=64 * 1024 * 1024, ge=1024 * 1024, description="Bytes of requests taken from Kafka but not yet started"
    )
    in_flight_bytes_max: int = Field(
        default=256 * 1024 * 1024,
        ge=1024 * 1024,
        description="Memory that requests in flight may take, each at 2.2 times its size; then no more start",
    )
    max_retries: int = Field(default=3, ge=0, le=99, description="Retries after a first failure, then dead letter")
    retry_statuses: list[Annotated[int, Field(ge=400, le=599)] | Literal["4xx", "5xx"]] = Field(
        default=[408, 425, 429, 500, 502, 503, 504, 529],
        description='HTTP statuses and classes after which the same request may succeed later, as JSON: [429, "5xx"]',
    )
    answer_rejected: bool = Field(
        default=False,
        description="Whether 400, 413, 415, 422 and a 404 that names a model are an answer, and no dead letter, even "
        "if nobody waits for the outcome in a partition of its own",
    )
    drain_seconds: float = Field(
        default=30.0, ge=0, description="How long running requests may finish after SIGTERM; then they are given back"
    )
    kafka_wait_seconds: float | None = Field(
        default=None,
        ge=0,
        description="How long a start waits for unreachable brokers, then exit code 3; for ever unless given",
    )
    worker_id: str = Field(
        default_factory=default_worker_id, pattern=r"^[A-Za-z0-9._-]{1,200}$", description="Letters, digits and . _ -"
    )
    ops_host: str = Field(
        default="0.0.0.0",  # noqa: S104 - probes and Prometheus come from outside the pod
        description="The address that /livez, /readyz, /metrics and /status listen on",
    )
    ops_port: int = Field(default=8081, ge=0, le=65535, description="Port of these pages; 0 = pick one")

    @field_validator("backend_url")
    @classmethod
    def _without_version(cls, url: str | None) -> str | None:
        """Users often give the URL with the /v1 with which all paths begin. Workers compare the rest to detect a shared
        backend."""
        return None if url is None else re.sub(r"(?<![:/])/v1/*$", "", url)

    @field_validator("backend_api_key", mode="before")
    @classmethod
    def _file_can_be_read(cls, value: object) -> object:
        try:
            if isinstance(value, str):
                from_file(value)
        except OSError as error:
            raise ValueError(f"the file cannot be read: {error.strerror}") from None
        return value

    @property
    def all_biz_paths(self) -> dict[str, str]:
        """The path of each biz_type that this worker accepts."""
        return {**DEFAULT_PATHS, **self.biz_paths}

    def read_backend_key(self) -> str | None:
        """The key of ``backend_api_key``, read anew if it is in a file. Raises ``OSError`` and ``ValueError``."""
        return None if self.backend_api_key is None else from_file(self.backend_api_key.get_secret_value())

    @property
    def backend_name(self) -> str:
        """The backend's name in metrics and for other workers: host:port of its URL, or ``handler``."""
        if self.backend_url is None:
            return "handler"
        parts = urlsplit(self.backend_url)
        host = parts.hostname or ""
        return f"{f'[{host}]' if ':' in host else host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"

    @property
    def shared_backend(self) -> str:
        """The key by which workers detect a shared backend: its name and path. A handler belongs to one worker."""
        return f"{self.backend_name}{urlsplit(self.backend_url or f'/{self.worker_id}').path.rstrip('/')}"

    @property
    def asks_for_tokens(self) -> bool:
        """Whether order or limit depend on how many tokens a request takes."""
        return self.pacing_policy != "fixed" or self.lane_order is LaneOrder.SJF_AGED


def load_worker_settings(*, flags: dict[str, Any], config: Path | None) -> WorkerSettings:
    """The settings, checked against each other. Raises ``UsageError``."""
    settings = load_settings(WorkerSettings, flags=flags, config=config)
    if (settings.backend_url is None) == (settings.handler is None):
        raise UsageError(
            "FOREBAY_BACKEND_URL",
            "and FOREBAY_HANDLER are " + ("both missing" if settings.handler is None else "both set"),
            fix="give one: the URL of an OpenAI-compatible backend, or module:function",
        )
    if settings.backend_url is not None:
        parts = _check_backend_url(settings.backend_url)
        if settings.backend_api_key is not None and (parts.username is not None or parts.password is not None):
            raise UsageError(
                "FOREBAY_BACKEND_API_KEY",
                "is given, and credentials in FOREBAY_BACKEND_URL too",
                fix="give one of them: a request has one Authorization header",
            )
    if settings.metrics_url is not None:
        _check_url("FOREBAY_METRICS_URL", settings.metrics_url)
    _check_limits(settings)
    device_names(settings.gpu_devices or "")
    if settings.gpu_prometheus_url is not None:
        _check_url("FOREBAY_GPU_PROMETHEUS_URL", settings.gpu_prometheus_url)
    elif settings.gpu == "prometheus":
        raise UsageError(
            "FOREBAY_GPU_PROMETHEUS_URL",
            "is missing, and FOREBAY_GPU is prometheus",
            fix="give the Prometheus server, http://prometheus:9090 say",
        )
    for biz_type, path in settings.biz_paths.items():
        if not path.startswith("/"):
            raise UsageError("FOREBAY_BIZ_PATHS", f"{biz_type}: {path!r} is no path", fix="start it with /")
    return settings


def _check_limits(settings: WorkerSettings) -> None:
    """Checks that the given limits fit together; a default adapts to the given ones."""
    given, limit_max = settings.model_fields_set, settings.limit_max
    for name, value in (("limit_min", settings.limit_min), ("limit_start", settings.limit_start)):
        if name in given and value > limit_max:
            variable = f"FOREBAY_{name.upper()}"
            raise UsageError(
                variable, f"is {value}, above FOREBAY_LIMIT_MAX, {limit_max}", fix="lower it, or raise that"
            )
    if {"limit_min", "limit_start"} <= given and settings.limit_start < settings.limit_min:
        raise UsageError(
            "FOREBAY_LIMIT_START",
            f"is {settings.limit_start}, below FOREBAY_LIMIT_MIN, {settings.limit_min}",
            fix="raise it, or lower that",
        )
    shares = settings.mid_share + settings.low_share + settings.high_reserve_share
    if shares > 1:
        raise UsageError(
            "FOREBAY_MID_SHARE",
            f"and FOREBAY_LOW_SHARE and FOREBAY_HIGH_RESERVE_SHARE are {shares:g} together",
            fix="give shares that sum to 1 at most",
        )


def _check_url(variable: str, url: str) -> SplitResult:
    fix = "give scheme and host, http://127.0.0.1:8000 say"
    try:
        parts = urlsplit(url)
        port_ok = parts.port is None or parts.port > 0
    except ValueError:
        raise UsageError(variable, f"{url!r} is no URL", fix=fix) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_ok or re.search(r"[\s\\]", url):
        raise UsageError(variable, f"{url!r} is no http URL", fix=fix)
    return parts


def _check_backend_url(url: str) -> SplitResult:
    if len(url) > BACKEND_CHARS_MAX:
        raise UsageError(
            "FOREBAY_BACKEND_URL", f"is {len(url)} characters long", fix=f"give {BACKEND_CHARS_MAX} at most"
        )
    parts = _check_url("FOREBAY_BACKEND_URL", url)
    if "?" in url or "#" in url:
        raise UsageError("FOREBAY_BACKEND_URL", f"{url!r} has a query or fragment", fix="leave that out")
    return parts
