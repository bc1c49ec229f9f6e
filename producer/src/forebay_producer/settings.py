"""Every setting of the client library and of the command `forebay`. Reads nothing by itself: see `load_settings`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from forebay_schemas.runtime.settings import CommonSettings


class ProducerSettings(CommonSettings):
    """What a producer can be told."""

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="warning", description="Least level logged: debug, info, warning or error"
    )
    codec: Literal["json", "avro"] = Field(
        default="json", description="What requests are written in: json, or avro; workers read both"
    )
    delivery_timeout_seconds: float = Field(
        default=30.0, gt=0, le=3600, description="Seconds a request may wait for a broker's acknowledgement, 30 say"
    )
    exporter_host: str = Field(
        default="0.0.0.0",  # noqa: S104 - probes and Prometheus come from outside the pod
        description="forebay exporter: the address that /livez, /readyz and /metrics listen on",
    )
    exporter_port: int = Field(default=8082, ge=0, le=65535, description="forebay exporter: their port; 0 = pick one")
