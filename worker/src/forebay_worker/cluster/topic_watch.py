"""The ids of the pool's topics: checks every few seconds whether a topic was recreated.

A thread of its own asks, by `step`; any thread may read. Never raises.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import Final

import structlog

from forebay_schemas.clock import Clock, MakeEvent

LOOK_SECONDS: Final = 2.0
TURN_SECONDS: Final = 0.1
AGAIN_SECONDS: Final = 0.2
"""The least time between two checks, however often one is requested."""

log = structlog.get_logger("forebay.topics")


class TopicWatch:
    """``ask`` returns the id of each topic that exists and has one; it may raise, and block for some seconds.

    A deleted topic keeps its id: only a different id shows that it was recreated.
    """

    def __init__(
        self,
        *,
        topics: Collection[str],
        ask: Callable[[Collection[str]], Mapping[str, int]],
        clock: Clock,
        turn_seconds: float = TURN_SECONDS,
        make_event: MakeEvent = threading.Event,
    ) -> None:
        self._topics = tuple(topics)
        self._ask = ask
        self._clock = clock
        self._turn_seconds = turn_seconds
        self._ids: dict[str, int] = {}
        self._seen_ms: dict[str, int] = {}
        self._changed_after_ms: dict[str, int] = {}
        self._wanted_until = float("-inf")
        self._wanted = make_event()
        self._is_failing = False
        self._looked_at = float("-inf")
        self.known_until = float("-inf")
        """`id_of` was correct at this moment (monotonic seconds) or later."""
        self.changes = 0
        """Grows when an id becomes known or changes."""

    def id_of(self, topic: str) -> int | None:
        """The topic's id; None when it is not known."""
        return self._ids.get(topic)

    def changed_after_ms(self, topic: str) -> int:
        """When (epoch milliseconds) the former topic was last seen; 0 if it never was."""
        return self._changed_after_ms.get(topic, 0)

    def look_until(self, now: float) -> None:
        """Asks for `known_until` to reach ``now`` soon."""
        if now > self._wanted_until:
            self._wanted_until = now
            self._wanted.set()

    def step(self) -> None:
        """Waits briefly, and asks if it is time."""
        self._wanted.wait(self._turn_seconds)
        self._wanted.clear()
        is_wanted = self._wanted_until > self.known_until
        if self._clock.monotonic() - self._looked_at >= (AGAIN_SECONDS if is_wanted else LOOK_SECONDS):
            self.look()

    def look(self) -> None:
        """Asks the brokers now."""
        now, now_ms = self._clock.monotonic(), self._clock.wall_ms()
        self._looked_at = now
        try:
            found = self._ask(self._topics)
        except Exception as error:  # noqa: BLE001 - whatever it was, it is asked again
            if not self._is_failing:
                log.warning("the ids of topics are not known; asking again", error=str(error))
            self._is_failing = True
            return
        self._is_failing = False
        for topic, topic_id in found.items():
            before = self._ids.get(topic)
            if before is not None and before != topic_id:
                log.error("a topic was deleted and made anew", topic=topic)
                self._changed_after_ms[topic] = self._seen_ms[topic]
            self._seen_ms[topic] = now_ms
            if before != topic_id:
                self._ids[topic] = topic_id
                self.changes += 1
        self.known_until = now

    def close(self) -> None:
        """Frees nothing: there is nothing to free."""
