"""Pending cancel and expedite commands, by request id. Pure; one thread uses it, another may fill ``received``."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from forebay_schemas.bounded import BoundedMap
from forebay_schemas.contract.control import Control, ControlAction
from forebay_schemas.contract.tiers import TTL_MS_MAX, Tier
from forebay_worker.request.work import Work

CONTROLS_MAX = 100_000
"""Number of remembered ids, 30 MB. Beyond it the oldest is dropped; it still applies to requests found before."""

CLOCKS_DIFFER_MS = 5_000
"""A request and its cancel may be stamped by brokers whose clocks differ."""

RECEIVED_MAX = 10_000
"""The reader of the control topic waits while this many records are not applied."""

RECENT_MS = 60_000
"""A client may still wait for the answer to a command of this age."""


@dataclass(slots=True)
class _Entry:
    """When each was last asked for, in epoch milliseconds by the broker's stamp; 0 for never."""

    cancel_ms: int = 0
    expedite_ms: int = 0


def concerns(action: ControlAction, stamped_ms: int, work: Work) -> bool:
    """Whether a command for a request's id, with the broker's ``stamped_ms``, applies to this very request."""
    if action is ControlAction.EXPEDITE and work.tier is Tier.HIGH:
        return False
    # A replay is another request under the same id: commands for the first one do not apply to it.
    since_ms = work.first_enqueued_at if work.history.replay_count == 0 else work.record.timestamp()[1]
    return stamped_ms >= since_ms - CLOCKS_DIFFER_MS


class Controls:
    """A command applies to the requests of its id that were enqueued before it, wherever and whenever they are met."""

    __slots__ = ("_fresh", "entries", "received")

    def __init__(self) -> None:
        self.entries: BoundedMap[str, _Entry] = BoundedMap(entries_max=CONTROLS_MAX)
        """By request id, the last received at the end. Empty: no command is pending."""
        self.received: deque[tuple[Control, int]] = deque()
        """Filled by another thread with records of the control topic, each with its stamp, for `take_received`."""
        self._fresh: list[tuple[Control, int]] = []

    def has_room(self) -> bool:
        """Whether more may be put into ``received``."""
        return len(self.received) < RECEIVED_MAX

    def take_received(self) -> None:
        """Applies the records that another thread has received."""
        received, stamped_ms = self.received, 0
        while received:
            control, stamped_ms = received.popleft()
            self._note(control, stamped_ms)
        self._forget_over(stamped_ms)

    def receive(self, control: Control, stamped_ms: int) -> None:
        """Applies a record of the control topic. ``stamped_ms``: the broker's time on it."""
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
        """The records received since the last call, each with its stamp."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def wanted(self, work: Work) -> ControlAction | None:
        """The command for a request. A cancel wins; a request of the high tier needs no expedite."""
        entry = self.entries.get(work.request_id or "")
        if entry is None:
            return None
        if concerns(ControlAction.CANCEL, entry.cancel_ms, work):
            return ControlAction.CANCEL
        return ControlAction.EXPEDITE if concerns(ControlAction.EXPEDITE, entry.expedite_ms, work) else None

    def give_up_expedite(self, request_id: str) -> None:
        """Drops an expedite that cannot be done."""
        entry = self.entries.get(request_id)
        if entry is not None:
            entry.expedite_ms = 0

    def _forget_over(self, now_ms: int) -> None:
        """Drops the commands that can apply to no waiting request any more."""
        entries = self.entries
        while entries:
            oldest = entries.oldest()
            if max(oldest.cancel_ms, oldest.expedite_ms) >= now_ms - TTL_MS_MAX:
                break
            entries.forget_oldest()
