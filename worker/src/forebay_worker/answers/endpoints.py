"""The endpoints whose answers are known, told apart by their path. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

import msgspec


class Shape(Enum):
    """The form that an endpoint's answer must have."""

    CHAT = "chat"
    COMPLETION = "completion"
    EMBEDDING = "embedding"
    RESPONSE = "response"
    IMAGE = "image"
    OTHER = "other"

    # Enum's own hash is written in Python, and each answer asks for it.
    __hash__ = object.__hash__


# Longest first: every chat path also ends with the completions' one.
_SHAPES: Final = (
    ("/chat/completions", Shape.CHAT),
    ("/completions", Shape.COMPLETION),
    ("/embeddings", Shape.EMBEDDING),
    ("/responses", Shape.RESPONSE),
    ("/images/generations", Shape.IMAGE),
    ("/images/edits", Shape.IMAGE),
    ("/images/variations", Shape.IMAGE),
)


MANY_CHOICES: Final = 1_000_000
"""Of a list of prompts that is too large to be worth counting: a stream of its answer is read up to its end."""

_COUNTED_BYTES_MAX: Final = 256 * 1024
_NOTHING: Final = msgspec.Raw(b"")
_LIST: Final = ord("[")


def shape_of(path: str) -> Shape:
    """The shape of what is answered on a path, with or without a query: by its end, whatever leads to it.

    The path decides and not the biz_type: ``chat_completion`` may be sent to an API of another form, and any biz_type
    to ``/openai/deployments/x/chat/completions?api-version=1``.
    """
    bare = path.partition("?")[0].rstrip("/")
    for end, shape in _SHAPES:
        if bare.endswith(end):
            return shape
    return Shape.OTHER


def choices_asked(payload: Mapping[str, object]) -> int:
    """The choices that a chat or completion request asks for: ``n`` of each prompt. 1 where that cannot be told."""
    n, prompt = payload.get("n"), payload.get("prompt")
    repetitions = n if type(n) is int and n > 0 else 1
    # A prompt may be tokens; only texts or lists of tokens in a list are several prompts.
    several = isinstance(prompt, list) and len(prompt) > 0 and isinstance(prompt[0], (str, list))
    return repetitions * len(prompt) if isinstance(prompt, list) and several else repetitions


class _Asked(msgspec.Struct, gc=False):
    n: msgspec.Raw = _NOTHING
    prompt: msgspec.Raw = _NOTHING


_asked_decoder = msgspec.json.Decoder(_Asked)


def choices_in(payload: bytes) -> int:
    """`choices_asked` of a payload's bytes. Decodes no more than is counted, and that only up to a size."""
    try:
        asked = _asked_decoder.decode(payload)
        given = {
            name: msgspec.json.decode(raw)
            for name, raw in (("n", asked.n), ("prompt", asked.prompt))
            if 0 < len(memoryview(raw)) <= _COUNTED_BYTES_MAX
        }
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return 1
    if len(memoryview(asked.prompt)) > _COUNTED_BYTES_MAX and memoryview(asked.prompt)[0] == _LIST:
        return MANY_CHOICES
    return choices_asked(given)
