"""One owner of a partition: what runs, what is skipped or withheld, what is committed and claimed."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pytest

from forebay_schemas.contract.coordination import LEASE_SECONDS, Notice
from forebay_schemas.contract.offsets_metadata import CommitMetadata
from forebay_worker.partition.assignment import UNREAD_SECONDS_MAX, Verdict
from forebay_worker.partition.claims import Claims
from simulated.owners import (
    BEGAN,
    FINISHED,
    RELEASED,
    RUN,
    RUNNING,
    SKIP,
    WITHHOLD,
    drawn,
    finish,
    metadata_of,
    receive_all,
    says,
)
from simulated.works import make_assignment


@pytest.mark.parametrize(
    ("said", "verdict", "crashes"),
    [
        pytest.param(".", RUN, 0, id="nothing"),
        pytest.param("o", SKIP, 0, id="finished"),
        pytest.param("x", RUN, 1, id="running, and nobody says that it still does: a worker died"),
        pytest.param("1", RUN, 1, id="waiting, after an earlier crash"),
        pytest.param("h", WITHHOLD, 0, id="handed over"),
    ],
)
def test_what_the_last_commit_says_of_a_record_decides_about_it(said: str, verdict: Verdict, crashes: int) -> None:
    assignment = drawn("." + said)
    assert receive_all(assignment, 2) == [RUN, verdict]
    assert assignment.crashes_of(1) == crashes


def test_a_record_that_comes_again_is_skipped() -> None:
    assignment = drawn(".h")
    receive_all(assignment, 2)
    assert receive_all(assignment, 2) == [SKIP, SKIP]


# What is committed


def test_nothing_is_committed_before_anything_is_known() -> None:
    assignment = make_assignment(committed=None)
    assert assignment.commit() is None
    assert assignment.close() == ((), None)


def test_the_commit_names_what_is_finished_and_what_runs() -> None:
    assignment = drawn(".....")
    receive_all(assignment, 5)
    for offset in (0, 2, 4):
        assert assignment.claims.claim(offset)
    finish(assignment, 0, 3)
    assert metadata_of(assignment.commit()) == CommitMetadata(finished=((3, 1),), running=((2, 0), (4, 0)))


@pytest.mark.parametrize(("running", "named"), [((), ()), ((0, 2), (0, 2)), ((2,), (2,))])
def test_the_commit_names_what_runs(running: tuple[int, ...], named: tuple[int, ...]) -> None:
    assignment = drawn("....")
    receive_all(assignment, 4)
    finish(assignment, 1, 3)
    for offset in running:
        assignment.claims.claim(offset)
    metadata = metadata_of(assignment.commit())
    assert metadata.finished == ((1, 1), (3, 1))
    assert metadata.running == tuple((offset, 0) for offset in named)


def test_what_is_finished_is_not_named_as_running() -> None:
    """Finished, but its claim is not released yet."""
    assignment = drawn("....")
    receive_all(assignment, 4)
    for offset in (0, 1, 2, 3):
        assignment.claims.claim(offset)
    for offset in (0, 2):
        assignment.offsets.finish(offset)
    commit = assignment.commit()
    assert metadata_of(commit) == CommitMetadata(finished=((2, 1),), running=((1, 0), (3, 0)))


def test_the_commit_keeps_the_crashes_of_what_waits_and_of_what_runs() -> None:
    assignment = drawn("1x1.")
    receive_all(assignment, 4)
    assignment.claims.claim(1)
    assignment.claims.claim(3)
    assert metadata_of(assignment.commit()) == CommitMetadata(running=((1, 1), (3, 0)), waiting=((0, 1), (2, 1)))
    finish(assignment, 0, 1, 2)
    assert metadata_of(assignment.commit()) == CommitMetadata(running=((3, 0),))


def test_what_is_withheld_stays_handed_over_in_the_commits_of_its_new_owner() -> None:
    """Should that one die too, the next still has to wait for the one that runs it."""
    assignment = drawn("h.h")
    receive_all(assignment, 3)
    finish(assignment, 1)
    assert metadata_of(assignment.commit()) == CommitMetadata(finished=((1, 1),), handed_over=((0, 0), (2, 0)))


# Letting go


def test_letting_go_hands_over_what_runs_and_starts_nothing_more() -> None:
    assignment = drawn("x1h..")
    receive_all(assignment, 5)
    assignment.claims.claim(0)
    assignment.claims.claim(4)
    finish(assignment, 3)
    running, commit = assignment.close()
    assert running == (0, 4)
    assert metadata_of(commit) == CommitMetadata(
        finished=((3, 1),), waiting=((1, 1),), handed_over=((0, 1), (2, 0), (4, 0)), released=True
    )
    assert not assignment.claims.is_open
    assert not assignment.claims.claim(1)


# Handed over: withheld until its former owner has said what became of it, or is silent for the length of a lease


@dataclass(frozen=True, slots=True, kw_only=True)
class Then:
    """State of an offset that was handed over after one crash."""

    withheld: bool
    finished: bool = False
    crashes: int = 0


@pytest.mark.parametrize(
    ("notices", "after_seconds", "then"),
    [
        pytest.param([], LEASE_SECONDS - 0.1, Then(withheld=True), id="silent for less than the lease"),
        pytest.param([], LEASE_SECONDS, Then(withheld=False, crashes=2), id="silent for the lease: it died too"),
        pytest.param([says(FINISHED, 1)], 0, Then(withheld=False, finished=True), id="finished"),
        pytest.param([says(RELEASED, 1)], 0, Then(withheld=False, crashes=1), id="given back: nobody died of it"),
        pytest.param(
            [says(RUNNING, 1)], LEASE_SECONDS + 4, Then(withheld=True), id="still runs: the lease begins anew"
        ),
        pytest.param([says(RUNNING, 1)], 5 + LEASE_SECONDS, Then(withheld=False, crashes=2), id="and ends anew"),
        pytest.param([says(RUNNING, 2)], LEASE_SECONDS, Then(withheld=False, crashes=2), id="another one still runs"),
        pytest.param([says(FINISHED, 2), says(RELEASED, 3)], 0, Then(withheld=True), id="others ended"),
        pytest.param(
            [says(RELEASED, 1), says(RUNNING, 1)], 0, Then(withheld=False, crashes=1), id="nothing is taken back"
        ),
    ],
)
def test_what_was_handed_over_waits_for_its_former_owner(
    notices: list[Notice], after_seconds: float, then: Then
) -> None:
    metadata = CommitMetadata(handed_over=((1, 1), (2, 0), (3, 0)))
    assignment = make_assignment(metadata=metadata, now=BEGAN)
    assert receive_all(assignment, 2) == [RUN, WITHHOLD]
    for notice in notices:
        assignment.apply(notice, BEGAN + 5)
    assignment.end_leases(BEGAN + after_seconds)
    assert assignment.is_withheld(1) is then.withheld
    assert assignment.is_finished(1) is then.finished
    assert assignment.crashes_of(1) == then.crashes


def test_the_end_of_a_lease_is_told_once() -> None:
    assignment = drawn("hh")
    assert not assignment.end_leases(BEGAN + LEASE_SECONDS - 0.1)
    assert assignment.end_leases(BEGAN + LEASE_SECONDS)
    assert not assignment.end_leases(BEGAN + LEASE_SECONDS + 0.1)


def test_each_offset_has_a_lease_of_its_own() -> None:
    """Two former owners: that one lives must not hold back what the other one died of."""
    assignment = drawn("hh")
    for seconds in (3, 6, 9):
        assignment.apply(says(RUNNING, 1), BEGAN + seconds)
    assert assignment.end_leases(BEGAN + LEASE_SECONDS)
    assert [assignment.is_withheld(offset) for offset in (0, 1)] == [False, True]


def test_what_a_former_owner_finished_is_committed_and_never_run() -> None:
    assignment = drawn("h.")
    assignment.apply(says(FINISHED, 0), BEGAN)
    assert receive_all(assignment, 2) == [SKIP, RUN]
    assert assignment.commit() == (1, "")


def test_one_that_died_after_all_may_still_say_that_it_finished() -> None:
    """It was stopped for longer than the lease: its outcome is durable all the same."""
    assignment = drawn("h.")
    receive_all(assignment, 2)
    assignment.end_leases(BEGAN + LEASE_SECONDS)
    assignment.claims.claim(0)
    assignment.apply(says(FINISHED, 0), BEGAN + LEASE_SECONDS + 1)
    assert assignment.commit() == (1, "")


# Claims


def test_after_close_nothing_is_claimed() -> None:
    claims = Claims()
    assert claims.claim(3)
    assert claims.claim(1)
    assert claims.running() == (1, 3)
    assert claims.close() == (1, 3)
    assert not claims.is_open
    assert not claims.claim(2)
    assert claims.running() == (1, 3)
    claims.release(1)
    claims.release(7)
    assert claims.close() == (3,)


def test_what_close_returned_is_all_that_runs_whatever_the_threads_do() -> None:
    for _ in range(30):
        claims = Claims()
        granted: list[list[int]] = [[] for _ in range(4)]
        start = threading.Barrier(5)

        def claim_all(
            number: int,
            claims: Claims = claims,
            granted: list[list[int]] = granted,
            start: threading.Barrier = start,
        ) -> None:
            start.wait()
            for offset in range(number, 4_000, 4):
                if not claims.claim(offset):
                    return
                granted[number].append(offset)

        threads = [threading.Thread(target=claim_all, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        start.wait()
        while sum(map(len, granted)) < 200:
            pass
        closed_with = claims.close()
        for thread in threads:
            thread.join()
        assert sorted(offset for each in granted for offset in each) == list(closed_with)
        assert claims.running() == closed_with


def test_silence_counts_only_while_one_can_hear() -> None:
    assignment = make_assignment(committed=7, metadata=CommitMetadata(handed_over=((7, 0),)), now=BEGAN)
    end = BEGAN + LEASE_SECONDS
    assert assignment.lease_due(end - 0.1) is None
    assert assignment.lease_due(end + 5) == end
    assert not assignment.end_leases(end + 5, read_until=end - 0.1)
    assert assignment.is_withheld(7)
    assert assignment.end_leases(end + 5, read_until=end)


def test_who_can_never_hear_does_not_withhold_for_ever() -> None:
    assignment = make_assignment(committed=7, metadata=CommitMetadata(handed_over=((7, 0),)), now=BEGAN)
    end = BEGAN + LEASE_SECONDS + UNREAD_SECONDS_MAX
    assert not assignment.end_leases(end - 0.1, read_until=BEGAN)
    assert assignment.end_leases(end, read_until=BEGAN)
