"""Results that `forebay results --limit` shows."""

from __future__ import annotations

import random

from forebay_producer.cli.results import Newest
from forebay_schemas.contract.reasons import Status
from forebay_schemas.contract.results import Result


def result(request_id: str, finished_at: int) -> Result:
    return Result(request_id=request_id, status=Status.COMPLETED, reason="completed", finished_at=finished_at)


def test_the_newest_are_kept_in_order_wherever_they_come() -> None:
    results = [result(f"r{at}", at // 3) for at in range(1000)]
    random.Random(1).shuffle(results)
    newest = Newest(6)
    for one in results:
        newest.add(one)
    assert [one.finished_at for one in newest.in_order()] == [331, 331, 332, 332, 332, 333]


def test_fewer_than_that_are_all_shown() -> None:
    newest = Newest(3)
    newest.add(result("b", 2))
    newest.add(result("a", 1))
    assert [one.request_id for one in newest.in_order()] == ["a", "b"]
