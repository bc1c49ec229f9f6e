"""What is wrong with an intake's topics and its group, from when it is noticed until it has passed. Pure.

One thread notes it, any may read it; denials are forgotten by whoever has asked what is allowed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from forebay_schemas.kafka.permissions import Access, Resource

SAY_AGAIN_SECONDS: Final = 10.0
"""What goes on is said again so often: a denied topic that was never read is refused hundreds of times a second."""

_CLIENT: Final = ""
"""The trouble that belongs to no topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trouble:
    why: str
    noted_at: float
    said_at: float
    is_denial: bool


class ClientErrors:
    """Keeps the last trouble of each topic and of the client as a whole (topic None). Times in seconds."""

    def __init__(self) -> None:
        self._found: dict[str, _Trouble] = {}

    def note(self, topic: str | None, why: str, *, now: float, is_denial: bool) -> bool:
        """Returns whether that is news, or has gone on for so long that it should be said again."""
        last = self._found.get(topic or _CLIENT)
        is_news = last is None or last.why != why or now - last.said_at >= SAY_AGAIN_SECONDS
        said_at = now if last is None or is_news else last.said_at
        self._found[topic or _CLIENT] = _Trouble(why=why, noted_at=now, said_at=said_at, is_denial=is_denial)
        return is_news

    def received(self, topic: str) -> None:
        """A record came: nothing is wrong with its topic, nor with the client."""
        if self._found:
            self._found.pop(_CLIENT, None)
            self._found.pop(topic, None)

    def recovered(self) -> None:
        """Nothing has failed for a while: nothing is wrong any more."""
        if self._found:
            self._found.clear()

    @property
    def has_denial(self) -> bool:
        """Whether something was refused, and nothing has come since."""
        return any(trouble.is_denial for trouble in self._found.copy().values())

    def forget_denials(self, lacking: Collection[Access], *, before: float) -> None:
        """Denials noted ``before`` the brokers were asked are over where nothing is ``lacking`` any more."""
        topics = {access.name for access in lacking if access.resource is Resource.TOPIC}
        is_group_denied = any(access.resource is Resource.GROUP for access in lacking)
        for topic, trouble in self._found.copy().items():
            is_over = topic not in topics if topic != _CLIENT else not is_group_denied
            if trouble.is_denial and trouble.noted_at < before and is_over:
                self._found.pop(topic, None)

    def texts(self, assigned_at: Mapping[str, float]) -> list[str]:
        """What is wrong. A topic that was assigned anew since is there again, whether or not a record came."""
        return [
            trouble.why
            for topic, trouble in self._found.copy().items()
            if assigned_at.get(topic, 0.0) <= trouble.noted_at
        ]
