"""A topic that is deleted and made anew: what is known of the old one's offsets says nothing of the new one's."""

from __future__ import annotations

import pytest

from forebay_schemas.contract.coordination import Notice, NoticeKind
from forebay_schemas.contract.offsets_metadata import CommitMetadata, decode_metadata, encode_metadata
from forebay_worker.partition.opening import IDENTIFY_SECONDS_MAX
from simulated.bay import P0, TOPIC, Bay
from simulated.ports import NOW_MS


def bay_assigned(*offsets: int, committed: int | None = None, of_topic: int | None = None, now_is: int = 1) -> Bay:
    """A bay whose topic has the id 1 by default, with a commit made for another or the same."""
    bay = Bay()
    bay.topics.learn(TOPIC, now_is)
    bay.fill(P0, *offsets)
    if committed is not None:
        text = encode_metadata(committed, CommitMetadata(finished=((committed + 1, 1),), topic_id=of_topic))
        bay.consumer.committed_by_group[P0] = (committed, text)
    bay.consumer.assign(P0)
    return bay


@pytest.mark.parametrize(
    ("of_topic", "read"),
    [
        (1, [2, 4]),
        # An older version's commit, or a tool's: nobody can tell.
        (None, [2, 4]),
        (7, [0, 1, 2, 3, 4]),
    ],
)
def test_a_commit_counts_for_the_topic_that_it_was_made_for(of_topic: int | None, read: list[int]) -> None:
    bay = bay_assigned(*range(5), committed=2, of_topic=of_topic)
    bay.step(3)
    assert bay.offsets() == read
    bay.finish(*read)
    bay.settle()
    position, metadata = bay.consumer.committed_by_group[P0]
    said = decode_metadata(position, metadata)
    assert said is not None
    assert (position, said.finished, said.topic_id) == (5, (), 1)


def test_a_partition_is_not_read_before_it_is_known_of_which_topic_it_is() -> None:
    bay = bay_assigned(*range(5), committed=2, of_topic=1)
    bay.topics.known_until = bay.clock.monotonic() - 1
    bay.step(3)
    assert bay.offsets() == []
    assert bay.topics.wanted_until > bay.topics.known_until
    # Somebody else has seen it made anew, and this worker sees it now.
    bay.topics.learn(TOPIC, 2)
    bay.topics.known_until = float("inf")
    bay.step(3)
    assert bay.offsets() == [0, 1, 2, 3, 4]


def test_brokers_that_do_not_say_keep_no_partition_closed_for_long() -> None:
    bay = bay_assigned(*range(5), committed=2, of_topic=1)
    bay.topics.known_until = float("-inf")
    bay.step()
    assert bay.offsets() == []
    bay.clock.advance(IDENTIFY_SECONDS_MAX + 1)
    bay.step(3)
    assert bay.offsets() == [2, 4]


def test_a_topic_made_anew_is_read_from_its_first_record_though_it_is_as_long_as_the_old_one() -> None:
    bay = bay_assigned(*range(3))
    bay.step(2)
    bay.finish(0, 1)
    bay.settle()
    old = bay.handed[-1].assignment
    bay.topics.changed_ms = NOW_MS
    bay.topics.learn(TOPIC, 2)
    bay.step(4)
    assert bay.offsets() == [0, 1, 2, 0, 1, 2]
    assert bay.intake.remade_partitions == 1
    new = bay.handed[-1].assignment
    assert new is not old
    assert (new.topic_id, new.reread_below) == (2, 3)
    # What of the old one may be the new one's does not start.
    assert old.void_from_ms <= NOW_MS < new.void_from_ms
    bay.finish(0, 1, 2)
    bay.settle()
    assert bay.committed() == 3


@pytest.mark.parametrize(("of_topic", "is_withheld"), [(1, True), (None, True), (7, False)])
def test_what_a_former_owner_says_counts_for_its_topic_alone(of_topic: int | None, is_withheld: bool) -> None:
    bay = bay_assigned(*range(3))
    bay.peers.read_until = float("-inf")
    bay.step()
    for kind, offset in ((NoticeKind.RUNNING, 0), (NoticeKind.FINISHED, 1)):
        notice = Notice(kind=kind, worker="other", topic=TOPIC, partition=0, offsets=[offset], topic_id=of_topic)
        bay.intake.receive(notice)
    bay.peers.read_until = float("inf")
    bay.step(3)
    assert bay.offsets() == ([2] if is_withheld else [0, 1, 2])


def test_what_a_former_owner_ran_of_the_new_topic_before_it_noticed_is_not_run_again() -> None:
    """It read on where it stood in the old one, and its commits are of that one."""
    bay = Bay()
    bay.topics.learn(TOPIC, 1)
    bay.fill(P0, *range(4))
    bay.looks.ended.add(("0-3", 0))
    bay.consumer.committed_by_group[P0] = (4, encode_metadata(4, CommitMetadata(topic_id=7, released=True)))
    bay.consumer.assign(P0)
    bay.step(4)
    assert bay.offsets() == [0, 1, 2]
    bay.finish(0, 1, 2)
    bay.settle()
    assert bay.committed() == 4
