"""Reads an answer piece by piece, whatever form it has, and gives the verdict on it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, Final

import msgspec

from forebay_schemas.contract.results import ERROR_CHARS_MAX
from forebay_worker.answers.bodies import judge_json, loads
from forebay_worker.answers.endpoints import Shape
from forebay_worker.answers.errors import failure_of
from forebay_worker.answers.framing import DONE, Event, Framing
from forebay_worker.answers.streams import EventList, Progress, Stream, stream_for
from forebay_worker.answers.verdict import (
    Completed,
    Failed,
    Limits,
    NoAnswerError,
    Verdict,
    bad_response,
    bounded,
    broken_off,
    effective_status,
    reason_of_status,
    too_large,
)

EVENT_STREAM: Final = "text/event-stream"
_LINES_TYPES: Final = ("ndjson", "jsonl", "json-seq", "json-lines")
_BOM: Final = b"\xef\xbb\xbf"
_SPACE: Final = b" \t\r\n"
_DONES: Final = frozenset({DONE, b'"[DONE]"'})
# What a stream begins with when its content type does not say that it is one.
_STREAM_STARTS: Final = (b"data:", b"event:", b"id:", b"retry:", b":")
_STREAM_START_BYTES: Final = 6
# Characters of four bytes, and as many again for the spaces that are stripped.
_ERROR_BYTES_MAX: Final = 8 * ERROR_CHARS_MAX
# A character is six bytes when it is escaped, and two or three in UTF-8.
_ESCAPED_MAX: Final = 4
_LOOK_BYTES_MIN: Final = 1024 * 1024
# Sent so that a connection stays open, with data that is none: "event: ping", "data: 2024-05-01 12:00:00".
_KEEP_ALIVES: Final = frozenset({b"ping", b"keepalive", b"keep-alive", b"heartbeat"})
_NO_CONTENT: Final = frozenset({204, 205})
_ACCEPTED, _PARTIAL = 202, 206
_NOT_COUNTED: Final = -1


OnEvent = Callable[[bytes, bytes, Any, Any, bool], None]
"""Given each event of a stream once it is known to be a part of the answer: its name, its data (JSON as it came), the
decoded ``choices`` of a chunk, the rest of the decoded data, and whether text has come by now."""


class End(Enum):
    """How the body ended."""

    TIDY = "tidy"
    """As HTTP says: its length, its last chunk, or the connection's end where neither was announced."""
    GRACE = "grace"
    """The caller stopped waiting after `Progress.MAY_END`."""
    BROKEN = "broken"
    """The connection was lost before."""


class _Form(Enum):
    UNKNOWN = "unknown"
    JSON = "json"
    STREAM = "stream"
    REFUSAL = "refusal"


class AnswerReader:
    """Reads one answer. The form is told by the bytes, the content type deciding where they do not: servers answer a
    wish for a stream with JSON, one for JSON with a stream, and label either as the other."""

    def __init__(
        self,
        *,
        shape: Shape,
        status: int,
        content_type: str,
        limits: Limits,
        choices_asked: int = 1,
        on_event: OnEvent | None = None,
    ) -> None:
        """``content_type``: without parameters, in any case; may be empty. ``choices_asked``: of the request; with a
        number that is too small `Progress.MAY_END` may come before a choice has begun. ``on_event``: of an answer that
        is no stream it is not called."""
        self._shape = shape
        self._status = status
        self._content_type = content_type.lower()
        self._limits = limits
        self._choices_min = max(1, choices_asked)
        self._form = _Form.UNKNOWN if 200 <= status < 300 else _Form.REFUSAL
        self._pieces: list[bytes] = []
        self._kept = 0
        self._read = 0
        self._look_at = min(_LOOK_BYTES_MIN, limits.answer_bytes_max)
        self._since_event = 0
        self._framing = Framing()
        self._stream: Stream | None = None
        self._on_event = on_event
        self._lines_taken = _NOT_COUNTED
        self._only_line = b""
        self._done = False
        self._verdict: Verdict | None = None
        self._encoding: str | None = None
        self._progress = Progress.MORE
        if status in _NO_CONTENT or status == _PARTIAL:
            self._fail(_refusal(status, b""))

    @property
    def content_chunks(self) -> int:
        """The chunks so far that carried text or tool calls: when it first grows, the first token has come."""
        return 0 if self._stream is None else self._stream.content_chunks

    @property
    def has_begun(self) -> bool:
        """Whether a stream has brought its first text; of an unknown API its first event."""
        stream = self._stream
        return stream is not None and (stream.content_chunks > 0 or type(stream) is EventList)

    @property
    def kept_bytes(self) -> int:
        """The size of what is held of the answer; of a stream as it was measured last, some of its bytes ago."""
        return self._kept

    def feed(self, piece: bytes) -> Progress:
        """Takes the next bytes of the body, cut anywhere; says whether more are wanted."""
        if self._progress is Progress.COMPLETE:
            return self._progress
        self._read += len(piece)
        try:
            self._take(piece)
        except NoAnswerError as error:
            self._fail(error.failed)
        return self._progress

    def finish(self, end: End, *, encoding: str | None = None) -> Verdict:
        """The verdict once no more is fed. May be asked for again. ``encoding``: the content-encoding, where the body
        broke off because it is none of that."""
        if self._verdict is None:
            self._encoding = encoding
            try:
                self._verdict = self._bounded(self._conclude(end))
            except NoAnswerError as error:
                self._verdict = error.failed
            self._progress = Progress.COMPLETE
        return self._verdict

    def _take(self, piece: bytes) -> None:
        if self._form is _Form.UNKNOWN:
            self._pieces.append(piece if self._pieces else piece.lstrip(_SPACE))
            head = b"".join(self._pieces).removeprefix(_BOM).lstrip(_SPACE)
            self._pieces = [head] if head else []
            self._form = self._form_of(head)
            piece = head
            if self._form is not _Form.UNKNOWN:
                self._pieces = []
                self._lines_taken = 0 if self._form is _Form.STREAM and head[:1] == b"{" else _NOT_COUNTED
        if self._form is _Form.STREAM:
            if self._read > self._limits.stream_bytes_max:
                raise NoAnswerError(too_large("stream", self._limits.stream_bytes_max))
            self._take_stream(piece)
        elif self._form is _Form.REFUSAL:
            self._keep(piece[: max(0, _ERROR_BYTES_MAX - self._kept)])
            if self._kept >= _ERROR_BYTES_MAX:
                self._progress = Progress.COMPLETE
        else:
            bytes_max = self._limits.stream_bytes_max if self._is_lines else self._limits.answer_bytes_max
            # Of what was read, not of what was kept: an engine may send empty lines without end.
            if self._read > bytes_max:
                raise NoAnswerError(too_large("answer", bytes_max))
            if self._form is _Form.JSON:
                self._keep(piece)

    def _take_stream(self, piece: bytes) -> None:
        answer_bytes_max = self._limits.answer_bytes_max
        events = self._framing.feed(piece)
        self._since_event = 0 if events else self._since_event + len(piece)
        if self._since_event > _ESCAPED_MAX * answer_bytes_max:
            raise NoAnswerError(too_large("event of the stream", _ESCAPED_MAX * answer_bytes_max))
        self._take_events(events)
        # What is kept of a stream takes several times its size in memory, so it is measured before the end. A look
        # reads at most twice what may be kept, and comes whenever as many raw bytes came, first when these have
        # doubled: the time stays linear in them.
        if self._stream is not None and self._read >= self._look_at:
            self._look_at = self._read + min(self._read, answer_bytes_max)
            with _unmergeable_fails():
                self._kept = self._stream.kept_bytes()
            if self._kept > answer_bytes_max:
                raise NoAnswerError(too_large("answer", answer_bytes_max))

    def _keep(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._kept += len(piece)

    @property
    def _is_lines(self) -> bool:
        return any(name in self._content_type for name in _LINES_TYPES)

    def _form_of(self, head: bytes) -> _Form:
        if not head or _BOM.startswith(head):
            return _Form.UNKNOWN
        if head[:1] in b"{[":
            return _Form.STREAM if self._is_lines and head[:1] == b"{" else _Form.JSON
        if self._content_type == EVENT_STREAM or head.startswith(_STREAM_STARTS):
            return _Form.STREAM
        if len(head) < _STREAM_START_BYTES and any(start.startswith(head) for start in _STREAM_STARTS):
            return _Form.UNKNOWN
        return _Form.JSON

    def _take_events(self, events: list[Event]) -> None:
        for event in events:
            if event.name in _KEEP_ALIVES and self._shape is not Shape.OTHER:
                continue
            if event.data in _DONES:
                self._done = True
                self._progress = Progress.COMPLETE
                return
            for value, data in _values(event):
                if event.name == b"error":
                    raise NoAnswerError(_error_event(value))
                self._take_value(event.name, value, data)
                if self._progress is Progress.COMPLETE:
                    return

    def _take_value(self, name: bytes, value: Any, data: bytes) -> None:
        if value is None:
            return
        if self._lines_taken >= 0:
            self._lines_taken += 1
            self._only_line = data if self._lines_taken == 1 else b""
        # A stream takes them out of the value, and changes nothing in them.
        choices = value.get("choices") if self._on_event is not None and type(value) is dict else None
        # As `_unmergeable_fails`, which costs 1.5 microseconds, for each token of a stream.
        try:
            if self._stream is None:
                self._stream = stream_for(self._shape, value, choices_min=self._choices_min)
            self._progress = self._stream.take(name.decode(errors="replace") if name else "", value)
        except (ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise _unmergeable(error) from None
        if self._on_event is not None:
            self._on_event(name, data, choices, value, self._stream.content_chunks > 0)

    def _conclude(self, end: End) -> Verdict:
        if self._form is _Form.REFUSAL:
            return _refusal(self._status, b"".join(self._pieces))
        is_early = end is End.BROKEN or (end is End.GRACE and self._progress is Progress.MORE)
        if is_early and self._progress is not Progress.COMPLETE:
            if self._encoding is not None:
                return broken_off(f"the body is not in its content-encoding: {self._encoding}")
            return broken_off("the answer broke off")
        if self._form is _Form.STREAM:
            return self._conclude_stream()
        if self._form is _Form.UNKNOWN and self._content_type == EVENT_STREAM:
            return self._conclude_stream()
        body = b"".join(self._pieces).rstrip(_SPACE)
        if not body:
            return bad_response(f"HTTP {self._status} without a body")
        return self._judge_body(body) or self._conclude_disguised(body)

    def _judge_body(self, body: bytes) -> Verdict | None:
        verdict = judge_json(body, self._shape)
        if self._status == _ACCEPTED and self._shape is Shape.OTHER and isinstance(verdict, Completed):
            return bad_response("HTTP 202: accepted, and not answered", shown=body)
        return verdict

    def _conclude_disguised(self, body: bytes) -> Verdict:
        """The verdict on what begins as JSON and is none: lines of JSON, or an event stream behind a line of it."""
        if b"\n{" in body or b"\ndata:" in body:
            self._take_events(self._framing.feed(body))
            return self._conclude_stream()
        name = self._content_type or "no content type"
        return bad_response(f"the answer is no JSON ({name})", shown=body)

    def _conclude_stream(self) -> Verdict:
        if not self._done:
            self._take_events(self._framing.end())
        if self._stream is None:
            return bad_response("the stream has no answer in it, but [DONE]" if self._done else "the stream is empty")
        if self._only_line and (verdict := self._judge_body(self._only_line)) is not None:
            return verdict  # a single line is the answer itself, and no list of one
        with _unmergeable_fails():
            return self._stream.end()

    def _bounded(self, verdict: Verdict) -> Verdict:
        if isinstance(verdict, Completed) and len(verdict.body) > self._limits.answer_bytes_max:
            return too_large("answer", self._limits.answer_bytes_max)
        return verdict

    def _fail(self, failed: Failed) -> None:
        self._verdict = failed
        self._progress = Progress.COMPLETE
        self._pieces = []


def judge(*, shape: Shape, status: int, content_type: str, body: bytes, limits: Limits) -> Verdict:
    """The verdict on an answer that was read whole, its body tidily ended."""
    reader = AnswerReader(shape=shape, status=status, content_type=content_type, limits=limits)
    reader.feed(body)
    return reader.finish(End.TIDY)


@contextmanager
def _unmergeable_fails() -> Iterator[None]:
    """Ends the reading where events cannot be made one answer, or are nested too deep to be."""
    try:
        yield
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise _unmergeable(error) from None


def _unmergeable(error: Exception) -> NoAnswerError:
    return NoAnswerError(bad_response(f"the stream cannot be put together: {error}"))


def _refusal(status: int, body: bytes) -> Failed:
    """The verdict on a status that is no success, or that says that there is no content to judge.

    204 and 205 have no body, 206 is a part of one, 3xx is an answer of another address.
    """
    words = body.decode(errors="replace").strip()
    message = bounded(f"HTTP {status}: {words}" if words else f"HTTP {status}")
    status = effective_status(status)
    whole = body if len(body) < _ERROR_BYTES_MAX else None
    return Failed(reason=reason_of_status(status), message=message, status=status, body=whole)


def _values(event: Event) -> list[tuple[Any, bytes]]:
    """The decoded data of an event, with its bytes; of several lines that are not JSON together each is an event of its
    own."""
    data = event.data
    if not data and event.name != b"error":
        return []
    try:
        return [(loads(data), data)]
    except (ValueError, RecursionError, msgspec.MsgspecError):
        if event.name == b"error":
            return [(data.decode(errors="replace"), data)]
    try:
        return [(loads(line), line) for line in data.split(b"\n")]
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        problem = f"an event of the stream is no JSON ({bounded(str(error))})"
        raise NoAnswerError(bad_response(problem, shown=data)) from None


def _error_event(value: Any) -> Failed:
    """The verdict on an event that is named error: its data is the error, or an object that holds it."""
    if isinstance(value, dict) and value.get("error"):
        return failure_of(value["error"], beside=value)
    return failure_of(value or "an error event without words")
