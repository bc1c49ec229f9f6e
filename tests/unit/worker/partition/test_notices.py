"""Notices kept for partitions that are assigned a little later: how long, how many, in which order."""

from __future__ import annotations

import pytest

from forebay_schemas.contract.coordination import LEASE_SECONDS, Notice, NoticeKind
from forebay_schemas.contract.offsets_metadata import CommitMetadata, encode_metadata
from forebay_worker.bounds import BOUNDS
from forebay_worker.partition.assignment import Assignment, Verdict
from forebay_worker.partition.notices import KEPT_SECONDS, RecentNotices
from simulated.works import make_assignment

RUNNING, FINISHED, RELEASED = NoticeKind.RUNNING, NoticeKind.FINISHED, NoticeKind.RELEASED
TOPIC = make_assignment().topic
NOW = 1_000.0

RUN, SKIP, WITHHOLD = Verdict.RUN, Verdict.SKIP, Verdict.WITHHOLD


def says(kind: NoticeKind, *offsets: int, topic: str = TOPIC, partition: int = 0) -> Notice:
    return Notice(kind=kind, worker="other", topic=topic, partition=partition, offsets=list(offsets))


LAST_COMMIT = Notice(
    kind=NoticeKind.LAST_COMMIT,
    worker="other",
    topic=TOPIC,
    partition=0,
    committed=1,
    metadata=encode_metadata(1, CommitMetadata(handed_over=((2, 1),))),
)


def told(*received: tuple[float, Notice], metadata: CommitMetadata | None = None) -> Assignment:
    """A new assignment with these notices, received the given seconds ago."""
    notices = RecentNotices()
    for seconds_ago, notice in received:
        notices.receive(notice, NOW - seconds_ago)
    assignment = make_assignment(now=NOW, metadata=metadata or CommitMetadata())
    notices.apply_to(assignment, NOW)
    return assignment


@pytest.mark.parametrize(
    ("received", "verdicts"),
    [
        pytest.param([], [RUN, RUN, RUN], id="nothing"),
        pytest.param([(KEPT_SECONDS, says(FINISHED, 1))], [RUN, SKIP, RUN], id="finished: for a minute"),
        pytest.param([(0, says(RUNNING, 1))], [RUN, WITHHOLD, RUN], id="running"),
        pytest.param([(LEASE_SECONDS, says(RUNNING, 1))], [RUN, WITHHOLD, RUN], id="running, a lease ago"),
        pytest.param([(LEASE_SECONDS + 0.1, says(RUNNING, 1))], [RUN, RUN, RUN], id="running, longer ago"),
        pytest.param([(LEASE_SECONDS, LAST_COMMIT)], [SKIP, RUN, WITHHOLD], id="a last commit"),
        pytest.param([(KEPT_SECONDS, LAST_COMMIT)], [SKIP, RUN, WITHHOLD], id="a last commit, longer ago"),
        pytest.param([(2, LAST_COMMIT), (1, says(FINISHED, 2))], [SKIP, RUN, SKIP], id="and what became of it"),
        pytest.param([(2, LAST_COMMIT), (1, says(RELEASED, 2))], [SKIP, RUN, RUN], id="or that it was given back"),
        # Two owners, one after the other: the order tells which holds.
        pytest.param([(2, says(RELEASED, 1)), (1, says(RUNNING, 1))], [RUN, WITHHOLD, RUN], id="given back, then run"),
        pytest.param([(2, says(RUNNING, 1)), (1, says(RELEASED, 1))], [RUN, RUN, RUN], id="run, then given back"),
        pytest.param([(0, says(FINISHED, 1, partition=1))], [RUN, RUN, RUN], id="another partition"),
        pytest.param([(0, says(FINISHED, 1, topic="other"))], [RUN, RUN, RUN], id="another topic"),
    ],
)
def test_a_new_assignment_is_told_what_still_means_something(
    received: list[tuple[float, Notice]], verdicts: list[Verdict]
) -> None:
    assignment = told(*received)
    assert [assignment.receive(offset) for offset in range(3)] == verdicts


@pytest.mark.parametrize(
    ("age_seconds", "verdicts"),
    [(LEASE_SECONDS - 3, [RUN, WITHHOLD, SKIP]), (LEASE_SECONDS - 1, [RUN, RUN, SKIP])],
)
def test_what_was_said_before_this_worker_began_is_as_old_as_it_is(age_seconds: float, verdicts: list[Verdict]) -> None:
    """Its lease began when it was said, 2 s before the assignment it was heard: one silence is one crash."""
    notices = RecentNotices()
    notices.receive(says(RUNNING, 1), NOW - 2, age_seconds=age_seconds)
    notices.receive(says(FINISHED, 2), NOW - 2, age_seconds=KEPT_SECONDS)
    assignment = make_assignment(now=NOW)
    notices.apply_to(assignment, NOW)
    assert [assignment.receive(offset) for offset in range(3)] == verdicts


def test_a_former_owner_that_was_heard_of_begins_its_lease_anew() -> None:
    assignment = told((3, says(RUNNING, 1)), metadata=CommitMetadata(handed_over=((1, 0),)))
    assert not assignment.end_leases(NOW + LEASE_SECONDS - 0.1)
    assert assignment.end_leases(NOW + LEASE_SECONDS)


def test_its_memory_is_bounded_and_the_oldest_is_forgotten_first() -> None:
    notices = RecentNotices()
    notices.receive(says(FINISHED, 0), NOW)
    notices.receive(says(FINISHED, 1), NOW)
    for _ in range(BOUNDS.notices_max - 1):
        notices.receive(says(FINISHED, 7, partition=1), NOW)
    assignment = make_assignment(now=NOW)
    notices.apply_to(assignment, NOW)
    assert [assignment.receive(offset) for offset in range(3)] == [RUN, SKIP, RUN]


def test_what_is_too_old_is_let_go_of() -> None:
    notices = RecentNotices()
    for second in range(300):
        notices.receive(says(FINISHED, second), float(second))
    assert len(notices._notices) == KEPT_SECONDS + 1
