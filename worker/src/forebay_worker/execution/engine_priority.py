"""How urgent a request is, in the words of an engine that has priorities of its own. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from forebay_schemas.contract.tiers import PRIORITY_MAX, TIERS
from forebay_worker.request.work import Work

_LEVELS = PRIORITY_MAX + 1
_RANKS = {tier: rank for rank, tier in enumerate(TIERS)}


class EnginePriority(StrEnum):
    """What the engine makes of a ``priority`` in the payload."""

    NONE = "none"
    """Nothing: none is sent, an engine may refuse it."""
    LOWER_FIRST = "lower_first"
    """vLLM with ``--scheduling-policy priority``."""
    HIGHER_FIRST = "higher_first"
    """SGLang with ``--enable-priority-scheduling``."""


class _Given(msgspec.Struct):
    priority: Any = msgspec.UNSET


_decoder = msgspec.json.Decoder(_Given)


def with_priority(work: Work, payload: bytes, order: EnginePriority) -> bytes:
    """The payload with the tier, and within it the integer priority, as the engine's ``priority``.

    One that the client gave stays: it may mean something that Forebay does not know.
    """
    if order is EnginePriority.NONE:
        return payload
    try:
        if _decoder.decode(payload).priority is not msgspec.UNSET:
            return payload
    except msgspec.MsgspecError:
        return payload  # the engine says what is wrong with it
    less_urgent_by = _RANKS[work.tier] * _LEVELS + PRIORITY_MAX - work.priority
    highest = len(TIERS) * _LEVELS - 1
    value = less_urgent_by if order is EnginePriority.LOWER_FIRST else highest - less_urgent_by
    rest = payload.lstrip()[1:].lstrip()
    return b'{"priority":%d%b%b' % (value, b"" if rest.startswith(b"}") else b",", rest)
