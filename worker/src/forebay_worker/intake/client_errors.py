"""Errors of an intake's topics and of its group that still hold. Pure.

One thread notes them; any thread may read them and clear denials after a check of the permissions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from forebay_schemas.kafka.permissions import Access, Resource

SAY_AGAIN_SECONDS: Final = 10.0
"""Interval for logging an error that goes on: a denied topic that was never read is refused hundreds of times a
second."""

_CLIENT: Final = ""
"""Key of the error that belongs to no topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trouble:
    why: str
    noted_at: float
    said_at: float
    is_denial: bool


class ClientErrors:
    """The last error of each topic, and of the client as a whole (topic None). Times in seconds."""

    def __init__(self) -> None:
        self._found: dict[str, _Trouble] = {}

    def note(self, topic: str | None, why: str, *, now: float, is_denial: bool) -> bool:
        """Notes an error. Returns whether to log it: it is new, or was last logged long ago."""
        last = self._found.get(topic or _CLIENT)
        is_news = last is None or last.why != why or now - last.said_at >= SAY_AGAIN_SECONDS
        said_at = now if last is None or is_news else last.said_at
        self._found[topic or _CLIENT] = _Trouble(why=why, noted_at=now, said_at=said_at, is_denial=is_denial)
        return is_news

    def received(self, topic: str) -> None:
        """Clears the errors of the topic and of the client: a record was received."""
        if self._found:
            self._found.pop(_CLIENT, None)
            self._found.pop(topic, None)

    def recovered(self) -> None:
        """Clears all errors: nothing has failed for a while."""
        if self._found:
            self._found.clear()

    @property
    def has_denial(self) -> bool:
        """Whether a request was denied and nothing was received since."""
        return any(trouble.is_denial for trouble in self._found.copy().values())

    def forget_denials(self, lacking: Collection[Access], *, before: float) -> None:
        """Clears denials noted ``before`` the permissions were asked for, where nothing is ``lacking`` now."""
        topics = {access.name for access in lacking if access.resource is Resource.TOPIC}
        is_group_denied = any(access.resource is Resource.GROUP for access in lacking)
        for topic, trouble in self._found.copy().items():
            is_over = topic not in topics if topic != _CLIENT else not is_group_denied
            if trouble.is_denial and trouble.noted_at < before and is_over:
                self._found.pop(topic, None)

    def texts(self, assigned_at: Mapping[str, float]) -> list[str]:
        """The errors that still hold. A topic assigned after its error exists again, with or without a record."""
        return [
            trouble.why
            for topic, trouble in self._found.copy().items()
            if assigned_at.get(topic, 0.0) <= trouble.noted_at
        ]
