"""The settings of the client library and of the command `forebay`. `load_settings` reads them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from forebay_schemas.contract.envelope_problems import shown
from forebay_schemas.contract.fronts import Front
from forebay_schemas.contract.tiers import Tier, TierTimes
from forebay_schemas.errors import UsageError
from forebay_schemas.runtime.settings import ENV_PREFIX, CommonSettings, TierMilliseconds, checked_times


class PoolTimes(BaseModel):
    """A pool's ``tier_ttl_ms`` and ``tier_wait_ms``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ttl_ms: dict[Tier, TierMilliseconds] = Field(default_factory=dict)
    wait_ms: dict[Tier, TierMilliseconds] = Field(default_factory=dict)


class ProducerSettings(CommonSettings):
    """The settings of a producer."""

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="warning", description="Least level logged: debug, info, warning or error"
    )
    codec: Literal["json", "avro"] = Field(
        default="json", description="What requests are written in: json, or avro; workers read both"
    )
    delivery_timeout_seconds: float = Field(
        default=30.0, gt=0, le=3600, description="Seconds a request may wait for a broker's acknowledgement, 30 say"
    )
    front: str | None = Field(
        default=None,
        description="Name of the front that this process is a replica of: replicas share the partitions of results, "
        "and each reads its own; by default it reads all. Needs: forebay topics create --front NAME",
    )
    exporter_host: str = Field(
        default="0.0.0.0",  # noqa: S104 - probes and Prometheus come from outside the pod
        description="forebay exporter: the address that /livez, /readyz and /metrics listen on",
    )
    exporter_port: int = Field(default=8082, ge=0, le=65535, description="forebay exporter: their port; 0 = pick one")
    exporter_tier_times: dict[str, PoolTimes] = Field(
        default_factory=dict,
        description="forebay exporter: deadlines and waits by pool until a worker says its own, where they are not the "
        'common ones, as JSON: {"chat": {"ttl_ms": {"high": 60000}}}',
    )

    admission_without_workers: Literal["accept", "refuse"] = Field(
        default="accept",
        description="Admission: accept or refuse requests while no worker is known to serve the pool",
    )
    admission_deadline_share: float = Field(
        default=0.6, gt=0, le=1, description="Admission: the part of what the deadline leaves that a wait may take"
    )
    admission_service_seconds_max: float = Field(
        default=10.0,
        gt=0,
        description="Admission: mean seconds of a high request above which high requests are refused instead of queued",
    )
    admission_tenant_per_second: float = Field(
        default=0.0, ge=0, description="Admission: requests a second of each tenant in a process; 0 = no bound"
    )
    admission_tenant_burst: int = Field(
        default=10, ge=1, description="Admission: requests that a tenant may send at once before its rate counts"
    )
    admission_tenant_concurrency: int = Field(
        default=0, ge=0, description="Admission: open requests of each tenant in a process; 0 = no bound"
    )

    def front_topics(self) -> Front | None:
        """The front that this process is a replica of, if any. Raises ``UsageError`` for an invalid name."""
        if self.front is None:
            return None
        try:
            return Front(self.front)
        except UsageError as error:
            problem = f"{shown(self.front)} is no name of a front"
            raise UsageError(f"{ENV_PREFIX}FRONT", problem, fix=error.fix) from None

    def pool_times(self, pool: str) -> TierTimes:
        """The exporter's deadlines and waits for a pool until one of the pool's workers announces its own.

        Raises ``UsageError`` when a wait is not shorter than its deadline.
        """
        given = self.exporter_tier_times.get(pool)
        if given is None:
            return self.tier_times()
        return checked_times(f"{ENV_PREFIX}EXPORTER_TIER_TIMES", given.ttl_ms, given.wait_ms)
