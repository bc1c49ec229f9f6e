"""A pool's present workers, by the end of the coordination topic."""

from __future__ import annotations

from forebay_schemas.contract.coordination import GONE_SECONDS
from forebay_schemas.kafka.announcements import present
from simulated.capacities import make_capacity

NOW_MS = 1_735_689_600_000


def test_the_last_record_of_each_worker_counts_that_is_not_gone_and_has_not_left() -> None:
    gone_ms = int(GONE_SECONDS * 1000)
    found = present(
        [
            (NOW_MS - gone_ms, make_capacity("gone")),
            (NOW_MS - gone_ms + 1, make_capacity("late")),
            (NOW_MS - 900, make_capacity("a", sequence=1)),
            (NOW_MS - 800, make_capacity("left")),
            (NOW_MS - 500, make_capacity("left", draining=True)),
            (NOW_MS - 400, make_capacity("drains", in_flight=2, draining=True)),
            (NOW_MS, make_capacity("a", sequence=2)),
        ]
    )
    assert [(each.worker, each.sequence) for each in found] == [("late", 0), ("a", 2), ("drains", 0)]
    assert present([]) == []
