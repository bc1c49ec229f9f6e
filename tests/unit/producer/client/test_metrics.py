"""Metrics of the client library: bounded, and shown only to the registry that it is given."""

from __future__ import annotations

import pytest
from prometheus_client import REGISTRY, CollectorRegistry

from forebay_producer import ProducerMetrics
from forebay_producer.metrics import SUBMIT_FAILURE_REASONS
from forebay_schemas.contract.reasons import Status
from forebay_schemas.contract.tiers import Tier


def test_each_pool_has_its_own_counts_in_the_registry_of_ones_choice() -> None:
    metrics, registry = ProducerMetrics(), CollectorRegistry()
    registry.register(metrics)
    for pool in ("a", "b", "a"):
        metrics.add_pool(pool)
    metrics.acknowledged("a", Tier.MID, 0.004)
    metrics.failed("a", "queue_full")
    metrics.outcome("b", Status.EXPIRED)
    metrics.timed_out("b")

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    assert value("forebay_submitted_total", pool="a", tier="mid") == 1
    assert value("forebay_submitted_total", pool="b", tier="mid") == 0
    assert value("forebay_submit_seconds_bucket", pool="a", tier="mid", le="0.005") == 1
    assert value("forebay_submit_failures_total", pool="a", reason="queue_full") == 1
    assert value("forebay_outcomes_received_total", pool="b", status="expired") == 1
    assert value("forebay_outcome_timeouts_total", pool="b") == 1
    with metrics.awaiting("a"):
        assert value("forebay_outcome_waits", pool="a") == 1
    assert value("forebay_outcome_waits", pool="a") == 0
    assert REGISTRY.get_sample_value("forebay_submitted_total", {"pool": "a", "tier": "mid"}) is None


def test_a_reason_that_is_not_known_is_another_one() -> None:
    metrics, registry = ProducerMetrics(), CollectorRegistry()
    registry.register(metrics)
    metrics.add_pool("a")
    for number in range(1000):
        metrics.failed("a", f"made up {number}")
    [family] = [each for each in registry.collect() if each.name == "forebay_submit_failures"]
    shown = {sample.labels["reason"]: sample.value for sample in family.samples}
    assert shown.keys() == {*SUBMIT_FAILURE_REASONS, "other"}
    assert shown["other"] == 1000


def test_two_in_one_registry_are_refused_by_it() -> None:
    registry = CollectorRegistry()
    registry.register(ProducerMetrics())
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(ProducerMetrics())
