"""A worker's metrics: what callers may choose makes no label, and every request is in the end-to-end time once."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from forebay_schemas.contract.tiers import Tier
from harness.live_pool import chat, envelope
from harness.signals import frozen
from harness.waiting import wait_until

if TYPE_CHECKING:
    from harness.served import Served

NUMBERS = count()

HOSTILE = (
    'a"} 1\nforebay_limit_requests{pool="x',
    "\\\n# TYPE forebay_received_total gauge",
    "\u202e\u0000\ud7ff",
    "x" * 10_000,
    "{{}}\r\n\r\nHTTP/1.1 200 OK",
)

names = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=200))


def labels_of(page: str) -> set[tuple[str, frozenset[tuple[str, str]]]]:
    """Every series of the page."""
    return {
        (sample.name, frozenset(sample.labels.items()))
        for family in text_string_to_metric_families(page)
        if family.name.startswith("forebay_")
        for sample in family.samples
    }


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(callers=st.lists(st.tuples(names, names), min_size=1, max_size=20))
def test_hostile_tenants_and_models_make_no_series(served: Served, callers: list[tuple[str, str]]) -> None:
    before = labels_of(served.worker.get("/metrics")[1])
    ids = [f"hostile-{next(NUMBERS)}" for _ in callers]
    served.pool.submit(
        Tier.MID,
        *(
            envelope(request_id, tenant=tenant, biz_type="chat_completion", payload=chat(model=model))
            for request_id, (tenant, model) in zip(ids, callers, strict=True)
        ),
    )
    served.pool.results(ids)
    assert labels_of(served.worker.get("/metrics")[1]) == before


def test_tenants_that_wait_are_counted_and_not_named(served: Served) -> None:
    ids = [f"tenants-{next(NUMBERS)}" for _ in range(44)]
    with frozen(served.engine.process):
        # Four run; of the others a quarter is of one tenant.
        served.pool.submit(Tier.MID, *(envelope(request_id, tenant="first") for request_id in ids[:4]))
        wait_until("a full worker", lambda: served.worker.status()["in_flight_requests"] == 4)
        tenants = ["loud"] * 10 + [f"quiet-{number}" for number in range(30)]
        served.pool.submit(
            Tier.MID,
            *(envelope(request_id, tenant=tenant) for request_id, tenant in zip(ids[4:], tenants, strict=True)),
        )
        wait_until("all of them", lambda: served.worker.waiting()[Tier.MID] == 40)
        assert served.worker.metric("forebay_lane_tenants", tier="mid") == 31
        assert served.worker.metric("forebay_lane_top_tenant_ratio", tier="mid") == 0.25
        page = served.worker.get("/metrics")[1]
        assert "loud" not in page
        assert "quiet" not in page
        wait_until("a partition that stands still", lambda: served.worker.metric("forebay_watermark_age_seconds") > 0)
    served.pool.results(ids)
    wait_until("none that does", lambda: served.worker.metric("forebay_watermark_age_seconds") == 0)
    wait_until("all committed", lambda: served.worker.metric("forebay_commit_lag_seconds") == 0)


def test_every_request_is_in_the_end_to_end_time_once_its_outcome_is_durable(served: Served) -> None:
    def counted() -> float:
        return served.worker.metric("forebay_end_to_end_seconds_count", tier="low")

    def ended(status: str) -> float:
        return served.worker.metric("forebay_outcomes_total", tier="low", status=status)

    before = counted()
    dead = served.worker.metric("forebay_dead_letters_total", reason="unknown_biz_type")
    completes = [f"ended-{next(NUMBERS)}" for _ in range(3)]
    late, unknown = f"too-late-{next(NUMBERS)}", f"unknown-{next(NUMBERS)}"
    served.pool.submit(Tier.LOW, *map(envelope, completes))
    served.pool.submit(Tier.LOW, envelope(late, ttl_ms=1), envelope(unknown, biz_type="no-such"))
    served.pool.results([*completes, late, unknown])
    # What is rejected took no time to be anything.
    wait_until("four of the five", lambda: counted() == before + 4)
    assert ended("expired") >= 1
    assert served.worker.metric("forebay_dead_letters_total", reason="unknown_biz_type") == dead + 1
