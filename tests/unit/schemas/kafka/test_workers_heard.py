"""Who of a pool's workers is there, by what lies at the end of the coordination topic."""

from __future__ import annotations

from forebay_schemas.contract.coordination import GONE_SECONDS, Capacity
from forebay_schemas.kafka.workers_heard import present

NOW_MS = 1_735_689_600_000


def capacity(worker: str, *, in_flight: int = 0, draining: bool = False, sequence: int = 0) -> Capacity:
    return Capacity(
        worker=worker,
        backend="b",
        limit_requests=1,
        share_requests=1,
        in_flight=in_flight,
        wanted={},
        ended_per_second=0,
        service_seconds=None,
        draining=draining,
        sequence=sequence,
    )


def test_the_last_record_of_each_worker_counts_that_is_not_gone_and_has_not_left() -> None:
    gone_ms = int(GONE_SECONDS * 1000)
    found = present(
        [
            (NOW_MS - gone_ms, capacity("gone")),
            (NOW_MS - gone_ms + 1, capacity("late")),
            (NOW_MS - 900, capacity("a", sequence=1)),
            (NOW_MS - 800, capacity("left")),
            (NOW_MS - 500, capacity("left", draining=True)),
            (NOW_MS - 400, capacity("drains", in_flight=2, draining=True)),
            (NOW_MS, capacity("a", sequence=2)),
        ]
    )
    assert [(each.worker, each.sequence) for each in found] == [("late", 0), ("a", 2), ("drains", 0)]
    assert present([]) == []
