"""Starts that wait for a commit, and suspects: what they wait for, who else may start meanwhile, who is acquitted."""

from __future__ import annotations

import pytest

from forebay_worker.dispatch.suspects import (
    ALONE_SECONDS_MAX,
    ANNOUNCED_SECONDS_MAX,
    CLEARED_SECONDS_MAX,
    COMMIT_SECONDS_MAX,
    NAMED_SECONDS_MAX,
    NamedStarts,
    Phase,
    Suspects,
    is_suspect,
    must_wait,
)
from forebay_worker.partition.assignment import Assignment
from forebay_worker.partition.claims import ANY_OFFSET, SUSPECT_CRASHES
from forebay_worker.partition.quiet import Quiet
from forebay_worker.request.work import Work
from simulated.works import make_assignment, make_work


def make_suspect(offset: int = 0, assignment: Assignment | None = None) -> Work:
    work = make_work(assignment, offset=offset)
    work.crashes = SUSPECT_CRASHES
    return work


def commit(work: Work) -> None:
    """The assignment's commit as it would be now is the group's last."""
    assignment = work.assignment
    assignment.drain_done(0.0)
    made = assignment.commit()
    assert made is not None
    assignment.acknowledge(made, says_alone=assignment.says_alone)


class Court:
    """Trials whose time is moved by hand."""

    def __init__(self, *works: Work) -> None:
        self.quiet = Quiet()
        self.suspects = Suspects(self.quiet)
        self.now = 100.0
        self.in_flight = 0
        self.may_start = True
        for work in works:
            work.assignment._crashes[work.offset] = SUSPECT_CRASHES
            work.assignment.receive(work.offset)
            self.suspects.add(work)

    def step(self, seconds: float = 0.0) -> Work | None:
        self.now += seconds
        return self.suspects.step(self.now, in_flight=self.in_flight, may_start=lambda: self.may_start)

    def phase(self) -> Phase | None:
        return self.suspects.phase

    def excludes_others(self) -> bool:
        return self.suspects.excludes_others

    def is_idle(self) -> bool:
        return self.suspects.is_idle

    def run_alone(self, work: Work) -> None:
        self.step()
        commit(work)
        assert self.step() is work


@pytest.mark.parametrize(
    ("crashes", "expected"), [(0, False), (1, False), (2, True), (3, False)], ids=["none", "one", "two", "convicted"]
)
def test_two_crashes_make_a_suspect(crashes: int, expected: bool) -> None:
    work = make_work()
    work.crashes = crashes
    assert is_suspect(work) is expected


def test_a_suspect_starts_when_nothing_else_runs_and_a_commit_says_so() -> None:
    work = make_suspect()
    court = Court(work)
    court.in_flight = 2
    assert court.step() is None
    assert (court.phase(), court.excludes_others()) == (Phase.GATHERING, True)
    assert work.assignment.claims.running() == ()
    court.in_flight = 0
    assert court.step() is None
    assert court.phase() is Phase.NAMING
    assert work.assignment.claims.is_urgent
    assert court.step(1.0) is None
    commit(work)
    assert work.assignment.says_alone
    assert court.step() is work
    assert court.phase() is Phase.ALONE


def test_a_suspect_starts_only_when_no_intake_decodes_and_none_does_until_its_trial_is_over() -> None:
    """What is decoded may kill the worker too, and would convict it."""
    work = make_suspect()
    court = Court(work)
    assert court.quiet.may_read("high")
    court.step()
    court.step()
    assert court.phase() is Phase.GATHERING
    court.quiet.done("high")
    assert not court.quiet.may_read("low")
    court.run_alone(work)
    court.suspects.acquit(work, court.now)
    court.step()
    assert not court.quiet.may_read("low"), "the last commit still says that it runs alone"
    commit(work)
    court.step()
    assert court.quiet.may_read("low")


@pytest.mark.parametrize("how", ["ends", "outlives its time"])
def test_who_ends_or_outlives_its_time_is_acquitted_and_others_start_once_a_commit_says_so(how: str) -> None:
    work = make_suspect()
    court = Court(work)
    court.run_alone(work)
    if how == "ends":
        court.suspects.acquit(work, court.now)
    else:
        court.step(ALONE_SECONDS_MAX - 0.1)
        assert work.crashes == SUSPECT_CRASHES
        court.step(0.1)
    assert work.crashes == 0
    assert court.excludes_others(), "a crash of another would convict it"
    commit(work)
    assert work.assignment.crashes_of(0) == 0
    court.step()
    assert court.is_idle()


def test_one_suspect_at_a_time_and_others_go_on_as_long_between_them() -> None:
    first, second = (make_suspect(offset) for offset in range(2))
    court = Court(first, second)
    court.run_alone(first)
    court.step(4.0)
    court.suspects.acquit(first, court.now)
    commit(first)
    court.step()
    court.step(3.9)
    assert not court.excludes_others()
    court.step(0.1)
    assert court.excludes_others()
    assert len(court.suspects) == 0, "claimed"
    assert second.assignment.claims.running() == (1,)


def test_who_cannot_be_alone_lets_others_go_on_and_tries_again() -> None:
    work = make_suspect()
    court = Court(work)
    court.in_flight = 1
    for seconds in (30.0, 60.0, 120.0, 240.0, 480.0, 600.0, 600.0):
        court.step()
        court.step(seconds - 0.1)
        assert court.phase() is Phase.GATHERING
        court.step(0.1)
        assert not court.excludes_others()
        assert len(court.suspects) == 1
        court.step(seconds - 0.1)
        assert not court.excludes_others(), "they go on for as long"
        court.step(0.1)
        assert court.phase() is Phase.GATHERING


def test_a_backend_that_serves_nobody_gets_its_probes() -> None:
    work = make_suspect()
    court = Court(work)
    court.in_flight = 1
    court.step()
    court.may_start = False
    court.step()
    assert not court.excludes_others()
    court.step(100.0)
    assert not court.excludes_others()


def test_without_an_answer_to_its_commit_a_suspect_runs_alone_all_the_same() -> None:
    work = make_suspect()
    court = Court(work)
    court.step()
    assert court.step(COMMIT_SECONDS_MAX - 0.1) is None
    assert court.step(0.1) is work


def test_without_an_answer_to_the_commit_that_clears_a_suspect_others_start_in_the_end() -> None:
    work = make_suspect()
    court = Court(work)
    court.run_alone(work)
    court.suspects.acquit(work, court.now)
    court.step(CLEARED_SECONDS_MAX - 0.1)
    assert court.excludes_others()
    court.step(0.1)
    assert court.is_idle()


@pytest.mark.parametrize("phase", [Phase.GATHERING, Phase.NAMING, Phase.ALONE, Phase.CLEARING])
def test_a_partition_that_is_given_up_ends_the_trial(phase: Phase) -> None:
    work = make_suspect()
    court = Court(work)
    court.in_flight = int(phase is Phase.GATHERING)
    court.step()
    if phase in (Phase.ALONE, Phase.CLEARING):
        commit(work)
        court.step()
    if phase is Phase.CLEARING:
        court.suspects.acquit(work, court.now)
    assert court.phase() is phase
    work.assignment.close()
    given = [court.step() for _ in range(3)]
    if phase is Phase.NAMING:
        assert given[0] is work, "for dispatch to give it back"
        court.suspects.release(work, court.now)
        court.step()
    assert court.is_idle()


def test_who_is_not_started_after_all_stays_a_suspect() -> None:
    work = make_suspect()
    court = Court(work)
    court.run_alone(work)
    court.suspects.release(work, court.now)
    assert work.crashes == SUSPECT_CRASHES
    commit(work)
    assert work.assignment.crashes_of(0) == SUSPECT_CRASHES


def test_what_expires_while_it_waits_for_its_trial_is_taken_out() -> None:
    first, second = (make_suspect(offset) for offset in range(2))
    court = Court(first, second)
    court.in_flight = 1
    court.step()
    assert court.suspects.take_out(lambda _: True) == [second, first]
    assert court.is_idle()


def test_a_worker_that_stops_gives_a_claimed_suspect_back() -> None:
    work = make_suspect()
    court = Court(work, make_suspect(1))
    court.step()
    court.suspects.stop(court.now)
    assert work.assignment.claims.running() == ()
    assert len(court.suspects) == 0


# What the last owner may have started


def careful_work(*, below: int = ANY_OFFSET, announced: bool = True) -> Work:
    assignment = make_assignment()
    assignment.claims.careful_below = below
    assignment.claims.is_announced = announced
    work = make_work(assignment)
    assignment.receive(0)
    assignment.claims.claim(0)
    return work


@pytest.mark.parametrize(
    ("below", "announced", "expected"),
    [
        pytest.param(0, True, False, id="let go of in order, and said that it is owned"),
        pytest.param(0, False, True, id="no commit yet: the next owner could not tell a crash"),
        pytest.param(1, True, True, id="its last owner may have started it, and died"),
    ],
)
def test_what_waits_for_a_commit(below: int, announced: bool, expected: bool) -> None:
    assert must_wait(careful_work(below=below, announced=announced)) is expected


def test_a_start_waits_until_a_commit_names_it() -> None:
    work = careful_work()
    starts = NamedStarts()
    starts.hold(work, 0.0)
    assert work.assignment.claims.is_urgent
    assert starts.take(0.1) is None
    commit(work)
    assert starts.take(0.2) is work
    assert len(starts) == 0


@pytest.mark.parametrize(
    ("below", "announced", "seconds"), [(1, True, NAMED_SECONDS_MAX), (0, False, ANNOUNCED_SECONDS_MAX)]
)
def test_commits_that_fail_stop_no_request(below: int, announced: bool, seconds: float) -> None:
    work = careful_work(below=below, announced=announced)
    starts = NamedStarts()
    starts.hold(work, 0.0)
    assert starts.take(seconds - 0.1) is None
    assert starts.take(seconds) is work


def test_what_is_claimed_again_waits_for_another_commit() -> None:
    work = careful_work()
    commit(work)
    assert work.assignment.claims.is_named(0)
    work.assignment.claims.release(0)
    work.assignment.claims.claim(0)
    assert not work.assignment.claims.is_named(0)


def test_a_start_whose_partition_is_given_up_is_returned_at_once() -> None:
    work = careful_work()
    starts = NamedStarts()
    starts.hold(work, 0.0)
    work.assignment.close()
    assert starts.take(0.0) is work


def test_a_worker_that_stops_takes_all() -> None:
    work = careful_work()
    starts = NamedStarts()
    starts.hold(work, 0.0)
    assert starts.take_all() == [work]
    assert len(starts) == 0
