"""Dispatch: retries of a failure that was charged to its request."""

from __future__ import annotations

import pytest

from forebay_schemas.contract.reasons import Reason
from forebay_schemas.contract.tiers import Tier
from forebay_worker.request.work import Failure, Retry
from simulated.dispatch import FAILED, Stage, works
from simulated.works import POOL, make_work


def test_a_failure_is_tried_again_later_and_holds_no_slot_meanwhile() -> None:
    stage = Stage(limit=1, retries_max=3)
    stage.accept(*works(2))
    first = stage.take()
    stage.dispatcher.failed(first, FAILED)
    assert stage.retries() == [(POOL.retry(Tier.MID, 1), 2)]
    assert stage.outcomes() == []
    assert list(first.assignment.done) == [0]
    assert stage.take().offset == 1


@pytest.mark.parametrize(
    ("attempt", "retries_max", "own_max", "delay_seconds"),
    [
        (1, 3, None, 1),
        (2, 3, None, 5),
        (3, 3, None, 30),
        (4, 3, None, None),
        (1, 0, None, None),
        (5, 9, None, 30),
        # What the request itself asks for counts.
        (1, 3, 1, None),
        (2, 3, 2, None),
        (4, 3, 6, 30),
    ],
)
def test_retries_come_after_growing_delays_until_they_are_used_up(
    attempt: int, retries_max: int, own_max: int | None, delay_seconds: int | None
) -> None:
    stage = Stage(retries_max=retries_max)
    headers: list[tuple[str, bytes | None]] = [("forebay-attempt", str(attempt).encode())]
    stage.accept(make_work(headers=headers, ttl_ms=600_000, max_attempts=own_max))
    stage.dispatcher.failed(stage.take(), FAILED)
    if delay_seconds is None:
        assert (stage.retries(), stage.outcomes()) == ([], [("r-0", "backend_error")])
        assert len(stage.producer.delivered_to(POOL.dead_letter)) == 1
    else:
        assert stage.retries() == [(POOL.retry(Tier.MID, delay_seconds), attempt + 1)]
        assert stage.outcomes() == []


def test_what_would_come_too_late_is_not_tried_again() -> None:
    stage = Stage(retries_max=3)
    stage.accept(*works(1, ttl_ms=1_000))
    stage.dispatcher.failed(stage.take(), FAILED)
    assert (stage.retries(), stage.outcomes()) == ([], [("r-0", "retry_too_late")])
    assert stage.results()[0].error == "HTTP 500"
    assert stage.producer.delivered_to(POOL.dead_letter) == []


@pytest.mark.parametrize(
    ("failure", "is_tried_again"),
    [
        (Failure(reason=Reason.BACKEND_ERROR, error="HTTP 500"), True),
        (Failure(reason=Reason.BACKEND_TIMEOUT, error="too late"), True),
        (Failure(reason=Reason.BACKEND_REJECTED, error="HTTP 422"), False),
        (Failure(reason=Reason.UNKNOWN_BIZ_TYPE, error="no"), False),
        # The list of statuses is a setting: it beats what the reason says.
        (Failure(reason=Reason.BACKEND_ERROR, error="HTTP 501", retry=Retry.FORBIDDEN), False),
        (Failure(reason=Reason.BACKEND_REJECTED, error="HTTP 425", retry=Retry.ALLOWED), True),
    ],
)
def test_only_what_may_succeed_later_is_tried_again(failure: Failure, is_tried_again: bool) -> None:
    stage = Stage(retries_max=3)
    stage.accept(*works(1))
    stage.dispatcher.failed(stage.take(), failure)
    assert len(stage.retries()) == is_tried_again
    assert len(stage.producer.delivered_to(POOL.dead_letter)) == 1 - is_tried_again
