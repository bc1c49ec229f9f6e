"""The users of the drawing service, their arrival times, and their patience. Pure: no clock, no chance, no I/O.

All times are multiples of a drawing's mean time, so that quicker drawings scale the whole run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from forebay_schemas.contract.tiers import Tier
from forebay_schemas.errors import UsageError

SLOTS_A_WORKER: Final = 8
"""Concurrent drawings of each worker: two workers finish one image a second when an image takes 15 s."""

EARLY_PAID: Final = 4
BURST_FREE: Final = 44
STEADY_FREE: Final = 36
STEADY_PAID: Final = 20

# In drawings: of 15 s each, the burst is over after 9 s, and the last user comes after 80 s.
_EARLY_SPAN: Final = 0.06
_BURST_START: Final = 0.35
_BURST_SPAN: Final = 0.2
_STEADY_START: Final = 0.55
_STEADY_END: Final = 5.28

FEE_EVERY: Final = 4
"""Every fourth free user pays the fee if patience ends before the image comes."""
_PATIENCE_MIN: Final = 2 / 3
_PATIENCE_MAX: Final = 4 / 3

TTL_MS: Final = {Tier.HIGH: 10 * 60_000, Tier.LOW: 30 * 60_000}
"""Set on each request, as the tiers' defaults are for chats in high and batches in low."""

_GOLDEN: Final = 0.6180339887498949
_SUBJECTS: Final = ("a heron at the weir", "the mill in fog", "barges at dusk", "a sluice in spring", "an otter asleep")
_STYLES: Final = ("in ink", "in oil", "as a woodcut", "in pastel")


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """One user and the one image that they ask for, ``at_seconds`` after the start."""

    number: int
    at_seconds: float
    tier: Tier
    """high: pays each month; low: pays nothing."""
    patience_seconds: float | None
    """How long a free user waits before paying the fee; None: does not pay it."""

    @property
    def prompt(self) -> str:
        """Unique to this user."""
        subject, style = _SUBJECTS[self.number % len(_SUBJECTS)], _STYLES[self.number % len(_STYLES)]
        return f"{subject}, {style}, no. {self.number}"

    def request(self) -> dict[str, Any]:
        """The envelope to submit; the client fills in the id."""
        return {
            "biz_type": "image_generation",
            "priority": self.tier,
            "ttl_ms": TTL_MS[self.tier],
            "payload": {"model": "weir-painter", "prompt": self.prompt, "response_format": "b64_json"},
        }


def users(*, image_seconds: float) -> list[User]:
    """All users in order of arrival. Raises ``UsageError``.

    A few who pay come first: from then on the workers keep a slot for high. Then the burst, then both kinds, steadily.
    """
    if not 0.2 <= image_seconds <= 60:
        raise UsageError("--image-seconds", f"is {image_seconds:g}", fix="give 0.2 to 60")
    moments = [
        *((at, Tier.HIGH) for at in _spread(EARLY_PAID, 0.0, _EARLY_SPAN)),
        *((at, Tier.LOW) for at in _spread(BURST_FREE, _BURST_START, _BURST_START + _BURST_SPAN)),
        *((at, Tier.LOW) for at in _spread(STEADY_FREE, _STEADY_START, _STEADY_END)),
        *((at, Tier.HIGH) for at in _spread(STEADY_PAID, _STEADY_START, _STEADY_END)),
    ]
    free = count()
    return [
        User(
            number=number,
            at_seconds=at * image_seconds,
            tier=tier,
            patience_seconds=_patience(next(free), image_seconds) if tier is Tier.LOW else None,
        )
        for number, (at, tier) in enumerate(sorted(moments))
    ]


def _patience(number: int, image_seconds: float) -> float | None:
    if number % FEE_EVERY != FEE_EVERY - 1:
        return None
    return image_seconds * (_PATIENCE_MIN + (_PATIENCE_MAX - _PATIENCE_MIN) * _evenly(number))


def _spread(number: int, start: float, end: float) -> Iterator[float]:
    """``number`` moments from start to end, one in each equal part, at unequal distances."""
    return (start + (end - start) * (index + _evenly(index)) / number for index in range(number))


def _evenly(index: int) -> float:
    """Numbers from 0 to 1 that look random and fill the range evenly (the golden ratio's multiples)."""
    return index * _GOLDEN % 1
