"""One owner of a partition after the other: what runs, what is skipped or withheld, whose deaths count against whom."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass

import msgspec
import pytest

from forebay_schemas.contract.coordination import LEASE_SECONDS, RENEW_SECONDS, Notice, NoticeKind
from forebay_schemas.contract.offsets_metadata import CommitMetadata, decode_metadata, encode_metadata, runs_of
from forebay_schemas.contract.tiers import Tier
from forebay_worker.intake.notices import KEPT_SECONDS, RecentNotices
from forebay_worker.partition.assignment import CONVICTED_CRASHES, DEAF_SECONDS_MAX, Assignment, Verdict
from forebay_worker.partition.claims import SUSPECT_CRASHES, Claims
from forebay_worker.partition.credit import Credit
from simulated.works import make_assignment

RUNNING, FINISHED = NoticeKind.RUNNING, NoticeKind.FINISHED
RELEASED, LAST_COMMIT = NoticeKind.RELEASED, NoticeKind.LAST_COMMIT

RUN, SKIP, WITHHOLD = Verdict.RUN, Verdict.SKIP, Verdict.WITHHOLD

OFFSETS = 3
"""How long the partition of the model is."""

BEGAN = 100.0
"""When the assignments of these tests begin, in monotonic seconds."""


def says(kind: NoticeKind, *offsets: int) -> Notice:
    """A former owner's notice."""
    return Notice(kind=kind, worker="other", topic="t", partition=0, offsets=list(offsets))


def last_commit_of(assignment: Assignment) -> Notice:
    """The notice of a commit that was refused while its worker let go of the partition."""
    _, commit = assignment.close()
    assert commit is not None
    return Notice(kind=LAST_COMMIT, worker="other", topic="t", partition=0, committed=commit[0], metadata=commit[1])


def drawn(partition: str, *, committed: int = 0) -> Assignment:
    """An assignment made of a commit: o finished, x running, 1 waiting after a crash, h handed over, . nothing said."""
    at = {state: [committed + place for place, each in enumerate(partition) if each == state] for state in "ox1h"}
    return make_assignment(
        committed=committed,
        now=BEGAN,
        metadata=CommitMetadata(
            finished=runs_of(at["o"]),
            running=tuple((offset, 0) for offset in at["x"]),
            waiting=tuple((offset, 1) for offset in at["1"]),
            handed_over=tuple((offset, 0) for offset in at["h"]),
        ),
    )


def receive_all(assignment: Assignment, count: int) -> list[Verdict]:
    return [assignment.receive(offset) for offset in range(count)]


def metadata_of(commit: tuple[int, str] | None) -> CommitMetadata:
    assert commit is not None
    metadata = decode_metadata(*commit)
    assert metadata is not None
    return metadata


def finished_in(commit: tuple[int, str]) -> set[int]:
    """All that a commit says is finished."""
    beyond = metadata_of(commit).finished
    return set(range(commit[0])).union(*(range(first, first + length) for first, length in beyond))


def finish(assignment: Assignment, *offsets: int) -> None:
    """The outcomes of these are durable, and the consumer's thread has taken note."""
    assignment.done.extend(offsets)
    assignment.drain_done(0.0)


# What the last commit says of a record decides about it


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
    """Finished, but whoever executes it has not let go of its claim yet."""
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
    """What is so of an offset that was handed over after one crash."""

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
        assignment.heed(notice, BEGAN + 5)
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
        assignment.heed(says(RUNNING, 1), BEGAN + seconds)
    assert assignment.end_leases(BEGAN + LEASE_SECONDS)
    assert [assignment.is_withheld(offset) for offset in (0, 1)] == [False, True]


def test_what_a_former_owner_finished_is_committed_and_never_run() -> None:
    assignment = drawn("h.")
    assignment.heed(says(FINISHED, 0), BEGAN)
    assert receive_all(assignment, 2) == [SKIP, RUN]
    assert assignment.commit() == (1, "")


def test_one_that_died_after_all_may_still_say_that_it_finished() -> None:
    """It was stopped for longer than the lease: its outcome is durable all the same."""
    assignment = drawn("h.")
    receive_all(assignment, 2)
    assignment.end_leases(BEGAN + LEASE_SECONDS)
    assignment.claims.claim(0)
    assignment.heed(says(FINISHED, 0), BEGAN + LEASE_SECONDS + 1)
    assert assignment.commit() == (1, "")


# Last commits that the broker refused


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
    assignment.heed(last_commit_of(former_owner()), BEGAN)
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
    assignment.heed(last_commit_of(former_owner()), BEGAN)
    assert assignment.commit() == (15, "")


@pytest.mark.parametrize("text", ["another client's", "f1zzzz"])
def test_a_last_commit_with_foreign_metadata_still_says_how_far_it_came(text: str) -> None:
    notice = Notice(kind=LAST_COMMIT, worker="other", topic="t", partition=0, committed=3, metadata=text)
    assignment = drawn("h....")
    assignment.heed(notice, BEGAN)
    assert receive_all(assignment, 4) == [SKIP, SKIP, SKIP, RUN]


def test_a_last_commit_without_an_offset_says_nothing() -> None:
    assignment = drawn("..")
    assignment.heed(says(LAST_COMMIT), BEGAN)
    assert receive_all(assignment, 2) == [RUN, RUN]


def test_a_last_commit_heard_late_spoils_no_commit_of_what_runs_here_already() -> None:
    """Both the former owner and this one run offset 2: each may only be named once."""
    assignment = make_assignment(now=BEGAN)
    receive_all(assignment, 5)
    for offset in (2, 4):
        assignment.claims.claim(offset)
    assignment.heed(last_commit_of(former_owner()), BEGAN)
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
    fourth.heed(says(RELEASED, 2), BEGAN)
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
    assignment.heed(last_commit_of(drawn("..")), BEGAN)
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
    assignment.heed(notice, BEGAN)
    assert assignment.last_owner_died is not is_heeded
    assert (assignment.doubt is None) is is_heeded
    assert assignment.crashes_of(1) == (0 if is_heeded else 1)
    assert assignment.is_finished(2), "what was finished stays so"


def test_each_owner_says_that_it_came_after_those_that_it_knew_of_whatever_the_clocks_say() -> None:
    first = taken_over(CommitMetadata(), now_ms=5_000)
    second = taken_over(metadata_of(first.commit()), now_ms=4_000)
    third = taken_over(metadata_of(first.commit()), now_ms=6_000)
    assert [each.owned_since_ms for each in (first, second, third)] == [5_000, 5_001, 6_000]
    second.heed(last_commit_of(third), BEGAN)
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
    assignment.heed(says(RUNNING, 0, 1), BEGAN)
    assert [assignment.is_withheld(offset) for offset in (0, 1)] == [True, True]
    assignment.heed(says(RELEASED, 0, 1), BEGAN)
    assert [assignment.crashes_of(offset) for offset in (0, 1)] == [0, 1]
    assignment.heed(says(RUNNING, 0), BEGAN)
    assert receive_all(assignment, 2) == [WITHHOLD, RUN]
    assignment.end_leases(BEGAN + LEASE_SECONDS)
    assert assignment.crashes_of(0) == 1, "acquitted once, not twice"


def test_what_was_received_already_is_not_withheld_any_more() -> None:
    """It may run here since: whoever says so late does not take it back."""
    assignment = drawn("..")
    receive_all(assignment, 1)
    assignment.heed(says(RUNNING, 0, 1), BEGAN)
    assert [assignment.is_withheld(offset) for offset in (0, 1)] == [False, True]


def test_what_is_heard_of_twice_keeps_its_crashes() -> None:
    assignment = make_assignment(metadata=CommitMetadata(handed_over=((0, 1),)), now=BEGAN)
    assignment.heed(says(RUNNING, 0), BEGAN)
    assignment.heed(says(RELEASED, 0), BEGAN)
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
    assignment.heed(notice, BEGAN)
    assert receive_all(assignment, 1) == [RUN]
    assert assignment.crashes_of(0) == 0


def test_what_is_finished_is_not_expected() -> None:
    assignment = drawn("oo.o", committed=4)
    assignment.heed(says(RUNNING, 1, 4, 7), BEGAN)
    assert not any(assignment.is_withheld(offset) for offset in (1, 4, 7))


class Owners:
    """A partition goes from owner to owner, by deaths and by letting go; former owners finish, give back, or die.

    ``deaths`` counts, for each offset, the workers that died after they had started it; ``died_alone`` are those that
    were running when a worker died that ran nothing else. ``durable`` are the outcomes;
    ``known`` those of them that an owner can know of: committed, or said by a notice that is not too old.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = BEGAN
        self.durable: set[int] = set()
        self.deaths = dict.fromkeys(range(OFFSETS), 0)
        self.died_alone: set[int] = set()
        self.convicted: set[int] = set()
        self.group: tuple[int | None, str] = (None, "")
        self.notices = RecentNotices()
        self.said: list[tuple[float, Notice]] = []
        self.formers: list[set[int]] = []
        self.take_over()

    def take_over(self) -> None:
        committed, text = self.group
        metadata = decode_metadata(committed or 0, text)
        assert metadata is not None
        self.owner = make_assignment(committed=committed, metadata=metadata, now=self.now)
        self.notices.tell(self.owner, self.now)
        self.known = finished_in((committed or 0, text))
        for at, notice in self.said:
            if notice.kind is FINISHED and at >= self.now - KEPT_SECONDS:
                self.known.update(notice.offsets)
            if notice.committed is not None and at >= self.now - LEASE_SECONDS:
                self.known |= finished_in((notice.committed, notice.metadata or ""))
        self.read_to = self.owner.offsets.next_offset or 0
        self.waiting: set[int] = set()
        self.withheld: set[int] = set()
        self.started: set[int] = set()
        self.lowest = committed or 0

    def say(self, notice: Notice) -> None:
        """On the coordination topic; the owner hears it at once."""
        notice = msgspec.structs.replace(notice, topic=self.owner.topic)
        self.notices.hear(notice, self.now)
        self.said.append((self.now, notice))
        self.owner.heed(notice, self.now)
        self.look_at_withheld()

    def look_at_withheld(self) -> None:
        released = {offset for offset in self.withheld if not self.owner.is_withheld(offset)}
        self.withheld -= released
        self.waiting.update(offset for offset in released if not self.owner.is_finished(offset))

    def receive(self) -> None:
        if self.read_to == OFFSETS:
            return
        offset, self.read_to = self.read_to, self.read_to + 1
        match self.owner.receive(offset):
            case Verdict.RUN:
                assert offset not in self.known
                self.waiting.add(offset)
            case Verdict.WITHHOLD:
                self.withheld.add(offset)
            case Verdict.SKIP:
                assert offset in self.durable, "lost"

    def claim(self) -> None:
        if not self.waiting:
            return
        offset = self.random.choice(sorted(self.waiting))
        assert not any(offset in former for former in self.formers), "a former owner runs it, and says so"
        claims, crashes = self.owner.claims, self.owner.crashes_of(offset)
        if claims.alone is not None or claims.may_say_alone or (crashes >= SUSPECT_CRASHES and claims.running()):
            return
        assert claims.claim(offset)
        self.waiting.remove(offset)
        if crashes >= CONVICTED_CRASHES:
            assert offset in self.died_alone, "an innocent is convicted"
            self.convicted.add(offset)
            self.durable.add(offset)
            finish(self.owner, offset)
            return
        self.started.add(offset)
        if crashes == SUSPECT_CRASHES:
            claims.try_alone(offset)

    def end(self) -> None:
        if not self.owner.claims.running():
            return
        offset = self.random.choice(self.owner.claims.running())
        if self.owner.claims.alone == offset:
            self.owner.claims.end_alone()
            self.owner.acquitted.append(offset)
        if self.random.random() < 0.5:
            self.durable.add(offset)
            finish(self.owner, offset)
        else:
            self.owner.claims.release(offset)
            self.waiting.add(offset)

    def commit(self) -> None:
        commit = self.owner.commit()
        if commit is not None:
            self.group = commit
            self.owner.acknowledge(commit, says_alone=self.owner.says_alone)

    def die(self) -> None:
        running = self.owner.claims.running()
        if len(running) == 1:
            self.died_alone.update(running)
        for offset in self.started:
            self.deaths[offset] += 1
        self.take_over()

    def let_go(self) -> None:
        running, commit = self.owner.close()
        if commit is not None:
            if self.random.random() < 0.5:
                self.group = commit
            else:
                last = Notice(
                    kind=LAST_COMMIT, worker="w", topic="", partition=0, committed=commit[0], metadata=commit[1]
                )
                self.say(last)
        if running:
            self.formers.append(set(running))
            self.say(says(RUNNING, *running))
        self.take_over()

    def former_owner_ends(self) -> None:
        if not self.formers:
            return
        former = self.random.choice(self.formers)
        offset = self.random.choice(sorted(former))
        match self.random.choice(["finished", "given back", "died"]):
            case "finished":
                former.remove(offset)
                self.durable.add(offset)
                self.known.add(offset)
                self.say(says(FINISHED, offset))
            case "given back":
                former.remove(offset)
                self.say(says(RELEASED, offset))
            case _:
                for each in former:
                    self.deaths[each] += 1
                former.clear()
        self.formers = [each for each in self.formers if each]

    def time_passes(self) -> None:
        self.now += RENEW_SECONDS
        for former in self.formers:
            self.say(says(RUNNING, *sorted(former)))
        self.owner.end_leases(self.now)
        self.look_at_withheld()

    def commits_at_the_lowest_without_an_outcome_and_never_lower(self) -> None:
        commit = self.owner.commit()
        if commit is None:
            return
        assert commit[0] <= min(set(range(OFFSETS + 1)) - self.durable)
        assert commit[0] >= self.lowest
        self.lowest = commit[0]
        assert finished_in(commit) <= self.durable
        metadata = metadata_of(commit)
        claims = self.owner.claims
        assert {offset for offset, _ in metadata.running} == set(claims.running())
        assert claims.alone is None or claims.running() == (claims.alone,)

    def charges_nobody_for_deaths_that_were_none_of_its_own(self) -> None:
        for offset, deaths in self.deaths.items():
            assert self.owner.crashes_of(offset) <= deaths

    def step(self) -> None:
        steps = [self.receive] * 3 + [self.claim] * 3 + [self.end, self.commit, self.let_go] * 2
        steps += [self.former_owner_ends] * 2 + [self.time_passes, self.die]
        self.random.choice(steps)()
        self.commits_at_the_lowest_without_an_outcome_and_never_lower()
        self.charges_nobody_for_deaths_that_were_none_of_its_own()

    def end_well(self) -> None:
        """Nobody dies any more."""
        for _ in range(200):
            if len(self.durable) == OFFSETS:
                break
            self.receive()
            self.claim()
            self.end()
            self.former_owner_ends()
            self.time_passes()


@pytest.mark.parametrize("seed", range(3))
def test_whoever_dies_and_whoever_lets_go_nothing_is_lost_and_nobody_is_charged_wrongly(seed: int) -> None:
    for number in range(80):
        owners = Owners(seed * 1_000 + number)
        for _ in range(60):
            owners.step()
        owners.end_well()
        assert len(owners.durable) == OFFSETS, "stuck"


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
    assert not assignment.end_leases(end + 5, heard_until=end - 0.1)
    assert assignment.is_withheld(7)
    assert assignment.end_leases(end + 5, heard_until=end)


def test_who_can_never_hear_does_not_withhold_for_ever() -> None:
    assignment = make_assignment(committed=7, metadata=CommitMetadata(handed_over=((7, 0),)), now=BEGAN)
    end = BEGAN + LEASE_SECONDS + DEAF_SECONDS_MAX
    assert not assignment.end_leases(end - 0.1, heard_until=BEGAN)
    assert assignment.end_leases(end, heard_until=BEGAN)
