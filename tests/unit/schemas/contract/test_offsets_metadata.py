"""Commit metadata: read again as written, never too long, and never trusted when damaged."""

from __future__ import annotations

import base64
import random
import zlib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_schemas.contract.offsets_metadata import (
    FINISHED_MAX,
    LONG_AGO_MS,
    METADATA_BYTES_MAX,
    NOTHING,
    CommitMetadata,
    decode_metadata,
    encode_metadata,
    runs_of,
    topic_mark,
)

NOW_MS = 1_760_000_000_000


def offsets_in(metadata: CommitMetadata) -> set[int]:
    return {offset for first, length in metadata.finished for offset in range(first, first + length)}


def others_in(metadata: CommitMetadata) -> list[tuple[int, int, str]]:
    """Every offset with a history, ascending: its crashes and what it is."""
    return sorted(
        (offset, crashes, what)
        for what, pairs in (
            ("running", metadata.running),
            ("waiting", metadata.waiting),
            ("handed over", metadata.handed_over),
        )
        for offset, crashes in pairs
    )


@st.composite
def commits(draw: st.DrawFn) -> tuple[int, CommitMetadata]:
    """Each offset ahead is finished, running, waiting after crashes, handed over, or none of these."""
    committed = draw(st.integers(0, 2**40))
    ahead = draw(st.sets(st.integers(0, 5_000), max_size=60))
    states: dict[str, list[tuple[int, int]]] = {"finished": [], "running": [], "waiting": [], "handed over": []}
    for each in sorted(ahead):
        state = draw(st.sampled_from(["finished", "running", "waiting", "handed over", "nothing"]))
        if state != "nothing":
            # Whoever waits after no crash has nothing to be said of.
            states[state].append((committed + each, draw(st.integers(1 if state == "waiting" else 0, 3))))
    return committed, CommitMetadata(
        finished=runs_of(offset for offset, _ in states["finished"]),
        running=tuple(states["running"]),
        waiting=tuple(states["waiting"]),
        handed_over=tuple(states["handed over"]),
        released=draw(st.booleans()),
        outcomes_since_ms=(since_ms := draw(st.sampled_from([None, LONG_AGO_MS, NOW_MS]))),
        is_open=since_ms is not None and draw(st.booleans()),
        topic_id=draw(st.none() | st.integers(1, 2**63 - 1)),
        owned_since_ms=draw(st.none() | st.integers(1, 2**63 - 1)),
    )


@settings(deadline=None)
@given(commits())
def test_what_is_written_is_read_again(commit: tuple[int, CommitMetadata]) -> None:
    committed, metadata = commit
    assert decode_metadata(committed, encode_metadata(committed, metadata)) == metadata


@settings(deadline=None)
@given(commits(), st.integers(0, 400))
def test_cutting_forgets_from_the_top_and_invents_nothing(commit: tuple[int, CommitMetadata], bytes_max: int) -> None:
    committed, metadata = commit
    text = encode_metadata(committed, metadata, bytes_max=bytes_max)
    assert len(text) <= bytes_max
    read = decode_metadata(committed, text)
    assert read is not None
    assert read.finished == metadata.finished[: len(read.finished)]
    others = others_in(read)
    assert others == others_in(metadata)[: len(others)]
    if len(others) < len(others_in(metadata)):
        assert read.finished == (), "running offsets are cut last"


@pytest.mark.parametrize("seed", range(3))
def test_ten_thousand_offsets_out_of_order_fit_the_brokers_limit(seed: int) -> None:
    rng = random.Random(seed)
    offsets = sorted(rng.sample(range(1, 40_000), 10_000))
    metadata = CommitMetadata(finished=runs_of(offsets), running=tuple((offset, 0) for offset in (0, 40_000, 40_007)))
    text = encode_metadata(0, metadata)
    assert len(text.encode()) <= METADATA_BYTES_MAX
    read = decode_metadata(0, text)
    assert read is not None
    assert read.running == metadata.running
    assert offsets_in(read) == set(offsets[: read.finished_count])
    assert read.finished_count > 3_000, "cut no more than it must be"


def test_offsets_finished_in_turn_take_a_few_bytes_however_many() -> None:
    whole = CommitMetadata(finished=((101, 1_000_000),), running=((100, 0),))
    text = encode_metadata(100, whole)
    assert len(text) < 30
    assert decode_metadata(100, text) == whole


def test_no_commit_names_more_finished_offsets_than_a_reader_may_hold() -> None:
    text = encode_metadata(0, CommitMetadata(finished=((1, FINISHED_MAX - 5), (FINISHED_MAX + 1, 2**50))))
    read = decode_metadata(0, text)
    assert read is not None
    assert read.finished == ((1, FINISHED_MAX - 5), (FINISHED_MAX + 1, 5))


def test_whatever_is_written_can_be_read_even_when_it_unpacks_to_a_lot() -> None:
    finished = tuple((2 * number + 1, 1) for number in range(400_000))
    running = tuple((2 * number, 0) for number in range(400_000))
    read = decode_metadata(0, encode_metadata(0, CommitMetadata(finished=finished, running=running)))
    assert read is not None
    assert read.finished_count > 10_000


@pytest.mark.parametrize("text", [None, ""])
def test_no_metadata_says_nothing(text: str | None) -> None:
    assert decode_metadata(7, text) == NOTHING


def pack(body: bytes, *, kind: bytes = b"\x00", committed: int = 0) -> str:
    """Text with a right checksum, as only somebody who means it can write it."""
    checksum = zlib.crc32(body, zlib.crc32(bytes([committed]))).to_bytes(4, "big")
    return "f1" + base64.b85encode(kind + checksum + body).decode()


def test_a_time_behind_all_else_says_from_when_on_there_may_be_outcomes() -> None:
    # 4 is running; then the mark of a partition that was let go of, and 1,760,000,000,000 ms, open
    time_mark = bytes([0x81, 0x80, 0xE6, 0x82, 0xB9, 0x66])
    body = bytes([0, 3, 1, 1, 0, 0]) + time_mark + b"\x00"
    whole = CommitMetadata(running=((4, 0),), released=True, outcomes_since_ms=NOW_MS, is_open=True)
    assert decode_metadata(3, pack(body, committed=3)) == whole
    assert decode_metadata(3, encode_metadata(3, whole)) == whole


def test_a_commit_that_had_to_be_cut_leaves_doubt_although_the_partition_was_let_go_of() -> None:
    whole = CommitMetadata(
        finished=runs_of(sorted(random.Random(1).sample(range(10**6), 8_000))), released=True, outcomes_since_ms=NOW_MS
    )
    read = decode_metadata(0, encode_metadata(0, whole))
    assert read is not None
    assert read.finished_count < whole.finished_count
    # What was cut has its outcomes from before the commit.
    assert (read.released, read.outcomes_since_ms, read.is_open) == (True, LONG_AGO_MS, True)


def test_a_commit_whose_running_offsets_alone_were_cut_keeps_its_time() -> None:
    whole = CommitMetadata(
        running=tuple((offset, 0) for offset in random.Random(1).sample(range(10**6), 8_000)), outcomes_since_ms=NOW_MS
    )
    read = decode_metadata(0, encode_metadata(0, whole))
    assert read is not None
    assert 0 < len(read.running) < len(whole.running)
    assert (read.outcomes_since_ms, read.is_open) == (NOW_MS, True)


def test_hand_made_text_is_read_as_the_module_describes_it() -> None:
    # two runs: 5-6 and 9; 4 is running after one crash, 7 waits after two, 12 was handed over after none
    body = bytes([2, 2, 2, 2, 1, 3, 1, 1 * 4 + 1, 2, 2 * 4, 4, 2])
    assert decode_metadata(3, pack(body, committed=3)) == CommitMetadata(
        finished=((5, 2), (9, 1)), running=((4, 1),), waiting=((7, 2),), handed_over=((12, 0),)
    )


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("consumer-1@host", id="another client's words"),
        pytest.param('{"leader": 3}', id="JSON"),
        pytest.param("f1", id="nothing behind the prefix"),
        pytest.param("f2" + "0" * 20, id="a later version"),
        pytest.param("f1ÄÖÜ€", id="not ASCII"),
        pytest.param('f1"\\\x00', id="not base85"),
        pytest.param(pack(b"", kind=b"\x07"), id="an unknown format"),
        pytest.param(pack(b""), id="no number"),
        pytest.param(pack(bytes([1, 2])), id="a run without its length"),
        pytest.param(pack(bytes([1, 2, 0, 0, 0])), id="an empty run"),
        pytest.param(pack(bytes([200])), id="a number cut off"),
        pytest.param(pack(b"\xff" * 12 + b"\x01"), id="a number too long"),
        pytest.param(pack(bytes([0, 0, 0])), id="a number too many"),
        pytest.param(pack(bytes([0, 1, 0, 3])), id="an offset in no known state"),
        pytest.param(pack(bytes([0, 2, 0, 1])), id="more offsets announced than there are"),
        pytest.param(pack(b"\xff\xff\x7f\x01\x01"), id="more runs announced than there are"),
        pytest.param(pack(b"\x01\x00" + b"\xff" * 9 + b"\x01" + b"\x00\x00"), id="a run as long as all of time"),
    ],
)
def test_foreign_or_damaged_text_is_told_from_ours(text: str) -> None:
    assert decode_metadata(0, text) is None


@settings(deadline=None)
@given(st.text(max_size=80))
def test_any_text_is_read_or_refused_but_never_raises(text: str) -> None:
    for attempt in (text, "f1" + text):
        decode_metadata(0, attempt)


@settings(deadline=None)
@given(st.binary(max_size=80))
def test_any_bytes_in_our_wrapping_never_raise(body: bytes) -> None:
    decode_metadata(0, "f1" + base64.b85encode(body).decode())
    for kind in (b"\x00", b"\x01"):
        decode_metadata(0, pack(body, kind=kind))


@settings(deadline=None)
@given(commits(), st.data())
def test_one_damaged_character_is_noticed(commit: tuple[int, CommitMetadata], data: st.DataObject) -> None:
    committed, metadata = commit
    text = encode_metadata(committed, metadata)
    if not text:
        return
    place = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from("0123456789abcxyz?@").filter(lambda each: each != text[place]))
    assert decode_metadata(committed, text[:place] + other + text[place + 1 :]) in (None, metadata)
    assert decode_metadata(committed, text[:-1]) in (None, metadata)


@settings(deadline=None)
@given(commits(), st.integers(1, 50))
def test_text_beside_another_offset_than_its_own_is_not_believed(commit: tuple[int, CommitMetadata], by: int) -> None:
    committed, metadata = commit
    text = encode_metadata(committed, metadata)
    if text:
        assert decode_metadata(committed + by, text) is None


def test_a_decompression_bomb_is_refused_without_being_unpacked() -> None:
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = deflater.compress(bytes(64 << 20)) + deflater.flush()
    assert decode_metadata(0, "f1" + base64.b85encode(b"\x01" + bytes(4) + bomb).decode()) is None


def test_runs_are_what_lies_next_to_each_other() -> None:
    assert runs_of([]) == ()
    assert runs_of([4]) == ((4, 1),)
    assert runs_of([1, 2, 3, 7, 9, 10]) == ((1, 3), (7, 1), (9, 2))


def test_an_offset_below_the_commit_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="ascend"):
        encode_metadata(10, CommitMetadata(finished=((9, 1),)))


@pytest.mark.parametrize(
    "named",
    [
        CommitMetadata(topic_id=2**63 - 1),
        CommitMetadata(owned_since_ms=2**63 - 1),
        CommitMetadata(topic_id=5, owned_since_ms=NOW_MS),
    ],
    ids=["a topic", "an owner", "both"],
)
def test_a_topic_and_an_owner_are_named_beside_nothing_else_and_outlast_what_is_cut(named: CommitMetadata) -> None:
    assert decode_metadata(7, encode_metadata(7, named)) == named
    much = replace(named, finished=runs_of(range(8, 100_000, 3)))
    cut = decode_metadata(7, encode_metadata(7, much))
    assert cut is not None
    assert (cut.topic_id, cut.owned_since_ms) == (named.topic_id, named.owned_since_ms)
    assert 0 < cut.finished_count < much.finished_count


def test_readers_that_do_not_know_of_topics_read_all_else() -> None:
    """As version 1 was first read: what follows the deflated body is passed over."""
    metadata = CommitMetadata(finished=((9, 2),), running=((7, 1),), topic_id=12345)
    packed = base64.b85decode(encode_metadata(7, metadata)[2:])
    inflater = zlib.decompressobj(-15)
    body = inflater.decompress(packed[5:])
    assert inflater.eof
    plain = b"\x00" + packed[1:5] + body
    without = decode_metadata(7, "f1" + base64.b85encode(plain).decode())
    assert without == CommitMetadata(finished=((9, 2),), running=((7, 1),))


def test_tags_that_are_not_known_are_passed_over() -> None:
    packed = base64.b85decode(encode_metadata(7, CommitMetadata(topic_id=9))[2:])
    inflater = zlib.decompressobj(-15)
    inflater.decompress(packed[5:])
    pairs = b"\x7e\x05" + inflater.unused_data[4:]
    appendix = zlib.crc32(pairs, zlib.crc32(b"\x07")).to_bytes(4, "big") + pairs
    text = "f1" + base64.b85encode(packed[: -len(inflater.unused_data)] + appendix).decode()
    assert decode_metadata(7, text) == CommitMetadata(topic_id=9)


@pytest.mark.parametrize(
    ("bits", "mark"), [((0, 0), None), ((1, 0), 1), ((0, 1), 1), ((-1, 0), 2**63 - 1), ((3, 5), 6)]
)
def test_a_topics_mark_is_a_number_below_two_to_the_63rd(bits: tuple[int, int], mark: int | None) -> None:
    assert topic_mark(*bits) == mark
