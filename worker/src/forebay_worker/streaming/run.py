"""One execution of a request whose answer is followed: its events become pieces. The event loop."""

from __future__ import annotations

from typing import Any, Final, Protocol

import msgspec

from forebay_schemas.contract.pieces import PIECE_BYTES_MAX, Piece, PieceError, StreamEvent, StreamFault, encode_piece
from forebay_worker.streaming.continuity import DiffersError, Recorder, Resumption, Sent

JOINED_BYTES_MAX: Final = 64 * 1024
"""Events that wait for the timer; with more of them the piece is sent at once."""

EARLY_PIECES_MAX: Final = 8
"""Before the first text as many events are sent at once: an API may begin with notes, or tell no text from them."""

_EVENT_BYTES_MAX: Final = PIECE_BYTES_MAX - 8 * 1024


class Outlet(Protocol):
    """Where pieces go."""

    def send(self, run: Run, value: bytes) -> bool:
        """Queues a piece; False when it is dropped. Never waits."""
        ...

    def wait(self, run: Run) -> None:
        """Has `Run.flush` called when the timer ends."""
        ...


class Run:
    """The pieces of one execution, a `StreamSink`.

    ``sent``: what a former run of the request sent here; this one goes on only where that text goes on.
    """

    __slots__ = (
        "_bytes",
        "_continues",
        "_events",
        "_has_text",
        "_is_closed",
        "_is_lost",
        "_number",
        "_outlet",
        "_recorder",
        "_resumption",
        "attempt",
        "key",
        "name",
        "partition",
        "replay_count",
        "request_id",
        "usage_added",
    )

    def __init__(
        self,
        *,
        outlet: Outlet,
        request_id: str,
        attempt: int,
        replay_count: int,
        name: str,
        partition: int,
        sent: Sent | None,
    ) -> None:
        """``name``: of the run. ``partition``: of the streams topic; -1 for the key's."""
        self.request_id = request_id
        self.key = request_id.encode()
        self.attempt = attempt
        self.replay_count = replay_count
        self.name = name
        self.partition = partition
        self.usage_added = False
        self._outlet = outlet
        self._events: list[StreamEvent] = []
        self._bytes = 0
        self._number = 0
        self._has_text = False
        self._is_closed = self._is_lost = False
        self._recorder = Recorder()
        self._continues = None if sent is None else (sent.run, sent.number)
        self._resumption = None if sent is None else Resumption(sent)

    def add(self, name: bytes, data: bytes, choices: Any, rest: Any, has_text: bool) -> None:
        """As `StreamSink.add`."""
        if self._is_closed:
            return
        if self.usage_added and type(rest) is dict and rest.get("usage"):
            if not choices:
                return
            data = without_usage(data)
        if self._resumption is None:
            self._put(name, data, choices, has_text)
            return
        if not self._resumption.sent.can_continue:
            self._fail(StreamFault.BROKEN)
            return
        try:
            released = self._resumption.take(name, data, choices)
        except DiffersError:
            self._fail(StreamFault.DIFFERS)
            return
        if released is not None:
            self._recorder.start_from(self._resumption)
            self._resumption = None
            for each in released:
                self._put(*each, has_text)

    def flush(self) -> None:
        """Sends what waits."""
        if self._events and not self._is_closed:
            self._send()

    def end(self) -> None:
        """The stream has ended, and its answer is complete."""
        if self._is_closed:
            return
        if self._resumption is not None:
            self._fail(StreamFault.DIFFERS)  # it is shorter than what was sent
        elif self._number or self._events:
            self._send(last=True)
            self._is_closed = True

    def break_off(self) -> Sent | None:
        """The execution failed. Returns what was sent of the request; None for nothing."""
        if self._resumption is not None:
            # Nothing is sent since: the next run goes on from where the former one did.
            return self._resumption.sent
        if not self._is_closed and (self._number or self._events):
            self._fail(StreamFault.BROKEN)
        if not self._recorder.has_sent:
            return None
        return self._recorder.sent(run=self.name, number=self._number - 1, is_whole=not self._is_lost)

    def lose(self) -> None:
        """A piece was dropped: readers have a gap now, and the result is what is left to them."""
        if not self._is_lost:
            self._is_lost = True
            self._fail(StreamFault.BROKEN)

    def _put(self, name: bytes, data: bytes, choices: Any, has_text: bool) -> None:
        if self._is_closed:
            return
        if len(data) > _EVENT_BYTES_MAX:
            self._is_lost = True
            self._fail(StreamFault.TOO_LARGE)
            return
        if self._events and self._bytes + len(data) > JOINED_BYTES_MAX:
            self._send()
        self._recorder.add(name, data, choices)
        self._events.append(StreamEvent(msgspec.Raw(data), name.decode(errors="replace") if name else None))
        self._bytes += len(data)
        if not self._has_text and self._number < EARLY_PIECES_MAX:
            self._has_text = has_text
            self._send()
        elif len(self._events) == 1:
            self._outlet.wait(self)

    def _fail(self, fault: StreamFault) -> None:
        """Sends what waits and the fault, and nothing more."""
        if not self._is_closed:
            self._send(error=fault)
            self._is_closed = True
            self._events = []

    def _send(self, *, last: bool = False, error: StreamFault | None = None) -> None:
        piece = Piece(
            request_id=self.request_id,
            attempt=self.attempt,
            run=self.name,
            number=self._number,
            events=self._events,
            last=last,
            error=error,
            continues=self._continues if self._resumption is None else None,
            replay_count=self.replay_count,
        )
        self._events, self._bytes = [], 0
        self._number += 1
        try:
            value = encode_piece(piece)
        except PieceError:
            self.lose()
            return
        self._continues = None
        if not self._outlet.send(self, value):
            self.lose()


def without_usage(data: bytes) -> bytes:
    """The event's data without ``usage``; its other fields are kept byte for byte."""
    fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    fields.pop("usage", None)
    return msgspec.json.encode(fields)
