"""Pending cancel and expedite commands, by request id. Pure; one thread uses it, another may fill ``received``."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from forebay_schemas.bounded import BoundedMap
from forebay_schemas.contract.control import Control, ControlAction
from forebay_schemas.contract.tiers import TTL_MS_MAX, Tier
from forebay_worker.request.work import Work

CONTROLS_MAX = 100_000
"""So many ids are remembered, 30 MB. Beyond, the oldest is forgotten: it holds for what was found of it until then."""

CLOCKS_DIFFER_MS = 5_000
"""A request and the wish to cancel it may be stamped by brokers whose clocks differ."""

RECEIVED_MAX = 10_000
"""Whoever reads the control topic waits while so many are not taken in yet."""

RECENT_MS = 60_000
"""Somebody may still wait for the answer to a wish that is no older."""


@dataclass(slots=True)
class _Entry:
    """When each was asked for last, in epoch milliseconds by the broker's stamp; 0 for never."""

    cancel_ms: int = 0
    expedite_ms: int = 0


def concerns(action: ControlAction, stamped_ms: int, work: Work) -> bool:
    """Whether a wish for a request's id, with the broker's ``stamped_ms`` on it, is meant for this very request."""
    if action is ControlAction.EXPEDITE and work.tier is Tier.HIGH:
        return False
    # A replay is another request under the same id: what was wanted of the first one does not concern it.
    since_ms = work.first_enqueued_at if work.history.replay_count == 0 else work.record.timestamp()[1]
    return stamped_ms >= since_ms - CLOCKS_DIFFER_MS


class Controls:
    """A wish concerns the requests of its id that were enqueued before it, wherever and whenever they are met."""

    __slots__ = ("_fresh", "entries", "received")

    def __init__(self) -> None:
        self.entries: BoundedMap[str, _Entry] = BoundedMap(entries_max=CONTROLS_MAX)
        """By request id, the one heard last at the end. Empty: nothing is wanted of any request."""
        self.received: deque[tuple[Control, int]] = deque()
        """Where another thread puts records of the control topic, each with its stamp, for `take_received`."""
        self._fresh: list[tuple[Control, int]] = []

    def has_room(self) -> bool:
        """Whether more may be put into ``received``."""
        return len(self.received) < RECEIVED_MAX

    def take_received(self) -> None:
        """Takes in what another thread has heard."""
        received, stamped_ms = self.received, 0
        while received:
            control, stamped_ms = received.popleft()
            self._note(control, stamped_ms)
        self._forget_over(stamped_ms)

    def receive(self, control: Control, stamped_ms: int) -> None:
        """Takes in a record of the control topic. ``stamped_ms``: the broker's time on it."""
        self._note(control, stamped_ms)
        self._forget_over(stamped_ms)

    def _note(self, control: Control, stamped_ms: int) -> None:
        entries = self.entries
        entry = entries.get(control.request_id) or _Entry()
        if control.action is ControlAction.CANCEL:
            entry.cancel_ms = stamped_ms
        else:
            entry.expedite_ms = stamped_ms
        entries.put(control.request_id, entry)
        self._fresh.append((control, stamped_ms))

    def take_fresh(self) -> list[tuple[Control, int]]:
        """What was heard since the last call, each with its stamp."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def wanted(self, work: Work) -> ControlAction | None:
        """What is wanted of a request; a cancel wins, and a request of the high tier has nothing to be expedited."""
        entry = self.entries.get(work.request_id or "")
        if entry is None:
            return None
        if concerns(ControlAction.CANCEL, entry.cancel_ms, work):
            return ControlAction.CANCEL
        return ControlAction.EXPEDITE if concerns(ControlAction.EXPEDITE, entry.expedite_ms, work) else None

    def give_up_expedite(self, request_id: str) -> None:
        """It cannot be done, and is not tried again."""
        entry = self.entries.get(request_id)
        if entry is not None:
            entry.expedite_ms = 0

    def _forget_over(self, now_ms: int) -> None:
        """Forgets those of which no request that was there when they were given can still wait."""
        entries = self.entries
        while entries:
            oldest = entries.oldest()
            if max(oldest.cancel_ms, oldest.expedite_ms) >= now_ms - TTL_MS_MAX:
                break
            entries.forget_oldest()
