"""The metrics of a real worker are those of its list, and so of docs/metrics.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from forebay_schemas.contract.tiers import Tier
from forebay_worker.ops.metrics import METRICS
from harness.live_pool import envelope

if TYPE_CHECKING:
    from harness.served import Served

ABSENT_HERE = {
    "forebay_limit_min_requests",
    "forebay_token_seconds",
    "forebay_token_target_seconds",
    "forebay_engine_running_requests",
    "forebay_engine_waiting_requests",
    "forebay_engine_kv_used_ratio",
    "forebay_gpu_utilisation_ratio",
    "forebay_gpu_sm_utilisation_ratio",
    "forebay_gpu_memory_used_ratio",
    "forebay_kafka_certificate_expiry_timestamp_seconds",
}
"""What this worker need not know: its limit is fixed, it has no GPU, the engine may not have been asked yet.

And Kafka asks it for no certificate."""


def test_a_worker_shows_what_the_list_says(served: Served) -> None:
    served.pool.results(served.pool.submit(Tier.HIGH, envelope("documented")))
    families = [
        family
        for family in text_string_to_metric_families(served.worker.get("/metrics")[1])
        if family.name.startswith("forebay_")
    ]
    names = [f"{family.name}_total" if family.type == "counter" else family.name for family in families]
    assert names == [each.name for each in METRICS]
    for each, family in zip(METRICS, families, strict=True):
        assert family.type == each.kind.value
        assert family.samples or each.name in ABSENT_HERE, f"{each.name} has no sample"
        for sample in family.samples:
            assert sample.labels["pool"] == served.pool.name
            assert set(sample.labels) - {"le"} == {"pool", *each.labels}
