"""Admission: what is admitted, what is refused and why, when the refused come back, and what one decision costs."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise

import pytest

from forebay_producer.admission.admission import FRESH_SECONDS, RETRY_SECONDS_MAX, Admission, Reading
from forebay_producer.admission.decision import (
    AdmissionPolicy,
    Admitted,
    RefusalReason,
    Refused,
    WithoutWorkers,
    decide,
)
from forebay_producer.admission.tenants import TENANTS_MAX, Tenants
from forebay_producer.errors import AdmissionRefusedError
from forebay_schemas.contract.tiers import DEFAULT_TIER_TIMES, TIERS, Tier
from forebay_schemas.estimate.pool import PoolLoad, advanced
from forebay_schemas.estimate.waits import Correction, TierLoad

HIGH, MID, LOW = TIERS
NOW = 1_000.0


def pool(
    waiting: dict[Tier, int] | None = None,
    *,
    slots: int = 0,
    rate: float | None = 10.0,
    service: float = 1.0,
    serving: int = 1,
    p90: float = 1.0,
    arriving: float = 0.0,
) -> PoolLoad:
    """A pool that serves ``rate`` requests a second; estimates are exact unless ``p90`` says otherwise."""
    cost = 1 / rate if rate else 0.0
    numbers = waiting or {}
    return PoolLoad(
        workers=1,
        serving_workers=serving,
        rate=rate,
        tiers={
            tier: TierLoad(
                waiting_requests=numbers.get(tier, 0),
                work_seconds=numbers.get(tier, 0) * cost,
                request_seconds=cost,
                arriving=arriving,
                open_slots=slots,
            )
            for tier in TIERS
        },
        cost_seconds=dict.fromkeys(TIERS, cost),
        service_seconds=dict.fromkeys(TIERS, service),
        corrections=dict.fromkeys(TIERS, Correction(starts=200, p50=1.0, p90=p90)),
        guaranteed_shares={},
    )


def ask(
    load: PoolLoad | None,
    tier: Tier = HIGH,
    *,
    left_seconds: float = 30.0,
    do_not_queue: bool = False,
    policy: AdmissionPolicy | None = None,
) -> Admitted | Refused:
    return decide(
        load, tier=tier, left_seconds=left_seconds, do_not_queue=do_not_queue, policy=policy or AdmissionPolicy()
    )


@pytest.mark.parametrize(
    ("load", "tier", "left_seconds", "reason"),
    [
        (pool({}), HIGH, 30.0, None),
        (pool({HIGH: 29}), HIGH, 30.0, None),
        (pool({HIGH: 31}), HIGH, 30.0, RefusalReason.WAIT_TOO_LONG),
        (pool({HIGH: 31}), MID, 60.0, None),
        (pool({MID: 190}), MID, 60.0, RefusalReason.WAIT_TOO_LONG),
        (pool({LOW: 10_000}), LOW, 86_400.0, None),
        (pool({LOW: 10_000}), LOW, 1_000.0, RefusalReason.DEADLINE_TOO_CLOSE),
        # 60 % of (3 s - 1 s of service) is 1.2 s.
        (pool({HIGH: 11}), HIGH, 3.0, None),
        (pool({HIGH: 13}), HIGH, 3.0, RefusalReason.DEADLINE_TOO_CLOSE),
        (pool({}, service=4.0), HIGH, 3.0, RefusalReason.DEADLINE_TOO_CLOSE),
        (pool({HIGH: 20}, p90=2.0), HIGH, 30.0, RefusalReason.WAIT_TOO_LONG),
        # More than what is tolerated is refused only where it would have to queue.
        (pool({HIGH: 1}, service=11.0), HIGH, 60.0, RefusalReason.SERVICE_TOO_SLOW),
        (pool({MID: 1}, service=11.0), MID, 60.0, None),
        (pool({}, service=11.0, slots=1), HIGH, 60.0, None),
    ],
)
def test_a_request_is_admitted_while_its_wait_fits(
    load: PoolLoad, tier: Tier, left_seconds: float, reason: RefusalReason | None
) -> None:
    found = ask(load, tier, left_seconds=left_seconds)
    assert (found.reason if isinstance(found, Refused) else None) == reason


@pytest.mark.parametrize(("waiting", "slots", "admitted"), [(0, 1, True), (0, 0, False), (1, 1, False), (1, 2, True)])
def test_a_request_that_is_not_to_be_queued_starts_at_once_or_is_refused(
    waiting: int, slots: int, admitted: bool
) -> None:
    found = ask(pool({HIGH: waiting}, slots=slots), do_not_queue=True)
    assert isinstance(found, Admitted) == admitted
    if isinstance(found, Refused):
        assert found.reason is RefusalReason.NO_FREE_SLOT


@pytest.mark.parametrize(("number", "warned"), [(20, False), (22, True), (29, True)])
def test_above_seventy_per_cent_of_a_bound_there_is_a_warning(number: int, warned: bool) -> None:
    found = ask(pool({HIGH: number}))
    assert isinstance(found, Admitted)
    assert (found.warning is not None) == warned


@pytest.mark.parametrize("load", [None, pool(serving=0)])
def test_without_workers_the_setting_decides(load: PoolLoad | None) -> None:
    assert ask(load) == Admitted()
    found = ask(load, policy=AdmissionPolicy(without_workers=WithoutWorkers.REFUSE))
    assert isinstance(found, Refused)
    assert (found.reason, found.reason.http_status) == (RefusalReason.NO_WORKER, 503)


def test_while_nobody_knows_how_long_requests_take_they_are_admitted() -> None:
    assert ask(pool({HIGH: 1_000}, rate=None)) == Admitted()


def test_only_the_lack_of_workers_is_unavailability() -> None:
    assert {reason.value: reason.http_status for reason in RefusalReason} == {
        "wait_too_long": 429,
        "deadline_too_close": 429,
        "no_free_slot": 429,
        "service_too_slow": 429,
        "tenant_rate": 429,
        "tenant_concurrency": 429,
        "no_worker": 503,
    }


# One object for many callers


def admission(load: PoolLoad | None, **policy: object) -> Admission:
    made = Admission(policy=AdmissionPolicy(**policy))  # type: ignore[arg-type]
    if load is not None:
        made.update(Reading(at=NOW, load=load, times=DEFAULT_TIER_TIMES))
    return made


def refusal(
    made: Admission, number: int = 0, *, now: float = NOW, tier: Tier = HIGH, tenant: str | None = None
) -> AdmissionRefusedError:
    with pytest.raises(AdmissionRefusedError) as caught:
        made.admit(f"r-{number}", tier=tier, left_seconds=30.0, now=now, tenant=tenant)
    return caught.value


def test_what_was_admitted_since_the_reading_waits_too() -> None:
    made = admission(pool({}))
    admitted = 0
    while admitted < 100:
        try:
            made.admit(f"r-{admitted}", tier=HIGH, left_seconds=30.0, now=NOW)
        except AdmissionRefusedError:
            break
        admitted += 1
    assert admitted == 31, "3 s at 10 a second"
    made.admit("later", tier=HIGH, left_seconds=30.0, now=NOW + 0.5)
    made.update(Reading(at=NOW + 1, load=pool({}), times=DEFAULT_TIER_TIMES))
    made.admit("fresh", tier=HIGH, left_seconds=30.0, now=NOW + 1)


def test_the_refused_come_back_at_the_pace_of_the_drain() -> None:
    made = admission(pool({HIGH: 50}))
    found = [refusal(made, number).retry_after_seconds for number in range(100)]
    assert all(each is not None for each in found)
    seconds = [each or 0.0 for each in found]
    assert seconds[0] == pytest.approx(2.1), "5 s of work, 3 s tolerated, and one turn"
    gaps = [later - earlier for earlier, later in pairwise(seconds)]
    assert gaps == pytest.approx([0.1] * 99)
    # When the first come back there is room for them, and only for them.
    later = advanced(pool({HIGH: 50}), seconds=seconds[0], added={})
    assert isinstance(ask(later), Admitted)


def test_a_wait_before_coming_back_is_bounded_and_forgotten_after_it() -> None:
    made = admission(pool({HIGH: 50}))
    last = [refusal(made, number).retry_after_seconds or 0.0 for number in range(10_000)][-1]
    assert last <= RETRY_SECONDS_MAX
    now = NOW + 2 * RETRY_SECONDS_MAX
    made.update(Reading(at=now, load=pool({HIGH: 50}), times=DEFAULT_TIER_TIMES))
    assert refusal(made, now=now).retry_after_seconds == pytest.approx(2.1)


def test_a_deadline_that_no_pool_could_meet_names_no_time_to_come_back() -> None:
    made = admission(pool({}, service=5.0))
    with pytest.raises(AdmissionRefusedError) as caught:
        made.admit("r", tier=HIGH, left_seconds=4.0, now=NOW)
    assert caught.value.code == "deadline_too_close"
    assert caught.value.retry_after_seconds is None


def test_a_reading_that_is_too_old_counts_for_nothing() -> None:
    made = admission(pool({HIGH: 50}))
    refusal(made)
    assert made.admit("r", tier=HIGH, left_seconds=30.0, now=NOW + FRESH_SECONDS + 0.1) == Admitted()


def test_a_tenant_has_its_rate_and_others_have_theirs() -> None:
    made = admission(pool({}, slots=1_000), tenant_per_second=2.0, tenant_burst=4)
    for number in range(4):
        made.admit(f"r-{number}", tier=HIGH, left_seconds=30.0, now=NOW, tenant="a")
    found = refusal(made, tenant="a")
    assert found.code == "tenant_rate"
    assert found.retry_after_seconds == pytest.approx(1.0)
    made.admit("b", tier=HIGH, left_seconds=30.0, now=NOW, tenant="b")
    made.admit("later", tier=HIGH, left_seconds=30.0, now=NOW + 0.6, tenant="a")
    assert refusal(made, now=NOW + 0.7, tenant="a").code == "tenant_rate"


def test_open_requests_of_a_tenant_are_bounded_until_they_end_or_expire() -> None:
    made = admission(pool({}, slots=1_000), tenant_concurrency=2)
    made.admit("r-1", tier=HIGH, left_seconds=30.0, now=NOW, tenant="a")
    made.admit("r-2", tier=HIGH, left_seconds=5.0, now=NOW, tenant="a")
    assert refusal(made, tenant="a").code == "tenant_concurrency"
    made.ended("r-1")
    made.ended("r-1")
    made.ended("never seen")
    made.admit("r-3", tier=HIGH, left_seconds=30.0, now=NOW, tenant="a")
    assert refusal(made, tenant="a").code == "tenant_concurrency"
    made.admit("r-4", tier=HIGH, left_seconds=30.0, now=NOW + 5.1, tenant="a")


def test_a_tenant_over_its_rate_delays_no_other() -> None:
    made = admission(pool({}, slots=1_000), tenant_per_second=1.0, tenant_burst=1)
    for tenant in ("a", "b"):
        made.admit(tenant, tier=HIGH, left_seconds=30.0, now=NOW, tenant=tenant)
    last = [refusal(made, tenant="a").retry_after_seconds for _ in range(50)][-1]
    assert last == pytest.approx(51.0)
    assert refusal(made, tenant="b").retry_after_seconds == pytest.approx(2.0)


def test_what_is_remembered_of_tenants_is_bounded() -> None:
    tenants = Tenants(AdmissionPolicy(tenant_concurrency=3))
    for number in range(20_000):
        tenants.started("a", f"a-{number}", now=NOW, deadline=NOW + 86_400)
        tenants.ended(f"a-{number}")
    assert len(tenants._tenants["a"].deadlines) < 100
    for number in range(TENANTS_MAX + 100):
        tenants.started(f"t-{number}", f"r-{number}", now=NOW, deadline=NOW + 86_400)
    assert len(tenants._tenants) == len(tenants._tenant_of) == TENANTS_MAX


def test_what_others_send_counts_by_its_rate() -> None:
    busy = advanced(pool({HIGH: 10}, arriving=0.5), seconds=2.0, added={HIGH: 3})
    assert busy.tiers[HIGH].work_seconds == pytest.approx(10 * 0.1 + 1.0 - 2.0)
    mine = advanced(pool({HIGH: 10}, arriving=0.05), seconds=0.5, added={HIGH: 30})
    assert mine.tiers[HIGH].work_seconds == pytest.approx(1.0 + 3.0 - 0.5)


def test_a_decision_takes_less_than_a_millisecond() -> None:
    made = admission(
        pool({HIGH: 50, MID: 500, LOW: 5_000}, arriving=0.3), tenant_per_second=1e9, tenant_concurrency=100
    )
    took = []
    for number in range(300):
        begun = time.perf_counter()
        refusal_of = refusal(made, number, tenant="a")
        took.append(time.perf_counter() - begun)
        assert refusal_of.code
    assert sorted(took)[150] < 0.001


def test_a_refusal_names_its_figures() -> None:
    found = refusal(admission(replace(pool({HIGH: 50}))))
    assert (found.code, found.http_status, found.threshold) == ("wait_too_long", 429, 3.0)
    assert found.value == pytest.approx(5.0)
    assert str(found).startswith("refused (wait_too_long): a high request would wait up to 5.0 s")
    assert "try again in 2.1 s" in str(found)
