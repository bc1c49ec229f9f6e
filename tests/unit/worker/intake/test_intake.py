"""Intake, step by step over a scripted consumer: nothing is passed over, nothing is committed that must not be."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

import pytest
from confluent_kafka import OFFSET_STORED, KafkaError, KafkaException, TopicPartition

from forebay_schemas.contract.headers import EXPEDITED_TIER, NO_HISTORY
from forebay_schemas.contract.offsets_metadata import NOTHING, CommitMetadata, encode_metadata
from forebay_schemas.contract.tiers import Tier, tier_times
from forebay_worker.intake import partitions as ownership_module
from forebay_worker.intake.commits import ANSWER_SECONDS_MAX, COMMIT_SECONDS
from forebay_worker.intake.intake import FULL_SECONDS_BEFORE_PAUSE, LANE_FULL_WAIT_SECONDS
from forebay_worker.intake.partitions import ASK_AGAIN_SECONDS
from forebay_worker.request.memory import RECORD_OVERHEAD_BYTES
from forebay_worker.request.work import Work
from simulated.bay import MANY_BYTES, P0, P1, TOPIC, Bay, bay_with, said_by
from simulated.ports import NOW_MS, Key, MemoryRecord, ScriptedConsumer
from simulated.works import envelope

BROKEN = KafkaError(KafkaError._TRANSPORT)


# The main path


@pytest.mark.parametrize("forged", [b"99999999999999", str(NOW_MS + 3_600_000).encode()])
def test_a_request_cannot_make_itself_younger_than_its_record(forged: bytes) -> None:
    bay = Bay()
    headers: list[tuple[str, bytes | None]] = [("forebay-first-enqueued-at", forged)]
    bay.consumer.append(MemoryRecord(topic_name=TOPIC, value_bytes=envelope("a", ttl_ms=2_000), header_list=headers))
    bay.consumer.assign(P0)
    bay.step(2)
    [work] = bay.handed
    assert (work.first_enqueued_at, work.deadline_ms) == (NOW_MS, NOW_MS + 2_000)


@pytest.mark.parametrize(
    ("fields", "tier_before", "ttl_ms"),
    [
        ({}, None, 60_000),
        ({"ttl_ms": 2_000}, None, 2_000),
        ({"expire_at": NOW_MS + 9_000}, None, 9_000),
        ({}, b"low", 90_000),
    ],
)
def test_a_request_that_names_no_deadline_has_the_workers(
    fields: dict[str, int], tier_before: bytes | None, ttl_ms: int
) -> None:
    bay = Bay(default_ttl_ms=tier_times({Tier.MID: 60_000, Tier.LOW: 90_000}, {}).ttl_ms)
    headers: list[tuple[str, bytes | None]] = [] if tier_before is None else [(EXPEDITED_TIER, tier_before)]
    bay.consumer.append(MemoryRecord(topic_name=TOPIC, value_bytes=envelope("a", **fields), header_list=headers))
    bay.consumer.assign(P0)
    bay.step(2)
    [work] = bay.handed
    assert work.deadline_ms == NOW_MS + ttl_ms


def test_records_become_requests_with_their_deadline_and_urgency() -> None:
    bay = Bay()
    bay.consumer.append(
        MemoryRecord(topic_name=TOPIC, value_bytes=envelope("a", ttl_ms=700, priority=6), timestamp_ms=NOW_MS - 5)
    )
    bay.consumer.append(
        MemoryRecord(
            topic_name=TOPIC,
            offset_number=1,
            value_bytes=envelope("b"),
            header_list=[("forebay-first-enqueued-at", str(NOW_MS - 90).encode()), ("forebay-attempt", b"3")],
        )
    )
    bay.consumer.append(MemoryRecord(topic_name=TOPIC, offset_number=2, value_bytes=b"\xff"))
    bay.consumer.append(MemoryRecord(topic_name=TOPIC, offset_number=3, value_bytes=None))
    bay.consumer.assign(P0)
    bay.step(2)
    a, b, garbage, null = bay.handed
    assert (a.request_id, a.priority, a.deadline_ms) == ("a", 6, NOW_MS + 695)
    assert (b.first_enqueued_at, b.history.attempt, b.deadline_ms) == (NOW_MS - 90, 3, NOW_MS - 90 + 30_000)
    assert (garbage.request, garbage.size_bytes) == (None, 1)
    assert "UTF-8" in str(garbage.problem)
    assert "null value" in str(null.problem)


class HeadersOfNoUse(MemoryRecord):
    """What confluent-kafka does with a header name that is not UTF-8."""

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        if self.header_list is None:
            raise SystemError("returned a result with an exception set")
        return self.header_list


def test_a_header_name_that_is_not_utf8_stops_no_partition() -> None:
    bay = Bay()
    bay.consumer.append(HeadersOfNoUse(topic_name=TOPIC, value_bytes=envelope("bad")))
    bay.fill(P0, 1)
    bay.consumer.assign(P0)
    bay.step(2)
    bad, good = bay.handed
    assert bad.request is not None
    assert (bad.record.headers(), bad.history) == ([], NO_HISTORY)
    assert good.request is not None


def test_what_is_finished_is_committed_and_what_runs_is_named() -> None:
    bay = bay_with(0, 1, 2, 3)
    for work in bay.handed[1:3]:
        assert work.assignment.claims.claim(work.offset)
    bay.finish(0, 2)
    bay.settle()
    offset, text = bay.consumer.committed_by_group[P0]
    assert offset == 1
    assert said_by(offset, text) == CommitMetadata(finished=((2, 1),), running=((1, 0),))
    bay.finish(1, 3)
    bay.settle()
    assert said_by(*bay.consumer.committed_by_group[P0]) == NOTHING
    assert bay.committed() == 4


def test_nothing_new_is_not_committed_again() -> None:
    bay = bay_with(0, 1)
    bay.finish(0)
    bay.settle()
    commits = len(bay.consumer.commits)
    bay.settle()
    assert len(bay.consumer.commits) == commits


def test_what_was_finished_ahead_is_not_handed_out_after_a_restart() -> None:
    bay = bay_with(0, 1, 2, 3)
    bay.finish(1, 3)
    bay.settle()
    bay.intake.close()
    assert bay.consumer.closed
    bay.handed.clear()
    bay.consumer.log_of(P0).position = None
    bay.intake = bay.start()
    bay.fill(P0, 4)
    bay.consumer.assign(P0)
    bay.step(2)
    assert bay.offsets() == [0, 2, 4]


@pytest.mark.parametrize(
    "text", ["another client's", "f1zzzz", encode_metadata(9, CommitMetadata(finished=((11, 1),)))]
)
def test_foreign_commit_metadata_is_ignored(text: str) -> None:
    bay = Bay()
    bay.consumer.committed_by_group[P0] = (2, text)
    bay.fill(P0, 0, 1, 2, 3, 4)
    bay.consumer.assign(P0)
    bay.step(2)
    assert bay.offsets() == [2, 3, 4]


# Full lanes


def test_a_full_lane_pauses_only_after_half_a_second_and_polls_on() -> None:
    bay = Bay(capacity=4)
    bay.fill(P0, 0)
    bay.consumer.assign(P0)
    bay.step(3)
    bay.fill(P0, *range(1, 20))
    bay.step()
    assert len(bay.handed) == 4
    bay.step()
    bay.clock.advance(-LANE_FULL_WAIT_SECONDS)
    bay.clock.advance(FULL_SECONDS_BEFORE_PAUSE - 0.1)
    bay.step()
    assert not bay.is_paused()
    bay.clock.advance(0.1)
    bay.step()
    assert bay.is_paused()
    polls = bay.consumer.polls
    bay.step(3)
    assert bay.consumer.polls == polls + 3
    assert len(bay.handed) == 4


def test_a_full_lane_pauses_at_once_while_a_first_start_waits_for_its_commit() -> None:
    """Only polls bring the answer, and these need room or a pause."""
    bay = Bay(capacity=4)
    bay.fill(P0, *range(20))
    bay.consumer.assign(P0)
    bay.step(5)
    assert bay.is_paused()
    assert bay.handed[0].assignment.claims.is_announced


def paused_bay(*, capacity: int) -> Bay:
    bay = Bay(capacity=capacity)
    bay.fill(P0, *range(100))
    bay.consumer.assign(P0)
    bay.step(3)
    bay.clock.advance(FULL_SECONDS_BEFORE_PAUSE)
    bay.step(2)
    assert bay.is_paused()
    return bay


def test_it_takes_up_again_at_half() -> None:
    bay = paused_bay(capacity=10)
    bay.allow(14, capacity=10)
    bay.step()
    assert bay.is_paused()
    bay.allow(15, capacity=10)
    bay.step()
    assert not bay.is_paused()
    assert bay.offsets() == list(range(15))


def test_it_takes_up_again_only_when_half_of_the_bytes_are_free_too() -> None:
    bay = paused_bay(capacity=10)
    credit = bay.credit
    used = sum(work.size_bytes + RECORD_OVERHEAD_BYTES for work in bay.handed)
    credit.allow(20, MANY_BYTES, capacity_records=10, capacity_bytes=2 * (MANY_BYTES - used) + 2)
    bay.step()
    assert bay.is_paused()
    credit.allow(20, MANY_BYTES, capacity_records=10, capacity_bytes=MANY_BYTES)
    bay.step()
    assert not bay.is_paused()


def test_large_records_are_taken_no_further_than_their_bytes_allow() -> None:
    bay = Bay(capacity=0, capacity_bytes=0)
    for offset in range(10):
        bay.consumer.append(
            MemoryRecord(topic_name=TOPIC, offset_number=offset, value_bytes=envelope(payload={"x": "y" * 100_000}))
        )
    bay.consumer.assign(P0)
    for _ in range(4):
        bay.credit.allow(len(bay.handed) + 1, 250_000, capacity_records=256, capacity_bytes=250_000)
        bay.step()
    assert len(bay.handed) == 3


def test_a_partition_that_comes_while_it_is_full_is_paused_too() -> None:
    bay = paused_bay(capacity=10)
    bay.fill(P1, 0)
    bay.consumer.assign(P1)
    bay.step(2)
    assert bay.is_paused(P1)
    assert bay.offsets(P1) == []


def test_a_partition_whose_commit_says_hardly_more_is_held_back_until_it_can() -> None:
    bay = Bay()
    bay.fill(P0, *range(16_000))
    bay.fill(P1, 0, 1)
    bay.consumer.assign(P0, P1)
    bay.step(30)
    # With ever different gaps, so that it does not compress well.
    rng = random.Random(1)
    finished = [offset for offset in range(1, 16_000) if rng.random() < 0.4]
    bay.handed[0].assignment.done.extend(finished)
    bay.settle()
    assert bay.is_paused()
    assert not bay.is_paused(P1)
    assert bay.consumer.committed_by_group[P0][0] == 0
    bay.handed[0].assignment.done.extend(set(range(16_000)) - set(finished))
    bay.settle()
    assert not bay.is_paused()
    assert bay.committed() == 16_000


def test_a_partition_behind_one_slow_request_is_held_back_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million finished offsets in turn take a few bytes of metadata, but a hundred megabytes of memory."""
    monkeypatch.setattr(ownership_module, "PENDING_RECORDS_MAX", 100)
    bay = bay_with(*range(100))
    bay.finish(*range(1, 100))
    bay.settle()
    assert bay.is_paused()
    bay.finish(0)
    bay.settle()
    assert not bay.is_paused()


# The silent-loss trap


@pytest.mark.parametrize("in_consume", [False, True], ids=["poll", "consume"])
@pytest.mark.parametrize("committed", [None, 0, 3])
def test_an_exception_from_the_client_loses_no_record(committed: int | None, in_consume: bool) -> None:
    """Records freed unseen are read again: of every partition, whether any of its records was seen before or not."""
    bay = Bay()
    if committed is not None:
        bay.consumer.committed_by_group[P0] = (committed, "")
    bay.fill(P0, *range(10))
    bay.fill(P1, *range(5))
    bay.consumer.assign(P0, P1)
    bay.consumer.free_unseen(P0, 2, exception=KafkaException(BROKEN), in_consume=in_consume)
    bay.consumer.free_unseen(P1, 2, exception=RuntimeError("odd"), in_consume=True)
    bay.step(8)
    assert bay.offsets() == list(range(committed or 0, 10))
    assert bay.offsets(P1) == list(range(5))


def test_an_exception_from_the_client_is_told_until_records_come_again() -> None:
    bay = bay_with(0)
    bay.consumer.free_unseen(P0, 0, exception=KafkaException(BROKEN))
    bay.step()
    assert bay.intake.troubles == [f"mid: {KafkaException(BROKEN)}"]
    bay.step(3)
    assert bay.intake.troubles, "nothing has come that shows that it is over"
    bay.fill(P0, 1)
    bay.step(2)
    assert bay.intake.troubles == []


def test_an_exception_after_some_were_taken_loses_none_and_repeats_none() -> None:
    bay = bay_with(0, 1, 2)
    bay.fill(P0, 3, 4, 5, 6)
    bay.consumer.free_unseen(P0, 3, exception=KafkaException(BROKEN))
    bay.step(4)
    assert bay.offsets() == list(range(7))
    bay.finish(*range(7))
    bay.settle()
    assert bay.committed() == 7


def test_an_exception_amid_a_batch_takes_nothing_that_came_before_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tracker knows of what came before: it would not come again."""
    bay = bay_with(0)
    bay.fill(P1, 0, 1, 2)
    bay.consumer.assign(P1)
    bay.step(2)
    bay.fill(P0, 1, 2)
    bay.consumer.log_of(P1).position = 0
    monkeypatch.setattr(bay.consumer, "get_watermark_offsets", explode)
    bay.step()
    assert bay.offsets() == [0, 1, 2]
    bay.step(3)
    assert bay.offsets() == [0, 1, 2]
    assert bay.offsets(P1) == [0, 1, 2]


def test_records_behind_an_error_event_wait_for_those_it_stands_for() -> None:
    """The event comes in the middle of a batch: what follows it there must not be taken for what comes next."""
    bay = bay_with(0, 1)
    bay.fill(P0, 2, 3, 4, 5, 6)
    bay.fill(P1, 0, 1)
    bay.consumer.assign(P1)
    bay.consumer.error_event(P0, 2, error=BROKEN)
    bay.step(4)
    assert bay.offsets() == list(range(7))
    assert bay.offsets(P1) == [0, 1]
    bay.finish(0, 1, 4, 5, 6)
    bay.settle()
    assert bay.committed() == 2


def test_the_end_of_a_partition_is_no_error() -> None:
    bay = bay_with(0)
    bay.consumer.error_event(P0, 0, error=KafkaError(KafkaError._PARTITION_EOF))
    bay.fill(P0, 1)
    bay.step(2)
    assert bay.offsets() == [0, 1]
    assert bay.intake.troubles == []


def test_an_error_that_belongs_to_no_partition_is_noted() -> None:
    bay = bay_with(0)
    bay.consumer.append(
        MemoryRecord(topic_name=TOPIC, offset_number=1, failure=KafkaError(KafkaError._ALL_BROKERS_DOWN))
    )
    bay.consumer.logs[TOPIC, 0].records[-1].topic_name = None
    bay.step()
    assert bay.intake.troubles == [f"mid: {KafkaError(KafkaError._ALL_BROKERS_DOWN).str()}"]


def test_what_one_topic_suffers_is_not_over_because_another_one_delivers() -> None:
    """A topic that was deleted, or whose permission was taken away: the client says so once and then no more."""
    bay = bay_with(0)
    gone = MemoryRecord(topic_name="another", offset_number=1, failure=KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
    bay.consumer.append(gone)
    bay.consumer.log_of(("another", 0)).position = 0
    bay.fill(P0, 1, 2)
    bay.step(3)
    assert bay.offsets() == [0, 1, 2]
    assert len(bay.intake.troubles) == 1


def test_a_seek_that_fails_is_made_again_and_nothing_is_taken_before() -> None:
    bay = bay_with(0, 1)
    bay.fill(P0, 2, 3, 4, 5)
    bay.consumer.seek_errors[P0] = KafkaError(KafkaError._STATE)
    bay.consumer.free_unseen(P0, 2, exception=KafkaException(BROKEN))
    bay.step(3)
    assert bay.offsets() == [0, 1], "4 and 5 came, but 2 and 3 did not"
    del bay.consumer.seek_errors[P0]
    bay.clock.advance(ASK_AGAIN_SECONDS)
    bay.step(2)
    assert bay.offsets() == [0, 1, 2, 3, 4, 5]


def test_nothing_is_sought_in_a_partition_that_went_in_between() -> None:
    bay = bay_with(0, 1)
    bay.consumer.seek_errors[P0] = KafkaError(KafkaError._STATE)
    bay.consumer.free_unseen(P0, 0, exception=KafkaException(BROKEN))
    bay.step(2)
    bay.consumer.lose(P0)
    bay.step(3)
    assert bay.assigned() == []


# Commits


def test_a_commit_that_fails_for_one_partition_is_made_again() -> None:
    bay = bay_with(0, 1)
    bay.fill(P1, 0, 1)
    bay.consumer.assign(P1)
    bay.step(2)
    bay.finish(0)
    bay.finish(0, 1, key=P1)
    bay.consumer.commit_partition_errors[P0] = KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
    bay.settle()
    assert (bay.committed(), bay.committed(P1)) == (0, 2)
    assert bay.intake.commits.failed_count >= 1
    bay.consumer.commit_partition_errors.clear()
    bay.settle()
    bay.settle()
    assert bay.committed() == 1
    assert list(bay.consumer.commits[-1][0]) == [P0], "only what failed is made again"


def test_a_commit_that_fails_as_a_whole_is_made_again() -> None:
    bay = bay_with(0)
    bay.finish(0)
    bay.consumer.commit_error = KafkaError(KafkaError.NOT_COORDINATOR)
    bay.settle()
    assert bay.committed() is None
    bay.consumer.commit_error = None
    bay.settle()
    bay.settle()
    assert bay.committed() == 1


def test_one_commit_at_a_time_and_one_that_is_never_answered_is_made_again() -> None:
    bay = bay_with(0, 1)
    bay.settle()
    bay.consumer.answers_commits = False
    bay.finish(0)
    bay.settle()
    sent = len(bay.consumer.commits)
    bay.finish(1)
    bay.settle()
    assert len(bay.consumer.commits) == sent
    bay.clock.advance(ANSWER_SECONDS_MAX)
    bay.settle()
    assert bay.consumer.commits[-1][0][P0][0] == 2


def test_the_late_answer_to_a_commit_is_not_taken_for_that_of_the_next() -> None:
    bay = bay_with(0, 1)
    bay.settle()
    bay.consumer.answers_commits = False
    bay.finish(0)
    bay.settle()
    bay.clock.advance(ANSWER_SECONDS_MAX)
    bay.finish(1)
    # The second one, which fails, is answered after the first.
    bay.consumer.commit_partition_errors[P0] = KafkaError(KafkaError.NOT_COORDINATOR)
    bay.settle()
    bay.consumer.commit_partition_errors.clear()
    bay.consumer.answers_commits = True
    bay.settle()
    bay.settle()
    assert bay.committed() == 2


def test_a_commit_answered_after_the_revocation_brings_nothing_back() -> None:
    bay = bay_with(0, 1)
    bay.settle()
    bay.consumer.answers_commits = False
    bay.finish(0)
    bay.settle()
    bay.consumer.revoke(P0)
    bay.step()
    bay.consumer.answers_commits = True
    bay.step()
    assert bay.assigned() == []
    # Nor is it taken for one of the assignment that follows.
    confirmed = bay.intake.commits.confirmed_count
    bay.consumer.assign(P0)
    bay.step()
    assert bay.intake.commits.confirmed_count == confirmed


def test_a_commit_answered_after_the_partition_came_back_says_nothing_of_the_new_assignment() -> None:
    bay = bay_with(0, 1)
    bay.settle()
    bay.consumer.answers_commits = False
    bay.finish(0)
    bay.settle()
    bay.consumer.lose(P0)
    bay.consumer.assign(P0)
    bay.step()
    confirmed = bay.intake.commits.confirmed_count
    bay.consumer.answers_commits = True
    bay.consumer.poll(0)
    assert bay.intake.commits.confirmed_count == confirmed


# Partitions come and go


def test_a_revoked_partition_is_committed_at_once_and_then_left_alone() -> None:
    bay = bay_with(0, 1, 2)
    assert bay.handed[1].assignment.claims.claim(1)
    bay.finish(0)
    bay.consumer.revoke(P0)
    bay.step()
    offset, text = bay.consumer.committed_by_group[P0]
    assert (offset, said_by(offset, text)) == (
        1,
        CommitMetadata(handed_over=((1, 0),), released=True, is_open=True),
    )
    assert bay.consumer.commits[-1][1] is False
    assert [(over.assignment.partition, over.running) for over in bay.handed_over] == [(0, (1,))]
    assert not bay.handed[0].assignment.claims.claim(2)
    commits = len(bay.consumer.commits)
    bay.finish(1, 2)
    bay.settle()
    assert len(bay.consumer.commits) == commits


def test_a_lost_partition_is_not_committed() -> None:
    bay = bay_with(0, 1)
    bay.settle()
    commits = len(bay.consumer.commits)
    bay.finish(0, 1)
    bay.consumer.lose(P0)
    bay.clock.advance(-COMMIT_SECONDS)
    bay.step()
    bay.settle()
    assert len(bay.consumer.commits) == commits
    assert not bay.handed[0].assignment.claims.is_open


def test_what_finishes_of_an_old_assignment_says_nothing_of_the_new_one() -> None:
    bay = bay_with(0, 1)
    old = bay.handed[0].assignment
    bay.consumer.lose(P0)
    bay.consumer.assign(P0)
    bay.step(2)
    assert bay.offsets() == [0, 1, 0, 1]
    old.done.extend((0, 1))
    bay.settle()
    assert bay.committed() == 0


# Nothing runs of a partition whose commits are unknown


def unknown_bay(*, count: int = 6, committed: int | None = 3) -> Bay:
    """A bay that was assigned a partition while the broker could not say what is committed."""
    bay = Bay()
    bay.fill(P0, *range(count))
    if committed is not None:
        bay.consumer.committed_by_group[P0] = (committed, "")
    bay.consumer.committed_error = KafkaException(KafkaError(KafkaError._TIMED_OUT))
    bay.consumer.assign(P0)
    bay.step(4)
    assert bay.offsets() == []
    assert bay.is_paused()
    return bay


def test_with_unknown_committed_offsets_nothing_runs_until_they_are_told_and_it_says_so() -> None:
    bay = unknown_bay()
    assert bay.intake.troubles == ["mid: committed offsets unknown of 1 partitions (Local: Timed out)"]
    bay.consumer.committed_error = None
    bay.clock.advance(ASK_AGAIN_SECONDS)
    bay.step(2)
    assert bay.offsets() == [3, 4, 5]
    assert bay.intake.troubles == []
    bay.finish(3, 4)
    bay.settle()
    assert bay.committed() == 5


@pytest.mark.parametrize("committed", [None, 3])
def test_with_committed_offsets_told_late_an_exception_still_loses_nothing(committed: int | None) -> None:
    bay = unknown_bay(committed=committed)
    bay.consumer.free_unseen(P0, 2, exception=KafkaException(BROKEN))
    bay.step(3)
    assert bay.offsets() == []
    bay.consumer.committed_error = None
    bay.clock.advance(ASK_AGAIN_SECONDS)
    bay.step(5)
    assert bay.offsets() == list(range(committed or 0, 6))


def test_an_error_of_one_partition_among_the_committed_counts_as_unknown() -> None:
    bay = Bay()
    bay.fill(P0, *range(3))
    bay.consumer.committed_partition_error = KafkaError(KafkaError.NOT_COORDINATOR)
    bay.consumer.assign(P0)
    bay.step(2)
    assert bay.offsets() == []
    bay.consumer.committed_partition_error = None
    bay.clock.advance(ASK_AGAIN_SECONDS)
    bay.step(2)
    assert bay.offsets() == [0, 1, 2]


@pytest.mark.parametrize("take_back", [ScriptedConsumer.revoke, ScriptedConsumer.lose], ids=["revoked", "lost"])
def test_an_unknown_partition_that_goes_again_is_forgotten(take_back: Callable[[ScriptedConsumer, Key], None]) -> None:
    bay = unknown_bay()
    take_back(bay.consumer, P0)
    bay.step()
    bay.consumer.committed_error = None
    bay.clock.advance(ASK_AGAIN_SECONDS)
    bay.step(2)
    assert (bay.offsets(), bay.assigned(), bay.intake.troubles) == ([], [], [])


# Callbacks never raise, whatever happens in them


class ForgettingConsumer(ScriptedConsumer):
    """Cannot be told where to start when it is assigned, once."""

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        if any(each.offset != OFFSET_STORED for each in partitions) and self.polls < 2:
            raise RuntimeError("odd")
        super().incremental_assign(partitions)


@pytest.mark.parametrize("fails", ["committed", "incremental_assign"])
def test_an_assignment_that_fails_oddly_is_made_good_and_loses_nothing(fails: str) -> None:
    """The client then assigns the partition itself, unpaused, and begins to read it."""
    bay = Bay()
    if fails == "committed":
        bay.consumer.committed_error = RuntimeError("odd")
    else:
        bay.consumer = ForgettingConsumer(clock=bay.clock)
        bay.intake = bay.start()
    bay.fill(P0, *range(6))
    text = encode_metadata(2, CommitMetadata(finished=((4, 1),)))
    bay.consumer.committed_by_group[P0] = (2, text)
    bay.peers.heard_until = 0.0
    bay.consumer.assign(P0)
    bay.step(2)
    bay.consumer.committed_error = None
    bay.clock.advance(ASK_AGAIN_SECONDS)
    bay.step(3)
    assert bay.offsets() == [], "its peers have not been heard"
    bay.peers.heard_until = bay.clock.monotonic()
    bay.step(2)
    assert bay.offsets() == [2, 3, 5]
    bay.finish(2, 3, 5)
    bay.settle()
    assert bay.committed() == 6


def explode(*_: object, **__: object) -> None:
    raise RuntimeError("odd")


def test_nothing_is_committed_for_a_partition_whose_letting_go_failed_oddly(monkeypatch: pytest.MonkeyPatch) -> None:
    bay = bay_with(0, 1)
    monkeypatch.setattr(bay.peers, "tell", explode)
    bay.consumer.commit_error = KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
    bay.consumer.revoke(P0)
    bay.step()
    bay.consumer.commit_error = None
    commits = len(bay.consumer.commits)
    bay.finish(0)
    bay.settle()
    assert bay.assigned() == []
    assert len(bay.consumer.commits) == commits
    assert not bay.handed[0].assignment.claims.is_open


def test_callbacks_never_raise_whatever_happens_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    bay = bay_with(0, 1)
    for name in ("_assign", "_let_go"):
        monkeypatch.setattr(bay.intake._ownership, name, explode)
    bay.consumer.assign(P1)
    bay.consumer.revoke(P0)
    bay.consumer.lose(P1)
    assert bay.consumer.poll(0.1) is None


def test_an_empty_assignment_is_one() -> None:
    """More workers than partitions: this one is ready and has nothing to do."""
    bay = Bay()
    bay.consumer.assign()
    bay.step()
    assert bay.intake.assigned_once
    assert bay.assigned() == []


def test_records_of_partitions_that_are_not_ours_are_left_alone() -> None:
    bay = bay_with(0)
    bay.consumer.log_of(P1).position = 0
    bay.fill(P1, 0)
    bay.step(2)
    assert bay.offsets(P1) == []


def test_close_commits_what_finished_last() -> None:
    bay = bay_with(0, 1)
    bay.finish(0, 1)
    bay.intake.close()
    assert bay.committed() == 2
    assert bay.consumer.closed


def test_a_random_history_loses_nothing() -> None:
    """Faults of every kind in between; at the end each record was handed over, and each that did not finish again."""
    for seed in range(30):
        rng = random.Random(seed)
        bay = Bay()
        bay.fill(P0, *(offset for offset in range(200) if rng.random() < 0.8))
        everything = [record.offset() for record in bay.consumer.log_of(P0).records]
        bay.consumer.assign(P0)
        unfinished: deque[Work] = deque()
        finished: set[int] = set()
        seen = 0
        for _ in range(150):
            match rng.randrange(8):
                case 0:
                    bay.consumer.free_unseen(
                        P0, rng.randrange(9), exception=KafkaException(BROKEN), in_consume=rng.random() < 0.5
                    )
                case 1:
                    bay.consumer.error_event(P0, rng.randrange(5), error=BROKEN)
                case 2 if rng.random() < 0.3:
                    give_up = bay.consumer.revoke if rng.random() < 0.5 else bay.consumer.lose
                    give_up(P0)
                    bay.consumer.assign(P0)
                case 3:
                    bay.settle()
                case _:
                    bay.allow(len(bay.handed) + rng.randrange(20))
            bay.step()
            unfinished.extend(bay.handed[seen:])
            seen = len(bay.handed)
            for _ in range(rng.randrange(6)):
                if unfinished:
                    unfinished.rotate(rng.randrange(5))
                    work = unfinished.popleft()
                    work.assignment.done.append(work.offset)
                    finished.add(work.offset)
            committed = bay.committed() or 0
            assert finished >= {offset for offset in everything if offset < committed}, seed
        bay.consumer.log_of(P0).faults.clear()
        bay.allow(1 << 40)
        for _ in range(20):
            bay.settle()
            for work in bay.handed:
                work.assignment.done.append(work.offset)
            bay.settle()
        assert {work.offset for work in bay.handed} == set(everything), seed
        assert bay.committed() == everything[-1] + 1, seed


# A log that is not the one that was read


def test_a_log_that_ends_below_what_was_read_begins_anew() -> None:
    bay = bay_with(0, 1, 2)
    bay.finish(0, 1)
    bay.settle()
    log = bay.consumer.log_of(P0)
    log.records.clear()
    log.position = 0  # as the client does when its position is beyond the end
    bay.fill(P0, 0, 1)
    bay.step(2)
    assert bay.offsets() == [0, 1, 2, 0, 1]
    bay.finish(0, 1)
    bay.settle()
    assert bay.committed() == 2
    first, *_, last = bay.handed
    assert first.assignment.claims.is_open, "what was taken before still runs"
    assert first.assignment is not last.assignment


def test_records_of_the_same_log_that_come_again_are_skipped() -> None:
    bay = bay_with(0, 1, 2)
    bay.consumer.log_of(P0).position = 0
    bay.step(2)
    assert bay.offsets() == [0, 1, 2]


def test_while_a_suspect_is_tried_nothing_is_decoded_and_the_membership_is_kept() -> None:
    bay = bay_with(0)
    bay.quiet.is_wanted = True
    bay.fill(P0, *range(1, 5))
    polls = bay.consumer.polls
    bay.step(3)
    assert bay.quiet.is_quiet
    assert bay.is_paused()
    assert bay.offsets() == [0]
    assert bay.consumer.polls == polls + 3
    bay.finish(0)
    bay.settle()
    assert bay.committed() == 1, "commits go on"
    bay.quiet.is_wanted = False
    bay.step(2)
    assert bay.offsets() == [0, 1, 2, 3, 4]
    assert not bay.quiet.is_quiet


def test_an_intake_is_not_quiet_while_it_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    bay = bay_with(0)
    bay.fill(P0, 1)
    seen = []
    deliver = bay.intake._deliver

    def look(batch: list[Work]) -> None:
        bay.quiet.is_wanted = True  # in the midst of it
        seen.append(bay.quiet.is_quiet)
        deliver(batch)

    monkeypatch.setattr(bay.intake, "_deliver", look)
    bay.step()
    assert seen == [False]
    assert bay.quiet.is_quiet
