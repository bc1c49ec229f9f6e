"""Settings of the command `forebay`: the exporter's deadlines of a pool before it has read a worker's."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay_producer.settings import ProducerSettings
from forebay_schemas.contract.tiers import Tier, tier_times
from forebay_schemas.errors import UsageError
from forebay_schemas.runtime.settings import load_settings


def load(**environ: str) -> ProducerSettings:
    return load_settings(ProducerSettings, flags={}, config=None, environ=environ)


def test_a_pool_has_the_exporters_own_deadlines_unless_its_own_are_given() -> None:
    settings = load(
        FOREBAY_TIER_TTL_MS='{"mid": 9000}',
        FOREBAY_EXPORTER_TIER_TIMES='{"chat": {"ttl_ms": {"high": 60000}, "wait_ms": {"high": 10000}}}',
    )
    assert settings.pool_times("chat") == tier_times({Tier.HIGH: 60_000}, {Tier.HIGH: 10_000})
    assert settings.pool_times("embeddings") == tier_times({Tier.MID: 9_000}, {})


def test_the_same_comes_from_a_table(tmp_path: Path) -> None:
    file = tmp_path / "forebay.toml"
    file.write_text("[exporter_tier_times.chat.ttl_ms]\nhigh = 60000\n", encoding="utf-8")
    settings = load_settings(ProducerSettings, flags={}, config=file, environ={})
    assert settings.pool_times("chat") == tier_times({Tier.HIGH: 60_000}, {})


@pytest.mark.parametrize("given", ['{"chat": {"ttl": {}}}', '{"chat": {"ttl_ms": {"urgent": 1}}}', '{"chat": 5}'])
def test_what_cannot_be_is_refused_by_the_variables_name(given: str) -> None:
    with pytest.raises(UsageError) as raised:
        load(FOREBAY_EXPORTER_TIER_TIMES=given)
    assert raised.value.field == "FOREBAY_EXPORTER_TIER_TIMES"
    assert raised.value.fix.startswith("it takes: ")


def test_a_pools_wait_that_leaves_no_time_is_refused() -> None:
    settings = load(FOREBAY_EXPORTER_TIER_TIMES='{"chat": {"wait_ms": {"high": 5000}}}')
    with pytest.raises(UsageError, match="is 5000 for high, whose deadline is 5000") as raised:
        settings.pool_times("chat")
    assert raised.value.field == "FOREBAY_EXPORTER_TIER_TIMES"
