"""What a commit says beyond its offset: the finished and the running offsets above it, as the commit's metadata. Pure.

Text form, version 1: ``f1`` + base85 of one format byte (0 plain, 1 deflate), four bytes of CRC-32 (big-endian, over
the committed offset as a varint and the plain varints), and varints: number of runs of finished offsets, then for each
its gap and its length; number of offsets with a history, then for each its gap and ``crashes * 4 + state`` (0 waiting,
1 running, 2 handed over). Gaps count from the end of the one before, the first from the commit. An offset that waits
after no crash says nothing of itself: behind all others such entries are marks. One with a small gap marks a commit by
which a worker let go of the partition. One whose gap is ``milliseconds * 2 + open`` says from when on outcomes may be
found that this commit does not tell of, and with ``open`` that there may be some although the partition was let go of.
Readers that do not know the marks pass over them.

Behind a deflated body an appendix may follow, which readers that do not know it pass over: four bytes of CRC-32 (over
the committed offset and the rest of it), and varints: pairs of a tag and a value. Tag 1: which topic it was
(`topic_mark`), since one that is made anew under the same name counts from 0 again. Tag 2: since when its owner had
the partition, by which of two owners' words those of the later one are told.

The checksum covers the offset because text beside another offset (a tool that copies commits between clusters, where
offsets differ) would name requests as finished that never ran.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

METADATA_BYTES_MAX: Final = 4095
"""The limit of brokers with default settings (measured)."""

_PREFIX: Final = "f1"
_PLAIN, _DEFLATE = b"\x00", b"\x01"
_DECODED_BYTES_MAX: Final = 1 << 20
_OFFSET_MAX: Final = 1 << 63
_WAITING, _RUNNING, _HANDED = 0, 1, 2
_CHECKSUM_BYTES: Final = 4
_TOPIC_TAG: Final = 1
_OWNER_TAG: Final = 2

LONG_AGO_MS: Final = 10**12
"""September 2001: the earliest time that can be encoded; stands for unknown."""

_TIME_MARK_MIN: Final = 2 * LONG_AGO_MS

FINISHED_MAX: Final = 1 << 20
"""The most finished offsets in a commit: its reader holds each in memory."""

_ENTRIES_MAX: Final = 25_000
"""The most runs, and offsets with a history. Each takes two varints of up to ten bytes; more might not fit when
unpacked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitMetadata:
    """``finished``: ascending, separate runs ``(first offset, length)`` at or above the committed offset.

    Of the others each is in one of these, as ascending ``(offset, crashes)``, where ``crashes`` counts the workers that
    died while they ran it: ``running`` (whoever finds one on assignment knows that one more died), ``waiting`` (only
    those with crashes), ``handed_over`` (a former owner that let go of the partition still runs it). An offset that is
    running after two crashes or more is the only one that runs in its worker.

    ``released``: its worker let go of the partition with this commit. A later owner that died left one without it.

    ``outcomes_since_ms`` (epoch milliseconds on the brokers' clock, None for unknown): what is not finished here has no
    outcome from before that. ``is_open``: some of it may have one although the partition was let go of.

    ``topic_id``: of the topic that it speaks of, as `topic_mark` makes it; None where nobody can tell.

    ``owned_since_ms`` (as above; None for unknown): when its owner was given the partition, and later than that of any
    owner before that it knew of. Of a later owner's commit an earlier one's word says nothing.
    """

    finished: tuple[tuple[int, int], ...] = ()
    running: tuple[tuple[int, int], ...] = ()
    waiting: tuple[tuple[int, int], ...] = ()
    handed_over: tuple[tuple[int, int], ...] = ()
    released: bool = False
    outcomes_since_ms: int | None = None
    is_open: bool = False
    topic_id: int | None = None
    owned_since_ms: int | None = None

    @property
    def finished_count(self) -> int:
        return sum(length for _, length in self.finished)


NOTHING: Final = CommitMetadata()


def topic_mark(most_significant_bits: int, least_significant_bits: int) -> int | None:
    """A topic's 128-bit id as a number below 2**63; None for no id, which old brokers report for every topic."""
    return (most_significant_bits ^ least_significant_bits) & (_OFFSET_MAX - 1) or None


def runs_of(offsets: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Ascending distinct offsets as runs ``(first, length)``."""
    runs: list[tuple[int, int]] = []
    first = previous = None
    for offset in offsets:
        if first is None or previous is None:
            first = offset
        elif offset != previous + 1:
            runs.append((first, previous - first + 1))
            first = offset
        previous = offset
    if first is not None and previous is not None:
        runs.append((first, previous - first + 1))
    return tuple(runs)


def encode_metadata(committed: int, metadata: CommitMetadata, *, bytes_max: int = METADATA_BYTES_MAX) -> str:
    """The metadata for a commit of offset ``committed``, at most ``bytes_max`` long.

    What does not fit is cut: first the highest finished runs, then the highest other offsets. A cut can repeat
    executions after a crash, but never loses a request. The result may be empty.
    """
    runs = _bounded(metadata.finished)
    others = sorted(
        (offset, crashes * 4 + state)
        for state, pairs in (
            (_WAITING, metadata.waiting),
            (_RUNNING, metadata.running),
            (_HANDED, metadata.handed_over),
        )
        for offset, crashes in pairs
    )[:_ENTRIES_MAX]
    since_ms, is_open = metadata.outcomes_since_ms, metadata.is_open
    if since_ms is not None and since_ms < LONG_AGO_MS:
        since_ms = None
    if runs != metadata.finished:
        since_ms, is_open = LONG_AGO_MS, True
    appendix = _appendix(committed, metadata)
    if not runs and not others and not metadata.released and since_ms is None and not appendix:
        return ""
    while True:
        marks = [0] * metadata.released + ([] if since_ms is None else [since_ms * 2 + is_open])
        text = _encode(committed, runs, others, marks, appendix)
        if len(text) <= bytes_max:
            return text
        is_open = True
        keep = bytes_max / len(text) * 0.95
        if runs:
            runs = runs[: int(len(runs) * keep)]
            since_ms = LONG_AGO_MS  # the cut offsets have earlier outcomes
        elif others:
            others = others[: int(len(others) * keep)]
        else:
            return ""


def decode_metadata(committed: int, text: str | None) -> CommitMetadata | None:
    """Decodes a commit's metadata. None if foreign or damaged: the caller then relies on the offset alone."""
    if not text:
        return NOTHING
    if not text.startswith(_PREFIX):
        return None
    try:
        packed = base64.b85decode(text[len(_PREFIX) :])
        checksum, body = packed[1 : 1 + _CHECKSUM_BYTES], packed[1 + _CHECKSUM_BYTES :]
        appendix = b""
        if packed[:1] == _DEFLATE:
            inflater = zlib.decompressobj(-15)
            body = inflater.decompress(body, _DECODED_BYTES_MAX)
            if not inflater.eof:
                return None
            appendix = inflater.unused_data
        elif packed[:1] != _PLAIN:
            return None
        if checksum != _checksum(committed, body):
            return None
        numbers = iter(_read_varints(body))
        finished, end, count = [], committed, 0
        for _ in range(next(numbers)):
            first = end + next(numbers)
            end = first + next(numbers)
            count += end - first
            if end <= first or end > _OFFSET_MAX or count > FINISHED_MAX:
                return None
            finished.append((first, end - first))
        others: tuple[list[tuple[int, int]], ...] = ([], [], [])
        at, released, time_mark = committed, False, None
        for _ in range(next(numbers)):
            gap = next(numbers)
            crashes, state = divmod(next(numbers), 4)
            if state == _WAITING and not crashes:
                if gap >= _TIME_MARK_MIN:
                    time_mark = gap
                else:
                    released = True
                continue
            at += gap
            if at >= _OFFSET_MAX:
                return None
            others[state].append((at, crashes))
            at += 1
        if next(numbers, None) is not None:
            return None
        values = _read_appendix(committed, appendix)
    except (ValueError, IndexError, zlib.error, StopIteration):
        return None
    return CommitMetadata(
        finished=tuple(finished),
        waiting=tuple(others[_WAITING]),
        running=tuple(others[_RUNNING]),
        handed_over=tuple(others[_HANDED]),
        released=released,
        outcomes_since_ms=None if time_mark is None else time_mark // 2,
        is_open=time_mark is not None and time_mark % 2 == 1,
        topic_id=values.get(_TOPIC_TAG),
        owned_since_ms=values.get(_OWNER_TAG),
    )


def _appendix(committed: int, metadata: CommitMetadata) -> bytes:
    pairs = bytearray()
    for tag, value in ((_TOPIC_TAG, metadata.topic_id), (_OWNER_TAG, metadata.owned_since_ms)):
        if value is not None:
            _append_varint(pairs, tag)
            _append_varint(pairs, value)
    if not pairs:
        return b""
    return _checksum(committed, pairs) + pairs


def _read_appendix(committed: int, appendix: bytes) -> dict[int, int]:
    """The values by their tags. Raises ``ValueError`` for a damaged appendix."""
    if not appendix:
        return {}
    pairs = appendix[_CHECKSUM_BYTES:]
    if appendix[:_CHECKSUM_BYTES] != _checksum(committed, pairs):
        raise ValueError("a damaged appendix")
    numbers = _read_varints(pairs)
    return dict(zip(numbers[::2], numbers[1::2], strict=True))


def _encode(
    committed: int,
    runs: tuple[tuple[int, int], ...],
    others: list[tuple[int, int]],
    marks: list[int],
    appendix: bytes,
) -> str:
    body = bytearray()
    _append_varint(body, len(runs))
    end = committed
    for first, length in runs:
        _append_varint(body, first - end)
        _append_varint(body, length)
        end = first + length
    _append_varint(body, len(others) + len(marks))
    at = committed
    for offset, number in others:
        _append_varint(body, offset - at)
        _append_varint(body, number)
        at = offset + 1
    for mark in marks:
        _append_varint(body, mark)
        body += b"\x00"
    deflater = zlib.compressobj(6, zlib.DEFLATED, -15)
    deflated = deflater.compress(body) + deflater.flush()
    is_smaller = len(deflated) < len(body)
    kind, packed = (_DEFLATE, deflated) if is_smaller or appendix else (_PLAIN, bytes(body))
    return _PREFIX + base64.b85encode(kind + _checksum(committed, body) + packed + appendix).decode("ascii")


def _bounded(runs: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """The lowest runs, as many as a reader accepts."""
    kept, room = [], FINISHED_MAX
    for first, length in runs[:_ENTRIES_MAX]:
        kept.append((first, min(length, room)))
        room -= length
        if room <= 0:
            break
    return tuple(kept)


def _checksum(committed: int, body: bytes | bytearray) -> bytes:
    start = bytearray()
    _append_varint(start, committed)
    return zlib.crc32(body, zlib.crc32(start)).to_bytes(_CHECKSUM_BYTES, "big")


def _append_varint(into: bytearray, number: int) -> None:
    if number < 0:
        raise ValueError("offsets must ascend from the committed one")
    while number > 0x7F:
        into.append(number & 0x7F | 0x80)
        number >>= 7
    into.append(number)


def _read_varints(data: bytes) -> list[int]:
    numbers, number, shift = [], 0, 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        if byte & 0x80:
            shift += 7
            if shift > 63:
                raise ValueError("varint too long")
        else:
            numbers.append(number)
            number = shift = 0
    if shift:
        raise ValueError("varint cut off")
    return numbers
