"""What is wanted of requests: the cancels and expedites that were heard, by request id. Pure; one thread uses it."""

from __future__ import annotations

from dataclasses import dataclass

from forebay_schemas.contract.control import Control, ControlAction
from forebay_schemas.contract.tiers import TTL_MS_MAX, Tier
from forebay_worker.request.work import Work

CONTROLS_MAX = 100_000
"""So many ids are remembered, 30 MB. Beyond, the oldest is forgotten: it holds for what was found of it until then."""

CLOCKS_DIFFER_MS = 5_000
"""A request and the wish to cancel it may be stamped by brokers whose clocks differ."""

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

    __slots__ = ("_fresh", "entries")

    def __init__(self) -> None:
        self.entries: dict[str, _Entry] = {}
        """By request id, the one heard last at the end. Empty: nothing is wanted of any request."""
        self._fresh: list[tuple[Control, int]] = []

    def hear(self, control: Control, stamped_ms: int) -> None:
        """Takes in a record of the control topic. ``stamped_ms``: the broker's time on it."""
        entries = self.entries
        entry = entries.pop(control.request_id, None) or _Entry()
        if control.action is ControlAction.CANCEL:
            entry.cancel_ms = stamped_ms
        else:
            entry.expedite_ms = stamped_ms
        entries[control.request_id] = entry
        self._fresh.append((control, stamped_ms))
        while len(entries) > CONTROLS_MAX or self._is_over(next(iter(entries.values())), stamped_ms):
            del entries[next(iter(entries))]

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

    def _is_over(self, entry: _Entry, now_ms: int) -> bool:
        """Whether no request that was there when it was said can still wait."""
        return max(entry.cancel_ms, entry.expedite_ms) < now_ms - TTL_MS_MAX
