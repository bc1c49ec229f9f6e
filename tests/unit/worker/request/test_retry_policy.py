"""Decisions after a failed execution, as a table."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_schemas.contract.topics import RETRY_DELAYS_SECONDS
from forebay_worker.request.retry_policy import Next, Plan, plan_after_failure

DEAD, EXPIRED = Plan(next=Next.DEAD_LETTER), Plan(next=Next.EXPIRE)


def after(delay_seconds: int) -> Plan:
    return Plan(next=Next.RETRY, delay_seconds=delay_seconds)


@pytest.mark.parametrize(
    ("attempt", "may_retry", "retry_after_seconds", "seconds_left", "plan"),
    [
        # Of four attempts each but the last is followed by another, after a growing delay.
        (1, True, None, 60, after(1)),
        (2, True, None, 60, after(5)),
        (3, True, None, 60, after(30)),
        (4, True, None, 60, DEAD),
        (9, True, None, 60, DEAD),
        # What cannot succeed later is not tried later, however much time is left.
        (1, False, None, 60, DEAD),
        (1, False, 0.5, 60, DEAD),
        # The backend's own wish moves a retry to the next longer delay, as far as there is one.
        (1, True, 0.0, 60, after(1)),
        (1, True, 1.0, 60, after(1)),
        (1, True, 1.1, 60, after(5)),
        (1, True, 20.0, 60, after(30)),
        (1, True, 3_600.0, 60, after(30)),
        (2, True, 0.5, 60, after(5)),
        (3, True, 1e20, 60, after(30)),
        # What could not start before its deadline ends at once: at the deadline an outcome is worth nothing.
        (1, True, None, 1.001, after(1)),
        (1, True, None, 1, EXPIRED),
        (1, True, None, -5, EXPIRED),
        (1, True, 2.0, 4, EXPIRED),
        (3, True, None, 30, EXPIRED),
        # A dead letter can be replayed: it is one although its time is over.
        (4, True, None, -5, DEAD),
        (1, False, None, -5, DEAD),
    ],
)
def test_what_follows_a_failed_execution(
    attempt: int, may_retry: bool, retry_after_seconds: float | None, seconds_left: float, plan: Plan
) -> None:
    assert plan == plan_after_failure(
        attempt=attempt,
        attempts_max=4,
        may_retry=may_retry,
        retry_after_seconds=retry_after_seconds,
        now_ms=1_000_000,
        deadline_ms=1_000_000 + round(seconds_left * 1000),
    )


@settings(deadline=None)
@given(
    attempt=st.integers(1, 200),
    attempts_max=st.integers(1, 100),
    retry_after_seconds=st.none() | st.floats(0, 1e9),
    seconds_left=st.integers(-10, 100),
)
def test_a_retry_is_always_one_that_a_topic_exists_for_and_starts_in_time(
    attempt: int, attempts_max: int, retry_after_seconds: float | None, seconds_left: int
) -> None:
    plan = plan_after_failure(
        attempt=attempt,
        attempts_max=attempts_max,
        may_retry=True,
        retry_after_seconds=retry_after_seconds,
        now_ms=0,
        deadline_ms=seconds_left * 1000,
    )
    if plan.next is Next.RETRY:
        assert plan.delay_seconds in RETRY_DELAYS_SECONDS
        assert plan.delay_seconds < seconds_left
        assert attempt < attempts_max
