"""Metrics of a client on a real broker."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry

from forebay_producer import EnvelopeError, OutcomeTimeoutError, Producer, ProducerMetrics
from harness.live_pool import envelope

if TYPE_CHECKING:
    from harness.served import Served


def test_a_client_counts_submits_refusals_and_outcomes(served: Served) -> None:
    metrics, registry = ProducerMetrics(), CollectorRegistry()
    registry.register(metrics)
    servers, pool = served.pool.kafka.bootstrap_servers, served.pool.name

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"pool": pool, **labels})

    run = secrets.token_hex(4)
    many = [f"{run}-{number}" for number in range(5)]
    with Producer(bootstrap_servers=servers, pool=pool, metrics=metrics) as producer:
        accepted = producer.submit(envelope(f"{run}-one"), tier="high")
        producer.submit_batch([*map(envelope, many), {"payload": 1}], tier="mid")
        with pytest.raises(EnvelopeError):
            producer.submit({"biz_type": "x"})
        assert producer.outcome(accepted.request_id, timeout_seconds=30).status == "completed"
        assert len(list(producer.outcomes(many, timeout_seconds=30))) == 5
        with pytest.raises(OutcomeTimeoutError):
            producer.outcome("nobody", timeout_seconds=0.1)
    assert value("forebay_submitted_total", tier="high") == 1
    assert value("forebay_submitted_total", tier="mid") == 5
    assert value("forebay_submit_seconds_count", tier="mid") == 5
    assert value("forebay_submit_failures_total", reason="undecodable") == 2
    assert value("forebay_outcomes_received_total", status="completed") == 6
    assert value("forebay_outcome_timeouts_total") == 1
    assert value("forebay_outcome_waits") == 0
