"""Known outcomes: which record asks for something that has its outcome already, for how long, and for how many."""

from __future__ import annotations

import pytest

from forebay_worker.bounds import BOUNDS
from forebay_worker.outcome.reported import KNOWN_SECONDS, ReportedOutcomes


@pytest.mark.parametrize(
    ("request_id", "replay_count", "seconds_later", "is_known"),
    [
        ("a", 0, 0.0, True),
        ("a", 0, KNOWN_SECONDS, True),
        ("a", 0, KNOWN_SECONDS + 0.1, False),
        ("b", 0, 0.0, False),
        # A replayed dead letter is meant to run again.
        ("a", 1, 0.0, False),
    ],
)
def test_a_request_is_known_by_its_id_and_replay_for_a_while(
    request_id: str, replay_count: int, seconds_later: float, is_known: bool
) -> None:
    known = ReportedOutcomes()
    known.add("a", 0, 100.0)
    assert known.has(request_id, replay_count, 100.0 + seconds_later) is is_known


def test_its_memory_is_bounded_and_the_oldest_is_forgotten_first() -> None:
    known = ReportedOutcomes()
    for number in range(BOUNDS.reported_requests_max + 10):
        known.add(f"r-{number}", 0, 0.0)
    assert len(known) == BOUNDS.reported_requests_max
    assert not known.has("r-9", 0, 0.0)
    assert known.has("r-10", 0, 0.0)


def test_an_outcome_that_is_reported_again_is_known_longer() -> None:
    known = ReportedOutcomes()
    known.add("a", 0, 0.0)
    known.add("a", 0, 400.0)
    assert len(known) == 1
    assert known.has("a", 0, 400.0 + KNOWN_SECONDS)
