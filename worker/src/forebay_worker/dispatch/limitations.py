"""What keeps the next request of a tier, or of all, from starting. Pure: it reads and changes nothing."""

from __future__ import annotations

from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_worker.dispatch.breaker import BreakerState
from forebay_worker.dispatch.dispatcher import Dispatcher
from forebay_worker.pacing.limitation import Limitation


def limitation_of(dispatcher: Dispatcher, tier: Tier, now: float) -> Limitation | None:
    """What keeps the tier's next request from starting; None when nothing does, or nothing waits in it.

    ``now``: monotonic seconds.
    """
    lanes, gate, running = dispatcher.lanes, dispatcher.gate, len(dispatcher.running)
    if not waiting_requests(dispatcher, tier):
        return None
    of_all = dispatcher.limited_by(now)
    if of_all is not None or tier is Tier.HIGH or dispatcher.breaker.state is not BreakerState.CLOSED:
        return of_all
    waiting_above = sum(len(lanes[above]) for above in TIERS[: TIERS.index(tier)])
    if waiting_above:
        return Limitation("higher_tiers", waiting_above, 0)
    if dispatcher.slots.only_high:
        assert gate.model.token_seconds is not None
        assert gate.policy.token_seconds_target is not None
        return Limitation("only_high", round(gate.model.token_seconds, 6), round(gate.policy.token_seconds_target, 6))
    if (kept := dispatcher.slots.memory_kept_for_high(now)) is not None:
        return kept
    open_to_all = gate.share_requests - lanes.shares.reserved(now, gate.share_requests)
    return Limitation("reserve", running, open_to_all) if running >= open_to_all else None


def limitation(dispatcher: Dispatcher, now: float) -> Limitation | None:
    """What limits dispatch: in all, else what limits the most urgent of the tiers in which something waits."""
    of_all = dispatcher.limited_by(now)
    if of_all is not None:
        return of_all
    of_tiers = (limitation_of(dispatcher, tier, now) for tier in TIERS)
    return next((found for found in of_tiers if found is not None), None)


def waiting_requests(dispatcher: Dispatcher, tier: Tier) -> int:
    """What was taken out of its lane and waits for a commit before it starts does not run."""
    return len(dispatcher.lanes[tier]) + dispatcher.named_starts.of_tier(tier)
