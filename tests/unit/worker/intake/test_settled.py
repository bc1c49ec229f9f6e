"""Requests that need not run again after a crash: their outcomes are on the results topic."""

from __future__ import annotations

import pytest
import structlog

from forebay_schemas.contract.coordination import LEASE_SECONDS, Notice, NoticeKind
from forebay_schemas.contract.offsets_metadata import LONG_AGO_MS, CommitMetadata, decode_metadata, encode_metadata
from forebay_worker.intake import settled
from forebay_worker.intake.settled import MARGIN_MS, Doubts, SeenOutcomes, look_from_ms
from forebay_worker.partition.doubt import KEPT_SECONDS, Doubt
from forebay_worker.partition.outcomes_since import LATE_SECONDS
from simulated.bay import P0, TIER, TOPIC, Bay, ManualLook, ManualLooks
from simulated.ports import NOW_MS, Key, MemoryRecord
from simulated.works import POOL, envelope, make_assignment, make_work

SINCE_MS = NOW_MS - 12_000
S0: Key = (POOL.retry(TIER, 30), 0)


@pytest.mark.parametrize(
    ("since_ms", "enqueued_ms", "from_ms"),
    [
        pytest.param(NOW_MS - 12_000, None, NOW_MS - 17_000, id="the commit's time"),
        pytest.param(NOW_MS - 12_000, NOW_MS - 60_000, NOW_MS - 17_000, id="of what waited before it too"),
        pytest.param(NOW_MS - 60_000, NOW_MS - 12_000, NOW_MS - 17_000, id="nor one from before it was enqueued"),
        pytest.param(None, NOW_MS - 12_000, NOW_MS - 17_000, id="a commit of an earlier version has no time"),
        pytest.param(None, None, 0, id="nothing is known: all results"),
        pytest.param(NOW_MS + 60_000, NOW_MS - 12_000, NOW_MS - 17_000, id="a time to come was a wrong clock's"),
        pytest.param(NOW_MS + MARGIN_MS, NOW_MS - 12_000, NOW_MS, id="clocks differ a little"),
        pytest.param(3_000, None, 0, id="before all time"),
    ],
)
def test_results_are_looked_at_from_the_last_moment_before_which_there_can_be_no_outcome(
    since_ms: int | None, enqueued_ms: int | None, from_ms: int
) -> None:
    assert look_from_ms(since_ms, enqueued_ms=enqueued_ms, now_ms=NOW_MS) == from_ms


def test_what_was_seen_is_known_however_much_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settled, "_RECENT_MAX", 100)
    seen = SeenOutcomes()
    for number in range(0, 1_000, 2):
        seen.add(f"r-{number}", number % 3)
    assert all(seen.has(f"r-{number}", number % 3) for number in range(0, 1_000, 2))
    assert not any(seen.has(f"r-{number}", number % 3) for number in range(1, 1_000, 2))
    assert not seen.has("r-0", 1), "its replay is another request"
    assert seen.count == 500


def test_four_million_outcomes_fit() -> None:
    seen = SeenOutcomes()
    seen.count = 3_800_000
    assert not seen.is_full
    seen.count = 4_200_000
    assert seen.is_full


def crashed(*offsets: int, metadata: CommitMetadata | None = None, committed: int = 0, take_time: bool = True) -> Bay:
    """A bay that gets a partition with these records, whose owner died; the records have been read."""
    bay = Bay()
    bay.looks.take_time = take_time
    bay.fill(P0, *offsets)
    metadata = metadata or CommitMetadata(outcomes_since_ms=SINCE_MS)
    bay.consumer.committed_by_group[P0] = (committed, encode_metadata(committed, metadata))
    bay.consumer.assign(P0)
    bay.step(3)
    return bay


def look_ends(bay: Bay, *ended: tuple[str, int]) -> None:
    bay.looks.ended.update(ended)
    for look in bay.looks.asked:
        look.is_over = True
    bay.step()


def test_what_has_its_outcome_is_not_run_again_and_the_rest_waits_until_that_is_known() -> None:
    bay = crashed(0, 1, 2, 3)
    assert bay.offsets() == []
    assert [look.since_ms for look in bay.looks.asked] == [NOW_MS - MARGIN_MS], "they came after the commit"
    look_ends(bay, ("0-0", 0), ("0-2", 0), ("0-9", 0))
    assert bay.offsets() == [1, 3]
    assert bay.intake.settled_records[TIER] == 2
    bay.settle()
    assert bay.committed() == 1, "what has its outcome is finished"
    bay.finish(1, 3)
    bay.settle()
    assert bay.committed() == 4


def test_each_broken_record_is_answered_although_another_of_the_same_key_was() -> None:
    """A client's key may be its customer's: what of one of its records ended says nothing of the next."""
    bay = Bay()
    for offset, value in enumerate((b"rubbish", b"\xff", None)):
        bay.consumer.append(
            MemoryRecord(
                topic_name=TOPIC, partition_number=0, offset_number=offset, value_bytes=value, key_bytes=b"customer"
            )
        )
    bay.looks.ended.add(("customer", 0))
    bay.consumer.committed_by_group[P0] = (0, encode_metadata(0, CommitMetadata(outcomes_since_ms=SINCE_MS)))
    bay.consumer.assign(P0)
    bay.step(3)
    assert bay.offsets() == [0, 1, 2]
    assert {work.request_id for work in bay.handed} == {"customer"}


def test_what_came_after_that_owner_died_is_in_no_doubt() -> None:
    bay = crashed(0)
    look_ends(bay, ("0-1", 0))
    put(bay, P0, 1, "0-1")
    bay.step()
    assert bay.offsets() == [0, 1], "an outcome under its id is another's: the owner that died cannot have read it"
    assert len(bay.looks.asked) == 1


def test_what_was_enqueued_long_after_the_partition_came_is_in_no_doubt_whatever_its_offset() -> None:
    bay = crashed()
    assignment = next(iter(bay.intake._ownership.assignments.values()))
    bay.clock.advance(MARGIN_MS / 1000 + 1)
    put(bay, P0, 0, "young", enqueued_at=bay.clock.wall_ms())
    bay.step()
    assert (bay.offsets(), bay.looks.asked, assignment.doubt) == ([0], [], None)


def put(bay: Bay, key: Key, offset: int, request_id: str, *, enqueued_at: int = NOW_MS, replays: int = 0) -> None:
    bay.consumer.append(
        MemoryRecord(
            topic_name=key[0],
            partition_number=key[1],
            offset_number=offset,
            value_bytes=envelope(request_id, ttl_ms=3_600_000),
            header_list=[("forebay-replay-count", str(replays).encode())] if replays else None,
            timestamp_ms=enqueued_at,
        )
    )


def test_the_outcome_of_what_was_submitted_is_none_of_its_replay() -> None:
    bay = crashed()
    put(bay, P0, 0, "r", replays=1)
    put(bay, P0, 1, "s", replays=1)
    bay.step()
    look_ends(bay, ("r", 0), ("s", 1))
    assert bay.offsets() == [0]


@pytest.mark.parametrize(
    ("metadata", "looks"),
    [
        pytest.param(CommitMetadata(released=True, outcomes_since_ms=SINCE_MS), 0, id="let go of in order"),
        pytest.param(
            CommitMetadata(released=True, outcomes_since_ms=SINCE_MS, is_open=True),
            1,
            id="let go of in doubt",
        ),
        pytest.param(CommitMetadata(outcomes_since_ms=SINCE_MS), 1, id="nothing ran at its last commit"),
        pytest.param(CommitMetadata(running=((0, 0),)), 1, id="a commit of an earlier version"),
    ],
)
def test_only_what_was_not_let_go_of_in_order_is_looked_for(metadata: CommitMetadata, looks: int) -> None:
    bay = crashed(0, metadata=metadata, take_time=False)
    assert len(bay.looks.asked) == looks
    assert bay.offsets() == [0]


def test_an_owner_that_died_before_any_commit_was_taken_may_have_left_outcomes() -> None:
    bay = Bay()
    bay.looks.take_time = True
    bay.fill(P0, 0, 1)
    bay.consumer.assign(P0)
    with structlog.testing.capture_logs() as said:
        bay.step(3)
    assert bay.offsets() == []
    assert bay.intake.looked_for == ["forebay.test.requests.mid/0"]
    [told] = [event for event in said if event["log_level"] == "warning"]
    assert told["event"].startswith("a partition that is not empty has no commit")
    assert (told["topic"], told["partition"], told["first_offset"]) == ("forebay.test.requests.mid", 0, 0)
    look_ends(bay, ("0-0", 0))
    assert bay.intake.looked_for == []
    assert bay.offsets() == [1]
    bay.fill(P0, 2)
    bay.step()
    assert bay.offsets() == [1, 2], "what came after the partition did is in no doubt"


def test_a_last_commit_that_is_told_ends_the_doubt() -> None:
    bay = crashed(0, 1)
    assert bay.offsets() == []
    told = CommitMetadata(finished=((1, 1),), released=True, outcomes_since_ms=SINCE_MS)
    bay.intake.receive(
        Notice(
            kind=NoticeKind.LAST_COMMIT,
            worker="w-2",
            topic=TOPIC,
            partition=0,
            committed=0,
            metadata=encode_metadata(0, told),
        )
    )
    bay.step()
    assert bay.offsets() == [0]


def test_what_an_owner_said_when_it_let_go_ends_no_doubt_of_what_a_later_owner_ran() -> None:
    """Its last commit was refused and told of, which the later owner heard, and went on from; then that one died."""
    bay = crashed(0, 1, metadata=CommitMetadata(outcomes_since_ms=SINCE_MS, owned_since_ms=NOW_MS - 20_000))
    told = CommitMetadata(released=True, outcomes_since_ms=SINCE_MS, owned_since_ms=NOW_MS - 40_000)
    notice = Notice(
        kind=NoticeKind.LAST_COMMIT,
        worker="w-2",
        topic=TOPIC,
        partition=0,
        committed=0,
        metadata=encode_metadata(0, told),
    )
    bay.intake.receive(notice)
    bay.step()
    assert bay.offsets() == []
    look_ends(bay, ("0-0", 0))
    assert bay.offsets() == [1]


def test_while_something_is_in_doubt_commits_keep_the_time_from_which_the_next_owner_must_look() -> None:
    bay = crashed(0, 1)
    bay.settle()
    assert times_committed(bay) == {SINCE_MS}
    bay.consumer.revoke(P0)
    bay.step()
    metadata = decode_metadata(*bay.consumer.committed_by_group[P0])
    assert metadata is not None
    assert (metadata.released, metadata.outcomes_since_ms, metadata.is_open) == (True, SINCE_MS, True)


@pytest.mark.parametrize(("seconds", "is_open"), [(LATE_SECONDS - 10, True), (LATE_SECONDS + 10, False)])
def test_what_an_owner_that_was_cut_off_delivers_late_is_looked_for_by_those_who_come_after(
    seconds: float, is_open: bool
) -> None:
    bay = crashed(0, 1)
    taken_over_ms = bay.clock.wall_ms()
    look_ends(bay, ("0-0", 0))
    assert bay.offsets() == [1], "nothing is in doubt here any more, but its outcome may be on its way"
    bay.clock.advance(seconds)
    bay.consumer.revoke(P0)
    bay.step()
    metadata = decode_metadata(*bay.consumer.committed_by_group[P0])
    assert metadata is not None
    assert (metadata.released, metadata.is_open) == (True, is_open)
    assert metadata.outcomes_since_ms is not None
    assert (abs(metadata.outcomes_since_ms - taken_over_ms) < 1_000) is is_open


def test_a_commit_tells_when_it_was_made_and_is_not_made_again_for_that_alone() -> None:
    bay = crashed(0, 1, metadata=CommitMetadata(released=True), take_time=False)
    bay.finish(0)
    bay.settle()
    first = times_committed(bay)
    made = len(bay.consumer.commits)
    for _ in range(5):
        bay.settle()
    assert len(bay.consumer.commits) == made
    bay.finish(1)
    bay.settle()
    assert max(times_committed(bay)) > max(first)
    assert max(times_committed(bay)) <= bay.clock.wall_ms()


def times_committed(bay: Bay) -> set[int]:
    said = [decode_metadata(offset, text) for asked, _ in bay.consumer.commits for offset, text in asked.values()]
    return {each.outcomes_since_ms for each in said if each is not None and each.outcomes_since_ms is not None}


def test_a_commit_whose_time_is_not_known_says_so_for_as_long_as_it_matters() -> None:
    bay = crashed(0, metadata=CommitMetadata(running=((0, 0),)))
    bay.settle()
    assert times_committed(bay) == {LONG_AGO_MS}


def test_what_an_owner_ran_that_died_in_its_drain_may_have_its_outcome() -> None:
    """Its lease ends unheard: it may have died between the outcome and its word of it."""
    bay = crashed(
        0, 1, metadata=CommitMetadata(handed_over=((0, 0), (1, 0)), released=True, outcomes_since_ms=SINCE_MS)
    )
    assert (bay.offsets(), bay.looks.asked) == ([], [])
    bay.clock.advance(LEASE_SECONDS)
    bay.step()
    assert (bay.offsets(), len(bay.looks.asked)) == ([], 1)
    look_ends(bay, ("0-0", 0))
    assert bay.offsets() == [1]


def test_a_retry_in_doubt_is_judged_and_waits_until_it_is_due_all_the_same() -> None:
    bay = Bay(delays_seconds=(30,))
    bay.looks.take_time = True
    for offset, request_id in enumerate("ab"):
        put(bay, S0, offset, request_id)
    bay.consumer.committed_by_group[S0] = (0, encode_metadata(0, CommitMetadata(outcomes_since_ms=SINCE_MS)))
    bay.consumer.assign(S0)
    bay.step(3)
    look_ends(bay, ("a", 0))
    assert bay.handed == []
    bay.clock.advance(30.0)
    bay.step()
    assert bay.offsets(S0) == [1]


def test_what_is_judged_out_of_turn_does_not_hide_the_outcomes_of_what_came_before_it() -> None:
    """A cancel wants offset 5, which is fetched before offset 0 is read. Both have outcomes, 0 an older one."""
    looks = ManualLooks()
    doubts = Doubts(look=looks.look)
    assignment = make_assignment()
    assignment.doubt = Doubt(since_ms=SINCE_MS, began_ms=NOW_MS)
    works = [
        make_work(assignment, offset=offset, enqueued_at=enqueued_at)
        for offset, enqueued_at in ((5, NOW_MS), (0, NOW_MS - 9_000), (1, NOW_MS - 8_000), (6, NOW_MS))
    ]
    for work in works:
        doubts.judge(work, now=0.0, now_ms=NOW_MS)
    assert [look.since_ms for look in looks.asked] == [NOW_MS - MARGIN_MS, NOW_MS - 9_000 - MARGIN_MS]


def test_what_was_seen_is_let_go_of_when_nobody_has_asked_for_it_for_a_minute() -> None:
    look = ManualLook(SINCE_MS, set())
    doubt = Doubt(since_ms=SINCE_MS, began_ms=NOW_MS)
    doubt.look, doubt.used_at = look, 100.0
    doubt.wait(3)
    doubt.forget_unused(100.0 + KEPT_SECONDS + 1)
    assert doubt.look is look, "a request is still to be judged by it"
    doubt.judged(3)
    doubt.forget_unused(100.0 + KEPT_SECONDS)
    assert doubt.look is look
    doubt.forget_unused(100.0 + KEPT_SECONDS + 1)
    assert doubt.look is None, "the next request asks for another"
