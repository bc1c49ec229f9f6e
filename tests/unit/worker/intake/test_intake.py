"""Intake, step by step over a scripted consumer: nothing is passed over or lost, what is finished is committed."""

from __future__ import annotations

import random
from collections import deque

import pytest
from confluent_kafka import KafkaException

from forebay_schemas.contract.headers import EXPEDITED_TIER, NO_HISTORY
from forebay_schemas.contract.offsets_metadata import NOTHING, CommitMetadata, encode_metadata
from forebay_schemas.contract.tiers import Tier, tier_times
from forebay_worker.request.work import Work
from simulated.bay import BROKEN, P0, TOPIC, Bay, bay_with, said_by
from simulated.ports import NOW_MS, MemoryRecord
from simulated.works import envelope


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
    """confluent-kafka's behaviour for a header name that is not UTF-8."""

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
