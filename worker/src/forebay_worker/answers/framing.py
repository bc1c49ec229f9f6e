"""Takes a byte stream apart into events: server-sent events, and lines of bare JSON among or instead of them. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

DONE: Final = b"[DONE]"
"""The data of the event that ends an OpenAI stream."""

_DONE_LINES: Final = frozenset({b"data: [DONE]", b"data:[DONE]"})
_DONE_LINE_BYTES: Final = 12
_ERROR: Final = b"error"
_PREFIX: Final = b"data: "
_PREFIX_BYTES: Final = 6


class Event(msgspec.Struct, frozen=True, gc=False):
    """An event: its name, empty for most, and its data. ``error`` is the name of the field form of llama.cpp too."""

    name: bytes
    data: bytes


class Framing:
    """Events of a stream that is fed piece by piece, cut anywhere. Lines end in CR, LF or CR LF.

    More is taken than the specification of event streams allows, each for a server that was seen to do it: a line
    ``error: {...}`` (llama.cpp until September 2025, ggml-org/llama.cpp#16104), a line of bare JSON
    (lemonade-sdk/lemonade#2975), ``data: [DONE]`` without the empty line behind it, or without any line end.
    """

    __slots__ = ("_after_cr", "_bare", "_data", "_is_between", "_name", "_partial")

    def __init__(self) -> None:
        # Pieces of a line without its end: joined once, since an image of megabytes is one line.
        self._partial: list[bytes] = []
        self._after_cr = False
        self._name = b""
        self._data: list[bytes] = []
        self._bare: list[bytes] = []
        self._is_between = True
        """Whether an event may begin with the next byte."""

    def feed(self, piece: bytes) -> list[Event]:
        """The events that this piece completes."""
        if not piece:
            return []
        if self._is_between and piece[:_PREFIX_BYTES] == _PREFIX and piece[-2:] == b"\n\n" and b"\r" not in piece:
            # One event as engines write a token: half the time.
            data = piece[_PREFIX_BYTES:-2]
            if b"\n" not in data and data != DONE:
                return [Event(b"", data.strip())]
        self._is_between = False
        events = self._feed(piece)
        self._is_between = not (self._partial or self._data or self._bare or self._name or self._after_cr)
        return events

    def _feed(self, piece: bytes) -> list[Event]:
        ends_in_cr = piece.endswith(b"\r")
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]
        self._after_cr = ends_in_cr
        if b"\r" in piece:
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        events: list[Event] = []
        lines = piece.split(b"\n")
        if len(lines) > 1:
            self._partial.append(lines[0])
            lines[0] = b"".join(self._partial)
            self._partial = []
            for line in lines[:-1]:
                self._take(line, events)
        if lines[-1]:
            self._partial.append(lines[-1])
            # Few pieces and short: a text that holds these bytes is no end of the stream.
            if len(self._partial) <= _DONE_LINE_BYTES and b"".join(self._partial) in _DONE_LINES:
                self._partial = []
                events.append(Event(b"", DONE))
        return events

    def end(self) -> list[Event]:
        """The event that lacks its empty line when the stream ends."""
        events: list[Event] = []
        self._take(b"".join(self._partial), events)
        self._partial = []
        self._dispatch(events)
        return events

    def _take(self, line: bytes, events: list[Event]) -> None:
        if not line:
            self._dispatch(events)
        elif line.startswith(b"data:"):
            data = line[5:].strip()
            if data == DONE and not self._data:
                events.append(Event(b"", DONE))
            else:
                self._data.append(data)
        elif line[0] in b"{[" or self._bare:
            self._take_bare(line, events)
        elif not line.startswith(b":"):
            name, _, value = line.partition(b":")
            if name == b"event":
                self._name = value.strip()
            elif name == _ERROR:
                events.append(Event(_ERROR, value.strip()))

    def _take_bare(self, line: bytes, events: list[Event]) -> None:
        if not self._bare and line.rstrip().endswith((b"}", b"]")):
            events.append(Event(self._name, line))
        else:
            self._bare.append(line)

    def _dispatch(self, events: list[Event]) -> None:
        if self._bare:
            events.append(Event(self._name, b"\n".join(self._bare)))
            self._bare = []
        if self._data:
            events.append(Event(self._name, b"\n".join(self._data)))
            self._data = []
        elif self._name == _ERROR:
            events.append(Event(_ERROR, b""))
        self._name = b""
