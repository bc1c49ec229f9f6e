"""The brokers' retention of commits against the waits of requests."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from forebay_schemas.contract.tiers import TTL_MS_MAX
from forebay_schemas.kafka.offsets_retention import FIX, SETTING, retention_minutes, shortfall


@pytest.mark.parametrize(("value", "minutes"), [("10080", 10_080), ("1", 1), ("", None), (None, None), ("-1", None)])
def test_it_is_read_from_a_brokers_settings(value: str | None, minutes: int | None) -> None:
    assert retention_minutes({SETTING: SimpleNamespace(value=value)}) == minutes
    assert retention_minutes({}) is None


def test_commits_must_last_as_long_as_a_request_may_wait() -> None:
    assert shortfall(TTL_MS_MAX // 60_000) is None
    said = shortfall(TTL_MS_MAX // 60_000 - 1)
    assert said is not None
    assert said.startswith("offsets.retention.minutes is 10079:")
    assert "10080" in FIX
