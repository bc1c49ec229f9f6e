"""The requests of a calibration: prompts of given lengths, each of its own, or a sample of real requests. Pure; its
random numbers are seeded."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Protocol

import msgspec

from forebay_schemas.contract.request_lines import BYTE_ORDER_MARK, as_envelope
from forebay_schemas.errors import UsageError

TOKENS_MAX: Final = 1_000_000
REQUESTS_MAX: Final = 100_000
HEAD_CHARACTERS: Final = 60
CHARACTERS_PER_TOKEN: Final = 4.0
"""Of English text, before the backend has reported its own."""

_LENGTHS: Final = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_LENGTH_FIX: Final = "give a number of tokens, or a range of which each length is as likely: 1000, 500-1500"
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class Lengths:
    """Numbers of tokens, uniformly from ``least`` to ``most``."""

    least: int
    most: int

    def draw(self, chance: random.Random) -> int:
        return chance.randint(self.least, self.most)

    def __str__(self) -> str:
        return str(self.least) if self.least == self.most else f"{self.least} to {self.most}"


def read_lengths(text: str, *, field: str) -> Lengths:
    """``1000`` or ``500-1500``. Raises ``UsageError`` naming ``field``."""
    match = _LENGTHS.fullmatch(text.strip())
    if match is None:
        raise UsageError(field, f"is {text!r}", fix=_LENGTH_FIX)
    least = int(match[1])
    most = int(match[2]) if match[2] else least
    if not 1 <= least <= most <= TOKENS_MAX:
        raise UsageError(field, f"is {text!r}", fix=f"{_LENGTH_FIX}; from 1 to {TOKENS_MAX:,}, the smaller one first")
    return Lengths(least, most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request to send. ``biz_type`` gives the path; ``prompt_characters`` the intended length of the prompt."""

    biz_type: str
    payload: dict[str, Any]
    prompt_characters: int | None = None


class Asks(Protocol):
    """An endless source of requests."""

    def next(self) -> Asked: ...

    def answered(self, asked: Asked, *, prompt_tokens: int | None) -> None:
        """Notes the number of prompt tokens that the backend counted."""
        ...

    def describe(self) -> str:
        """The load, for people."""
        ...


class MadeAsks:
    """Chat completions of random lengths. ``is_unique``: no two prompts begin alike, so that no prefix cache makes the
    backend look faster than it will be; otherwise all of a length are the same.

    Learns the characters of a token from the backend's counts.
    """

    def __init__(self, *, prompt: Lengths, output: Lengths, model: str | None, is_unique: bool, seed: int) -> None:
        self._prompt, self._output = prompt, output
        self._model = {} if model is None else {"model": model}
        self._is_unique = is_unique
        self._chance = random.Random(seed)  # noqa: S311 - reproducible, not secret
        self._characters_per_token = CHARACTERS_PER_TOKEN

    def next(self) -> Asked:
        return self.sized(self._prompt.draw(self._chance), self._output.draw(self._chance))

    def sized(self, prompt_tokens: int, output_tokens: int) -> Asked:
        """A request with about this many tokens."""
        characters = max(1, round(prompt_tokens * self._characters_per_token))
        chance = self._chance if self._is_unique else random.Random(0)  # noqa: S311
        payload = {
            **self._model,
            "messages": [{"role": "user", "content": text_of(characters, chance)}],
            "max_tokens": output_tokens,
        }
        return Asked(biz_type="chat_completion", payload=payload, prompt_characters=characters)

    def answered(self, asked: Asked, *, prompt_tokens: int | None) -> None:
        if prompt_tokens and asked.prompt_characters:
            seen = asked.prompt_characters / prompt_tokens
            # No text has tokens shorter than a quarter of a character; far above ten, the count is not of this prompt.
            self._characters_per_token = min(10.0, max(0.25, seen))

    def describe(self) -> str:
        alike = "each its own" if self._is_unique else "all alike"
        return f"prompts of {self._prompt} tokens, {alike}; answers of {self._output} tokens"


class SampledAsks:
    """Real requests from a file, repeated in random order, unchanged except for a few letters before the first message
    if ``is_unique``."""

    def __init__(self, requests: Sequence[Asked], *, name: str, is_unique: bool, seed: int) -> None:
        self._requests = list(requests)
        self._name = name
        self._is_unique = is_unique
        self._chance = random.Random(seed)  # noqa: S311 - reproducible, not secret
        self._order: list[int] = []

    def next(self) -> Asked:
        if not self._order:
            self._order = list(range(len(self._requests)))
            self._chance.shuffle(self._order)
        asked = self._requests[self._order.pop()]
        return _distinct(asked, text_of(8, self._chance)) if self._is_unique else asked

    def answered(self, asked: Asked, *, prompt_tokens: int | None) -> None:
        """Does nothing: their lengths are fixed."""

    def describe(self) -> str:
        alike = "each begins with letters of its own" if self._is_unique else "as they are"
        return f"{len(self._requests)} requests of {self._name}, {alike}"


class _Line(msgspec.Struct):
    """The parts of an envelope that are used here."""

    payload: dict[str, Any]
    biz_type: str = "chat_completion"


def read_requests(lines: Sequence[bytes], *, model: str | None, field: str) -> list[Asked]:
    """Reads JSON lines: envelopes, bare bodies of OpenAI's requests, or lines of OpenAI's batches.

    Raises ``UsageError`` naming the line.
    """
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            document = msgspec.json.decode(line.removeprefix(BYTE_ORDER_MARK), type=dict[str, Any])
            envelope = as_envelope(document, biz_type=None)
            if "payload" in envelope:
                read = msgspec.convert(envelope, _Line)
                biz_type, payload = read.biz_type, read.payload
            else:
                biz_type, payload = "completion", document
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, UsageError) as error:
            raise UsageError(
                field, f"line {number}: {error}", fix="give a JSON object a line: an envelope, or an OpenAI body"
            ) from None
        if model is not None:
            payload = {**payload, "model": model}
        found.append(Asked(biz_type=biz_type, payload=payload))
        if len(found) > REQUESTS_MAX:
            raise UsageError(field, f"has more than {REQUESTS_MAX:,} requests", fix="give a sample of them")
    if not found:
        raise UsageError(field, "holds no request", fix="give a JSON object a line")
    return found


def text_of(characters: int, chance: random.Random) -> str:
    """Text of this many characters, in words of five letters. All after the first few words is cut from one long text:
    caches compare how prompts begin, and drawing each letter took 1.5 ms for a thousand tokens."""
    head = _words(HEAD_CHARACTERS, chance)
    text = _long_text()
    at = chance.randrange(len(text))
    body = (text[at : at + characters] + text * (1 + characters // len(text)))[:characters]
    return (head + body)[:characters]


@cache
def _long_text() -> str:
    return _words(100_000, random.Random(1))  # noqa: S311 - reproducible, not secret


def _words(characters: int, chance: random.Random) -> str:
    letters = chance.choices(_LETTERS, k=characters)
    letters[5::6] = " " * len(letters[5::6])
    return "".join(letters)


def _distinct(asked: Asked, letters: str) -> Asked:
    payload = copy.deepcopy(asked.payload)
    messages = payload.get("messages")
    if isinstance(messages, list) and messages and isinstance(messages[0], dict):
        first = messages[0]
        if isinstance(first.get("content"), str):
            first["content"] = f"{letters} {first['content']}"
        elif isinstance(first.get("content"), list):
            first["content"].insert(0, {"type": "text", "text": letters})
    else:
        for name in ("prompt", "input"):
            if isinstance(payload.get(name), str):
                payload[name] = f"{letters} {payload[name]}"
    return Asked(biz_type=asked.biz_type, payload=payload)
