"""What a run of a request has sent, and whether another run of it may go on from there. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

import msgspec

from forebay_schemas.bounded import BoundedMap
from forebay_worker.streaming.texts import Key, NotComparableError, Texts, cut, texts_of

TEXT_CHARS_MAX: Final = 256 * 1024
"""Of one request; of a longer one no retry goes on."""

HELD_BYTES_MAX: Final = 1024 * 1024
REQUESTS_MAX: Final = 10_000
MEMORY_CHARS_MAX: Final = 8 * 1024 * 1024
"""Of all requests whose run broke off and may come again here."""

Event = tuple[bytes, bytes]
"""Name and data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What the runs of a request have sent together.

    ``run``, ``number``: of the last piece. ``texts``: by place, of chats and completions; else None, and ``digest`` is
    that of all ``events``. ``can_continue``: False when a piece may be lost, or too much was sent to be kept.
    """

    run: str
    number: int
    texts: dict[Key, str] | None
    events: int
    digest: bytes
    can_continue: bool
    chars: int


_CONTENT: Final[Key] = (0, "delta", "content")


def _only_content(choices: Any) -> str | None:
    """The text of a chunk that has nothing else that could be compared; None for any other. Nine of ten chunks are
    such, and this takes a third of `texts_of`."""
    if type(choices) is not list or len(choices) != 1 or type(choice := choices[0]) is not dict:
        return None
    delta = choice.get("delta")
    if choice.get("index") != 0 or choice.get("finish_reason") or "text" in choice or "message" in choice:
        return None
    if type(delta) is not dict or len(delta) != 1:
        return None
    content = delta.get("content")
    return content if type(content) is str else None


def _new_digest() -> blake2b:
    return blake2b(digest_size=16)


def _add_to(digest: blake2b, name: bytes, data: bytes) -> None:
    digest.update(b"%d %d " % (len(name), len(data)))
    digest.update(name)
    digest.update(data)


class Recorder:
    """Notes what a run sends, in time and memory in proportion to it."""

    __slots__ = ("_chars", "_digest", "_events", "_is_kept", "_texts")

    def __init__(self) -> None:
        self._texts: dict[Key, list[str]] | None = {}
        self._chars = 0
        self._events = 0
        self._digest = _new_digest()
        self._is_kept = True

    @property
    def has_sent(self) -> bool:
        """Whether anything was sent."""
        return self._events > 0

    def add(self, name: bytes, data: bytes, choices: Any) -> None:
        """An event is sent. ``choices``: of its data, None where it has none."""
        self._events += 1
        texts = self._texts
        if choices is None and self._events == 1:
            texts = self._texts = None
        if texts is None:
            _add_to(self._digest, name, data)
            return
        if not self._is_kept:
            return
        if (text := _only_content(choices)) is not None and _CONTENT in texts:
            texts[_CONTENT].append(text)
            self._chars += len(text)
            if self._chars > TEXT_CHARS_MAX:
                self._forget(texts)
            return
        try:
            for key, text in texts_of(choices):
                self._chars += len(text)
                known = texts.get(key)
                if known is None:
                    texts[key] = [text]
                else:
                    known.append(text)
        except (NotComparableError, TypeError):  # an index that is no number has no place in a map
            self._forget(texts)
        if self._chars > TEXT_CHARS_MAX:
            self._forget(texts)

    def _forget(self, texts: dict[Key, list[str]]) -> None:
        self._is_kept = False
        texts.clear()

    def start_from(self, resumption: Resumption) -> None:
        """What former runs have sent counts as sent by this one, which goes on from there."""
        sent = resumption.sent
        self._events, self._chars = sent.events, sent.chars
        self._digest = resumption.digest
        self._texts = None if sent.texts is None else {key: [text] for key, text in sent.texts.items()}

    def sent(self, *, run: str, number: int, is_whole: bool) -> Sent:
        """What was sent until now; ``is_whole``: no piece of it is lost."""
        texts = None if self._texts is None else {key: "".join(parts) for key, parts in self._texts.items()}
        return Sent(
            run=run,
            number=number,
            texts=texts,
            events=self._events,
            digest=self._digest.digest(),
            can_continue=is_whole and self._is_kept,
            chars=self._chars,
        )


class SentMemory:
    """What was sent of requests that may come again, by id and replay count. Bounded; the oldest is forgotten."""

    __slots__ = ("_chars", "_sent")

    def __init__(self) -> None:
        self._sent: BoundedMap[tuple[str, int], Sent] = BoundedMap(entries_max=REQUESTS_MAX + 1)
        self._chars = 0

    def put(self, key: tuple[str, int], sent: Sent) -> None:
        self.take(key)
        self._sent.put(key, sent)
        self._chars += sent.chars
        while len(self._sent) > REQUESTS_MAX or (self._chars > MEMORY_CHARS_MAX and len(self._sent) > 1):
            _, oldest = self._sent.forget_oldest()
            self._chars -= oldest.chars

    def take(self, key: tuple[str, int]) -> Sent | None:
        """What was sent, and forgets it."""
        sent = self._sent.pop(key, None)
        if sent is not None:
            self._chars -= sent.chars
        return sent


class DiffersError(ValueError):
    """The new run's text is not that which was sent."""


@dataclass(slots=True)
class _Held:
    event: Event
    choices: Any
    texts: Texts


@dataclass(slots=True)
class Resumption:
    """Holds a new run's events back until they cover what was sent, and gives out what follows that.

    Chats and completions are compared by their text, however it is cut into events. Any other stream must begin with
    the same events, byte by byte.
    """

    sent: Sent
    _lengths: dict[Key, int] = field(default_factory=dict)
    _held: list[_Held] = field(default_factory=list)
    _held_bytes: int = 0
    _events: int = 0
    digest: blake2b = field(default_factory=_new_digest)
    """Of the events taken."""

    def take(self, name: bytes, data: bytes, choices: Any) -> list[tuple[bytes, bytes, Any]] | None:
        """Takes an event: its name, data and choices. The events that follow what was sent, once all of that has come;
        None while it has not. Raises ``DiffersError``."""
        if self.sent.texts is None:
            return self._take_whole(name, data)
        try:
            return self._take_texts(name, data, choices, self.sent.texts)
        except (NotComparableError, TypeError, KeyError, ValueError):
            raise DiffersError from None

    def _take_whole(self, name: bytes, data: bytes) -> list[tuple[bytes, bytes, Any]] | None:
        _add_to(self.digest, name, data)
        self._events += 1
        if self._events < self.sent.events:
            return None
        if self.digest.digest() != self.sent.digest:
            raise DiffersError
        return []

    def _take_texts(
        self, name: bytes, data: bytes, choices: Any, sent: dict[Key, str]
    ) -> list[tuple[bytes, bytes, Any]] | None:
        texts = texts_of(choices)
        for key, text in texts:
            start = self._lengths.get(key, 0)
            left = sent.get(key, "")[start:]
            if not (text.startswith(left) or left.startswith(text)):
                raise DiffersError
            self._lengths[key] = start + len(text)
        self._held.append(_Held((name, data), choices, texts))
        self._held_bytes += len(data)
        if any(self._lengths.get(key, 0) < len(text) for key, text in sent.items()):
            if self._held_bytes > HELD_BYTES_MAX:
                raise DiffersError
            return None
        return self._release(sent)

    def _release(self, sent: dict[Key, str]) -> list[tuple[bytes, bytes, Any]]:
        released: list[tuple[bytes, bytes, Any]] = []
        lengths: dict[Key, int] = {}
        for held in self._held:
            shown: dict[Key, int] = {}
            new_chars = 0
            for key, text in held.texts:
                start = lengths.get(key, 0)
                lengths[key] = start + len(text)
                shown[key] = shown.get(key, 0) + min(len(text), max(0, len(sent.get(key, "")) - start))
                new_chars += lengths[key] > len(sent.get(key, ""))
            if not new_chars:
                continue  # its text was sent, and so was what came without text before it
            name, data = held.event
            if any(shown.values()):
                data = cut(data, shown)
                released.append((name, data, _choices_in(data)))
            else:
                released.append((name, data, held.choices))
        self._held = []
        return released


def _choices_in(data: bytes) -> Any:
    return msgspec.json.decode(data)["choices"]
