"""The doctors' findings about deadlines and waits: who differs, by which tier, and what to do."""

from __future__ import annotations

from forebay_schemas.contract.coordination import Capacity
from forebay_schemas.contract.tiers import DEFAULT_TIER_TIMES, Tier, TierTimes, tier_times
from forebay_schemas.doctor.findings import Status
from forebay_schemas.doctor.tiers import tiers_findings
from simulated.capacities import make_capacity

LONG = tier_times({Tier.HIGH: 60_000}, {})


def worker(name: str, times: TierTimes, *, since: int) -> Capacity:
    return make_capacity(name, times, incarnation=since)


def test_without_a_worker_there_is_nothing_to_compare() -> None:
    [finding] = tiers_findings(DEFAULT_TIER_TIMES, [])
    assert finding.status is Status.SKIPPED
    assert "here high 5 s (waits 3 s), mid 30 s (waits 18 s), low 86400 s (waits 51840 s)" in finding.detail


def test_where_all_agree_it_says_on_what() -> None:
    [finding] = tiers_findings(LONG, [worker("a", LONG, since=1), worker("b", LONG, since=2)])
    assert finding.status is Status.OK
    assert finding.detail.startswith("as 2 worker(s) have them (a, b): high 60 s (waits 3 s)")


def test_each_side_that_differs_is_named_with_both_values() -> None:
    workers = [worker("old", DEFAULT_TIER_TIMES, since=1), worker("new", LONG, since=2)]
    findings = tiers_findings(tier_times({Tier.LOW: 1_000}, {}), workers)
    assert [finding.status for finding in findings] == [Status.WARNING, Status.WARNING]
    assert findings[0].detail == (
        "worker old has other values than new, which started last: FOREBAY_TIER_TTL_MS high 5000 against 60000"
    )
    assert findings[1].detail == (
        "here are other values than worker new has: FOREBAY_TIER_TTL_MS high 5000 against 60000, "
        "FOREBAY_TIER_TTL_MS low 1000 against 86400000, FOREBAY_TIER_WAIT_MS low 600 against 51840000"
    )
    assert all("FOREBAY_TIER_TTL_MS" in (finding.fix or "") for finding in findings)
