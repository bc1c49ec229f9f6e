"""Every setting of the worker. Reads the environment and the config file, through `load_settings`."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr

from forebay_schemas.errors import UsageError
from forebay_schemas.settings import CommonSettings, load_settings

DEFAULT_BIZ_PATHS = {
    "chat_completion": "/v1/chat/completions",
    "completion": "/v1/completions",
    "embedding": "/v1/embeddings",
}


def default_worker_id() -> str:
    """Unique among running workers: in Kubernetes the host name is the pod's."""
    return f"{socket.gethostname()}-{os.getpid()}"


class WorkerSettings(CommonSettings):
    """What `forebay-worker run` can be told."""

    backend_url: str | None = Field(
        default=None,
        description="The OpenAI-compatible backend, without /v1, http://127.0.0.1:8000 say; may have a path",
    )
    backend_api_key: SecretStr | None = Field(default=None, description="Sent to the backend as a bearer token")
    backend_connect_seconds: float = Field(default=5.0, gt=0, description="Time limit for connecting to the backend")
    backend_timeout_seconds: float = Field(default=600.0, gt=0, description="Time limit for one call of the backend")
    biz_paths: dict[str, str] = Field(
        default_factory=dict, description='More biz_types and their backend paths, as JSON: {"rerank": "/v1/rerank"}'
    )
    handler: str | None = Field(
        default=None, description="module:function, an async function that takes the request and returns its body"
    )
    pacing_policy: Literal["fixed"] = Field(default="fixed", description="How the limit is found: fixed")
    limit_max: int = Field(
        default=32, ge=1, le=100_000, description="Requests in flight at most; with fixed: the limit"
    )
    buffer_bytes_max: int = Field(
        default=64 * 1024 * 1024, ge=1024 * 1024, description="Bytes of requests taken from Kafka but not yet started"
    )
    max_retries: int = Field(default=3, ge=0, le=99, description="Retries after a first failure, then dead letter")
    retry_statuses: list[Annotated[int, Field(ge=400, le=599)]] = Field(
        default=[408, 425, 429, 500, 502, 503, 504, 529],
        description="HTTP statuses after which the same request may succeed later, as JSON: [500, 502]",
    )
    drain_seconds: float = Field(
        default=30.0, ge=0, description="How long running requests may finish after SIGTERM; then they are given back"
    )
    worker_id: str = Field(
        default_factory=default_worker_id, pattern=r"^[A-Za-z0-9._-]{1,200}$", description="Letters, digits and . _ -"
    )
    ops_host: str = Field(
        default="0.0.0.0",  # noqa: S104 - probes and Prometheus come from outside the pod
        description="The address that /livez, /readyz, /metrics and /status listen on",
    )
    ops_port: int = Field(default=8081, ge=0, le=65535, description="Their port; 0 = pick one")


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
        _check_url(settings.backend_url)
    for biz_type, path in settings.biz_paths.items():
        if not path.startswith("/"):
            raise UsageError("FOREBAY_BIZ_PATHS", f"{biz_type}: {path!r} is no path", fix="start it with /")
    return settings


def _check_url(url: str) -> None:
    fix = "give scheme and host, http://127.0.0.1:8000 say"
    try:
        parts = urlsplit(url)
        port_ok = parts.port is None or parts.port > 0
    except ValueError:
        raise UsageError("FOREBAY_BACKEND_URL", f"{url!r} is no URL", fix=fix) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_ok or re.search(r"[\s\\]", url):
        raise UsageError("FOREBAY_BACKEND_URL", f"{url!r} is no http URL", fix=fix)
    if "?" in url or "#" in url:
        raise UsageError("FOREBAY_BACKEND_URL", f"{url!r} has a query or fragment", fix="leave that out")
    if parts.path.rstrip("/").endswith("/v1"):
        raise UsageError("FOREBAY_BACKEND_URL", f"{url!r} ends in /v1", fix="leave /v1 out, the worker adds it")
