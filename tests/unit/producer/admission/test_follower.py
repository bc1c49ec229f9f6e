"""The follower of a pool's load: it updates while it can read, begins anew after a failure, and ends when closed."""

from __future__ import annotations

import threading

from structlog.testing import capture_logs

from forebay_producer.admission.admission import Reading
from forebay_producer.admission.follower import LoadFollower
from forebay_schemas.clock import SystemClock
from forebay_schemas.contract.tiers import DEFAULT_TIER_TIMES
from forebay_schemas.errors import BrokerUnreachableError
from forebay_schemas.estimate.pool import load_of_pool

READING = Reading(at=0.0, load=load_of_pool([], None), times=DEFAULT_TIER_TIMES)


class Source:
    """Gives a reading at the second look; ``failing``: instead of the first."""

    def __init__(self, *, failing: Exception | None = None) -> None:
        self.failing = failing
        self.closed = threading.Event()
        self.looks = 0

    def listen(self, seconds: float) -> None:
        threading.Event().wait(min(seconds, 0.01))

    def read(self) -> Reading | None:
        if self.failing is not None:
            raise self.failing
        self.looks += 1
        return READING if self.looks > 1 else None

    def close(self) -> None:
        self.closed.set()


def test_it_updates_after_the_workers_had_time_to_announce_themselves_and_closes_its_source() -> None:
    source, came = Source(), threading.Event()
    follower = LoadFollower(lambda: source, update=lambda _: came.set(), clock=SystemClock(), pool="p")
    follower.start()
    assert came.wait(30)
    follower.close()
    assert source.closed.is_set()


def test_after_a_failure_it_begins_anew_and_says_so_once() -> None:
    broken = [Source(failing=BrokerUnreachableError("no broker")), Source(failing=ValueError("a bug"))]
    good, came, made = Source(), threading.Event(), []

    def make() -> Source:
        made.append(1)
        return broken.pop() if broken else good

    follower = LoadFollower(make, update=lambda _: came.set(), clock=SystemClock(), pool="p")
    with capture_logs() as logs:
        follower.start()
        assert came.wait(60)
    follower.close()
    assert len(made) == 3
    assert len(logs) == 2
