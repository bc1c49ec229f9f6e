"""How long brokers keep the commits of a group without members, compared with how long requests may wait. Asks brokers;
the comparison is pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # not in its stubs
    AdminClient,
    ConfigResource,
    ResourceType,
)

from forebay_schemas.contract.tiers import TTL_MS_MAX

SETTING: Final = "offsets.retention.minutes"
MINUTES_MIN: Final = TTL_MS_MAX // 60_000
"""The longest wait of a request, which is also the brokers' default."""

FIX: Final = (
    f"set {SETTING} of the brokers to {MINUTES_MIN} or more, or leave no pool without a worker for as long as it is now"
)


def retention_minutes(settings: Mapping[str, Any]) -> int | None:
    """The value in a broker's settings, as the client returns them; None if missing."""
    entry = settings.get(SETTING)
    value = str(entry.value) if entry is not None else ""
    return int(value) if value.isdecimal() else None


def shortfall(minutes: int) -> str | None:
    """The problem with this many minutes; None if there is none."""
    if minutes >= MINUTES_MIN:
        return None
    return (
        f"{SETTING} is {minutes}: the commits of a pool that had no worker for so long are deleted, and all that is "
        f"left of its requests is read again; they may wait for {MINUTES_MIN} minutes"
    )


def ask_retention_minutes(admin: AdminClient, *, timeout_seconds: float) -> int | None:
    """The same, asked of one of the brokers; None also if its answer names none, as just after its start.

    Raises ``KafkaException`` if this principal is denied, and for brokers that do not answer in that time.
    """
    brokers = admin.list_topics(timeout=timeout_seconds).brokers
    if not brokers:
        return None
    resource = ConfigResource(ResourceType.BROKER, str(min(brokers)))
    answer = admin.describe_configs([resource], request_timeout=timeout_seconds)[resource]
    return retention_minutes(answer.result())
