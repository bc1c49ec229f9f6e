"""Chooses the tier for the next free slot: high before mid before low, with a minimum share of slot time for the lower
ones and a reserve for high alone. Pure; one thread; monotonic seconds passed in. All O(1)."""

from __future__ import annotations

import math
from collections.abc import Mapping

from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_schemas.estimate.waits import MINIMUM_SHARES

RESERVE_SHARE = 0.10
RESERVE_LIMIT_MIN = 4
"""With fewer slots a reserved one would cost more throughput than it saves waiting."""
RESERVE_SECONDS = 60.0
"""How long after the last high request the reserve holds: a pool with batches alone uses all its slots."""

CREDIT_SECONDS = 1.0
"""A tier is owed at most its share of this time, but up to one slot second: nothing is saved up for a burst."""

DEBT_SECONDS = 120.0
"""A tier is charged for at most this length of an execution in each of its slots. Longer ones are rare, and while
dispatch stands still (a broken backend) time passes without any execution."""

_HIGH, _MID, _LOW = TIERS
"""Reading a member of an Enum class costs as much as one or two dict look-ups, several times a request."""


class _Lower:
    """A tier below high. ``running`` and ``contended`` (a more urgent tier waits) hold since the last look.

    ``due_slots``: its share of the slots in use. ``slots_max``: how many it may be given for that.
    """

    __slots__ = (
        "contended",
        "due_slots",
        "owed_slot_seconds",
        "owed_slot_seconds_max",
        "running",
        "share",
        "slots_max",
        "waits",
    )

    def __init__(self, share: float) -> None:
        self.share = share
        self.owed_slot_seconds = 0.0
        self.running = 0
        self.waits = False
        self.contended = False
        self.resize(0)

    def resize(self, slots: int) -> None:
        self.due_slots = self.share * slots
        self.slots_max = max(1, math.ceil(self.due_slots))
        self.owed_slot_seconds_max = max(1.0, self.due_slots * CREDIT_SECONDS)

    def account(self, seconds: float) -> None:
        """Credits it with its share of the elapsed time, and charges it for the slots that it held."""
        # Mostly comparisons instead of min and max: half the time, on a path of every request.
        earned, running, slots_max = self.due_slots, self.running, self.slots_max
        if self.contended:
            # Slots beyond its share are free while no more urgent request waits.
            earned -= min(slots_max, running)
        owed = self.owed_slot_seconds + earned * seconds
        if owed > 0:
            if not self.waits:
                owed = 0.0
            elif owed > self.owed_slot_seconds_max:
                owed = self.owed_slot_seconds_max
        elif owed < -DEBT_SECONDS * slots_max:
            owed = -DEBT_SECONDS * slots_max
        self.owed_slot_seconds = owed


class TierShares:
    """Accounts of the slot time that the lower tiers are owed.

    ``minimum``: shares of the limit for mid and low. A share of less than one slot is given as one slot for a part of
    the time. Slots that a tier takes while no more urgent one waits are not charged.

    ``reserve``: share of the limit. Mid and low leave the last free slots to high, beyond their minimum, so that a high
    request finds one free at once (trunk reservation, as in telephone exchanges).
    """

    __slots__ = ("_at", "_high_seen_at", "_low", "_mid", "_reserve", "_slots", "minimum")

    def __init__(self, *, minimum: Mapping[Tier, float] = MINIMUM_SHARES, reserve: float = RESERVE_SHARE) -> None:
        self.minimum = minimum
        self._mid = _Lower(minimum[Tier.MID])
        self._low = _Lower(minimum[Tier.LOW])
        self._reserve = reserve
        self._slots = 0
        self._at = 0.0
        self._high_seen_at = -math.inf

    def arrived(self, tier: Tier, now: float, *, first: bool) -> None:
        """Notes a request that joined its lane. ``first``: the lane was empty before."""
        if tier is _HIGH:
            self._high_seen_at = now
        if not first:
            return
        self._account(now)
        if tier is _HIGH:
            self._mid.contended = self._low.contended = True
        elif tier is _MID:
            self._mid.waits = self._low.contended = True
        else:
            self._low.waits = True

    def choose(
        self,
        now: float,
        *,
        high: bool,
        mid: bool,
        low: bool,
        running: Mapping[Tier, int],
        limit: int,
        only_high: bool = False,
    ) -> Tier | None:
        """The tier to take from, among those with waiting requests; None if none may take a slot.

        ``running``: by tier, without the one that starts now. The caller makes sure that a slot is free.
        """
        self._account(now)
        running_all = running.get(_HIGH, 0) + running.get(_MID, 0) + running.get(_LOW, 0)
        # If tokens hold dispatch back long before the limit does, only the guaranteed shares would run.
        contended = high or (mid and low and not only_high)
        slots = min(limit, running_all + 1) if contended else limit
        if slots != self._slots:
            self._slots = slots
            self._mid.resize(slots)
            self._low.resize(slots)
        lower_mid, lower_low = self._mid, self._low
        running_mid, running_low = running.get(_MID, 0), running.get(_LOW, 0)
        if mid and lower_mid.owed_slot_seconds > 0 and running_mid < lower_mid.slots_max:
            chosen: Tier | None = _MID
        elif low and lower_low.owed_slot_seconds > 0 and running_low < lower_low.slots_max:
            chosen = _LOW
        elif high:
            chosen = _HIGH
        elif not only_high and running_all < limit - self.reserved(now, limit):
            chosen = _MID if mid else _LOW if low else None
        else:
            chosen = None
        lower_mid.running = running_mid + (chosen is _MID)
        lower_low.running = running_low + (chosen is _LOW)
        lower_mid.waits, lower_low.waits = mid, low
        lower_mid.contended, lower_low.contended = high, high or mid
        return chosen

    def reserved(self, now: float, limit: int) -> int:
        """Number of slots kept for high."""
        if limit < RESERVE_LIMIT_MIN or self._reserve <= 0 or now - self._high_seen_at > RESERVE_SECONDS:
            return 0
        return max(1, int(self._reserve * limit))

    def owed_slot_seconds(self, tier: Tier) -> float:
        """Slot time owed to a lower tier at the last update; negative if it had more than its share."""
        return (self._mid if tier is Tier.MID else self._low).owed_slot_seconds

    def _account(self, now: float) -> None:
        seconds = now - self._at
        if seconds <= 0:
            return
        self._at = now
        for lower in (self._mid, self._low):
            if lower.waits or lower.contended or lower.owed_slot_seconds:
                lower.account(seconds)
