"""Last commits that were refused, and crashes: which death is charged to which request."""

from __future__ import annotations

import pytest

from forebay_schemas.contract.coordination import LEASE_SECONDS, Notice
from forebay_schemas.contract.offsets_metadata import CommitMetadata, encode_metadata
from forebay_schemas.contract.tiers import Tier
from forebay_worker.partition.assignment import Assignment
from forebay_worker.partition.credit import Credit
from simulated.owners import (
    BEGAN,
    LAST_COMMIT,
    RELEASED,
    RUN,
    RUNNING,
    SKIP,
    WITHHOLD,
    drawn,
    finish,
    last_commit_of,
    metadata_of,
    receive_all,
    says,
)
from simulated.works import make_assignment


def former_owner(*, handed_over_crashes: int = 0) -> Assignment:
    """It finished 0, 1 and 3, runs 2, and 4 waits after a crash."""
    assignment = make_assignment(metadata=CommitMetadata(waiting=((2, handed_over_crashes), (4, 1))))
    receive_all(assignment, 5)
    assignment.claims.claim(2)
    finish(assignment, 0, 1, 3)
    return assignment


@pytest.mark.parametrize("received", [0, 2, 5], ids=lambda count: f"{count} received before it is heard")
def test_a_refused_last_commit_that_is_told_counts_like_one_that_was_taken(received: int) -> None:
    assignment = make_assignment(now=BEGAN)
    receive_all(assignment, received)
    assignment.apply(last_commit_of(former_owner()), BEGAN)
    verdicts = receive_all(assignment, 6)[received:]
    assert verdicts == [SKIP, SKIP, WITHHOLD, SKIP, RUN, RUN][received:]
    assert assignment.crashes_of(4) == 1
    assert metadata_of(assignment.commit()) == CommitMetadata(
        finished=((3, 1),), waiting=((4, 1),), handed_over=((2, 0),)
    )
    assert assignment.end_leases(BEGAN + LEASE_SECONDS)


def test_a_last_commit_that_is_told_lowers_nothing() -> None:
    assignment = drawn("ooooo", committed=10)
    assert [assignment.receive(offset) for offset in range(10, 16)] == [SKIP] * 5 + [RUN]
    assignment.apply(last_commit_of(former_owner()), BEGAN)
    assert assignment.commit() == (15, "")


@pytest.mark.parametrize("text", ["another client's", "f1zzzz"])
def test_a_last_commit_with_foreign_metadata_still_says_how_far_it_came(text: str) -> None:
    notice = Notice(kind=LAST_COMMIT, worker="other", topic="t", partition=0, committed=3, metadata=text)
    assignment = drawn("h....")
    assignment.apply(notice, BEGAN)
    assert receive_all(assignment, 4) == [SKIP, SKIP, SKIP, RUN]


def test_a_last_commit_without_an_offset_says_nothing() -> None:
    assignment = drawn("..")
    assignment.apply(says(LAST_COMMIT), BEGAN)
    assert receive_all(assignment, 2) == [RUN, RUN]


def test_a_last_commit_heard_late_spoils_no_commit_of_what_runs_here_already() -> None:
    """Both the former owner and this one run offset 2: each may only be named once."""
    assignment = make_assignment(now=BEGAN)
    receive_all(assignment, 5)
    for offset in (2, 4):
        assignment.claims.claim(offset)
    assignment.apply(last_commit_of(former_owner()), BEGAN)
    assert metadata_of(assignment.commit()) == CommitMetadata(finished=((3, 1),), running=((2, 0), (4, 1)))
    finish(assignment, 2)
    assert not assignment.end_leases(BEGAN + LEASE_SECONDS)
    assert metadata_of(assignment.close()[1]) == CommitMetadata(handed_over=((4, 1),), released=True)


# Crashes: a request that was running when workers died is not run for ever


def test_only_those_that_ran_when_their_worker_died_are_charged() -> None:
    """Four owners of one partition, of which two die."""
    first = drawn("....")
    receive_all(first, 4)
    first.claims.claim(1)
    first.claims.claim(2)
    died = metadata_of(first.commit())
    second = make_assignment(metadata=died, now=BEGAN)
    receive_all(second, 4)
    assert [second.crashes_of(offset) for offset in range(4)] == [0, 1, 1, 0]
    second.claims.claim(1)
    second.claims.claim(3)
    died = metadata_of(second.commit())
    third = make_assignment(metadata=died, now=BEGAN)
    receive_all(third, 4)
    assert [third.crashes_of(offset) for offset in range(4)] == [0, 2, 1, 1]
    third.claims.claim(2)
    let_go = metadata_of(third.close()[1])
    fourth = make_assignment(metadata=let_go, now=BEGAN)
    receive_all(fourth, 4)
    fourth.apply(says(RELEASED, 2), BEGAN)
    assert [fourth.crashes_of(offset) for offset in range(4)] == [0, 2, 1, 1], "who lets go in order has not died"


@pytest.mark.parametrize(
    ("said", "crashes"),
    [
        pytest.param(CommitMetadata(running=((0, 0),)), 1, id="once"),
        pytest.param(CommitMetadata(running=((0, 1),)), 2, id="twice: a suspect"),
        pytest.param(CommitMetadata(running=((0, 2),)), 3, id="a suspect that ran: it ran alone"),
        pytest.param(CommitMetadata(waiting=((0, 2),)), 2, id="a suspect that waited"),
        pytest.param(CommitMetadata(waiting=((0, 3),)), 3, id="convicted, its outcome not durable yet"),
    ],
)
def test_a_death_counts_for_what_the_last_commit_names_as_running(said: CommitMetadata, crashes: int) -> None:
    assert make_assignment(metadata=said).crashes_of(0) == crashes


def test_a_suspect_is_said_to_run_only_when_it_runs_alone() -> None:
    """Claimed for its outcome, that it has expired say, it is not running."""
    assignment = make_assignment(metadata=CommitMetadata(waiting=((0, 2), (1, 1))))
    receive_all(assignment, 2)
    assignment.claims.claim(0)
    assignment.claims.claim(1)
    assert metadata_of(assignment.commit()) == CommitMetadata(waiting=((0, 2),), running=((1, 1),))
    said_alone = [assignment.says_alone]
    finish(assignment, 1)
    assignment.claims.try_alone(0)
    assert metadata_of(assignment.commit()) == CommitMetadata(finished=((1, 1),), running=((0, 2),))
    assert [*said_alone, assignment.says_alone, assignment.claims.may_say_alone] == [False, True, True]
    assignment.claims.end_alone()
    assignment.acquitted.append(0)
    assignment.drain_done(BEGAN)
    commit = assignment.commit()
    assert metadata_of(commit) == CommitMetadata(finished=((1, 1),), running=((0, 0),)), (
        "acquitted, it runs as any other"
    )
    assert commit is not None
    assignment.acknowledge(commit, says_alone=assignment.says_alone)
    assert not assignment.claims.may_say_alone


@pytest.mark.parametrize("crashes", [2, 3])
def test_a_lease_that_ends_convicts_nobody(crashes: int) -> None:
    """A suspect that was handed over need not have run alone to the end."""
    assignment = make_assignment(metadata=CommitMetadata(handed_over=((0, crashes),)), now=BEGAN)
    assignment.end_leases(BEGAN + LEASE_SECONDS)
    assert assignment.crashes_of(0) == crashes


# A crash is told from letting go


def taken_over(metadata: CommitMetadata, *, committed: int | None = 0, now_ms: int | None = None) -> Assignment:
    return Assignment(
        topic="t",
        partition=0,
        tier=Tier.MID,
        retry_delay_seconds=0,
        credit=Credit(capacity_records=1),
        now=BEGAN,
        committed=committed,
        metadata=metadata,
        now_ms=now_ms,
    )


@pytest.mark.parametrize(
    ("committed", "said", "died"),
    [
        pytest.param(0, CommitMetadata(released=True), False, id="let go of in order"),
        pytest.param(0, CommitMetadata(), True, id="no mark"),
        pytest.param(None, CommitMetadata(), False, id="no commit: there may have been no owner"),
    ],
)
def test_an_owner_that_left_no_mark_died(committed: int | None, said: CommitMetadata, died: bool) -> None:
    assignment = taken_over(said, committed=committed)
    assert assignment.last_owner_died is died
    assert assignment.claims.must_be_named(10) is died
    assert not assignment.claims.is_announced
    assignment.log_ends_at(5)
    assert [assignment.claims.must_be_named(offset) for offset in (4, 5)] == [died, False]


def test_a_commit_that_was_refused_is_heard_of_as_a_notice_and_tells_that_its_owner_let_go() -> None:
    assignment = taken_over(CommitMetadata())
    died = [assignment.last_owner_died]
    assignment.apply(last_commit_of(drawn("..")), BEGAN)
    assert [*died, assignment.last_owner_died] == [True, False]
    assert not assignment.claims.must_be_named(0)


@pytest.mark.parametrize(
    ("said_by_ms", "is_heeded"),
    [
        pytest.param(1_000, False, id="the one before the owner that died"),
        pytest.param(2_000, True, id="the owner of the commit"),
        pytest.param(3_000, True, id="one after it"),
        pytest.param(None, True, id="one that does not say it"),
    ],
)
def test_a_last_commit_that_is_told_says_nothing_of_a_later_owner(said_by_ms: int | None, is_heeded: bool) -> None:
    """That later one ran offset 1, and died: it is charged, and what it ran may have its outcome."""
    assignment = taken_over(CommitMetadata(running=((1, 0),), owned_since_ms=2_000))
    assignment.begin_doubt(5_000)
    said = CommitMetadata(finished=((2, 1),), released=True, owned_since_ms=said_by_ms)
    notice = Notice(
        kind=LAST_COMMIT, worker="other", topic="t", partition=0, committed=0, metadata=encode_metadata(0, said)
    )
    assignment.apply(notice, BEGAN)
    assert assignment.last_owner_died is not is_heeded
    assert (assignment.doubt is None) is is_heeded
    assert assignment.crashes_of(1) == (0 if is_heeded else 1)
    assert assignment.is_finished(2), "what was finished stays so"


def test_each_owner_says_that_it_came_after_those_that_it_knew_of_whatever_the_clocks_say() -> None:
    first = taken_over(CommitMetadata(), now_ms=5_000)
    second = taken_over(metadata_of(first.commit()), now_ms=4_000)
    third = taken_over(metadata_of(first.commit()), now_ms=6_000)
    assert [each.owned_since_ms for each in (first, second, third)] == [5_000, 5_001, 6_000]
    second.apply(last_commit_of(third), BEGAN)
    assert metadata_of(second.commit()).owned_since_ms == 6_001


def test_the_first_commit_takes_the_mark_away() -> None:
    """Else the owner after this one could not tell its death."""
    assignment = taken_over(metadata_of(drawn("..").close()[1]))
    commit = assignment.commit()
    assert commit is not None
    assert not metadata_of(commit).released
    assignment.acknowledge(commit, says_alone=False)
    assert assignment.claims.is_announced


def test_a_worker_that_is_heard_of_did_not_die_although_its_last_commit_says_running() -> None:
    """The commit that hands over was refused, the one before it counts, and the hand-over is heard of by notices."""
    assignment = drawn("x1")
    assert assignment.crashes_of(0) == 1
    assignment.apply(says(RUNNING, 0, 1), BEGAN)
    assert [assignment.is_withheld(offset) for offset in (0, 1)] == [True, True]
    assignment.apply(says(RELEASED, 0, 1), BEGAN)
    assert [assignment.crashes_of(offset) for offset in (0, 1)] == [0, 1]
    assignment.apply(says(RUNNING, 0), BEGAN)
    assert receive_all(assignment, 2) == [WITHHOLD, RUN]
    assignment.end_leases(BEGAN + LEASE_SECONDS)
    assert assignment.crashes_of(0) == 1, "acquitted once, not twice"


def test_what_was_received_already_is_not_withheld_any_more() -> None:
    """It may run here since: whoever says so late does not take it back."""
    assignment = drawn("..")
    receive_all(assignment, 1)
    assignment.apply(says(RUNNING, 0, 1), BEGAN)
    assert [assignment.is_withheld(offset) for offset in (0, 1)] == [False, True]


def test_what_is_heard_of_twice_keeps_its_crashes() -> None:
    assignment = make_assignment(metadata=CommitMetadata(handed_over=((0, 1),)), now=BEGAN)
    assignment.apply(says(RUNNING, 0), BEGAN)
    assignment.apply(says(RELEASED, 0), BEGAN)
    assert assignment.crashes_of(0) == 1


@pytest.mark.parametrize("refused", [False, True], ids=["taken", "refused and told"])
def test_what_went_back_to_its_lane_before_the_last_commit_was_not_running(refused: bool) -> None:
    """The commit before named it; the last one does not, and counts, however it comes to be known."""
    former = drawn(".")
    receive_all(former, 1)
    former.claims.claim(0)
    earlier = former.commit()
    former.claims.release(0)
    notice = last_commit_of(former)
    assert notice.committed is not None
    read = earlier if refused else (notice.committed, notice.metadata or "")
    assignment = make_assignment(metadata=metadata_of(read), now=BEGAN)
    assignment.apply(notice, BEGAN)
    assert receive_all(assignment, 1) == [RUN]
    assert assignment.crashes_of(0) == 0


def test_what_is_finished_is_not_expected() -> None:
    assignment = drawn("oo.o", committed=4)
    assignment.apply(says(RUNNING, 1, 4, 7), BEGAN)
    assert not any(assignment.is_withheld(offset) for offset in (1, 4, 7))
