"""This worker's share of a backend's slots, from the records that all its workers publish on the coordination topic.
Pure; one thread; times are monotonic seconds that the caller passes in.

The topic has one partition, so all workers read the same records in the same order. Each record states its worker's
share and claim. A claim holds from the moment at which it is *read*, as far as the other workers' holds leave room
(`Sharing.receive`). So a share grows only into released slots, and the holds never sum to more than the limit. A share
is lowered at once; others may take it when its worker's next record is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from forebay_schemas.contract.coordination import CAPACITY_SECONDS, GONE_SECONDS, Capacity
from forebay_schemas.contract.tiers import DEFAULT_TIER_TIMES, TIERS, Tier, TierTimes
from forebay_worker.pacing.slots.allocation import Wanted, allocate

SILENT_SECONDS = 12.0
"""A worker that has not received its own record for this long starts nothing more: others may soon take it for gone.
Longer than a change of a broker's leadership (9 s until its session ends, and the clients must learn of it)."""

NEW_SECONDS = 2 * CAPACITY_SECONDS
"""How long a joining worker first follows the others."""

NEW_SHARE_REQUESTS = 1

AGAIN_SECONDS = 0.1
AGAIN_SECONDS_PER_WORKER = 0.01
"""While shares change hands a worker publishes more than a record a second: ten, but all workers together a hundred."""

LEARNT_SECONDS = 20.0
"""Before, a policy's own figures (time of a token, stretch of the target) still settle."""

TURN_SECONDS = 5.0
"""How long a worker keeps its slot where there are fewer slots than workers that want one."""

HIGH_SEEN_SECONDS = 60.0
"""How long after the last high request slots are kept free for the next, as within a worker (`tier_shares`)."""


LIMIT_MAX_TIMES = 8
"""Other workers' figures are trusted up to this multiple of this worker's own highest limit. All must trust the same
figures, or they would compute different holds: so it is more than a rollout raises the limit by."""

TWIN_TURNS = 2
"""One record of the same id from another process may be the last one of a former process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """This worker's present demand. ``wanted``: by tier, running requests and those that only the share keeps from
    starting."""

    limit_requests: float
    in_flight: int
    wanted: Wanted
    ended_per_second: float = 0.0
    service_seconds: float | None = None
    dropped_total: int = 0
    cuts_total: int = 0
    fitted_seconds: tuple[float, float, float] | None = None
    draining: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Others:
    """The other workers on the backend, by their last records. ``wanted``: their requests in flight and waiting.
    ``dropped_total``: requests that they gave up for the deadline since this worker began to follow."""

    workers: int = 0
    in_flight: int = 0
    wanted: int = 0
    dropped_total: int = 0


_Key = tuple[str, int]
"""A worker's id and incarnation."""


@dataclass(slots=True)
class _Member:
    """Another worker. ``hold_requests``: its share, and requests that still run beyond it. ``published_at``: when a
    broker took its record."""

    capacity: Capacity
    published_at: float
    hold_requests: int


@dataclass(slots=True)
class _Sent:
    sequence: int
    at: float
    claim_requests: int


class Sharing:
    """One worker's view. Call `receive` for each capacity record in the topic's order, this worker's own included, and
    `step` many times a second; send what it returns.

    ``share_requests``: the number of requests this worker may have in flight now. ``incarnation``: see `Capacity`.
    ``limit_min`` and ``limit_max``: bounds of the backend's limit in this worker's settings. ``tier_times``: published,
    and not used otherwise.
    """

    def __init__(
        self,
        *,
        worker: str,
        backend: str,
        minimum: Mapping[Tier, float],
        reserve_share: float,
        incarnation: int,
        limit_min: int,
        limit_max: int,
        tier_times: TierTimes = DEFAULT_TIER_TIMES,
    ) -> None:
        self.tier_times = tier_times
        self.share_requests = 0
        self.read_own_at = float("-inf")
        """Send time of the latest of this worker's records that it has read."""
        self._backend = backend
        self._minimum = minimum
        self._reserve_share = reserve_share
        self._own_key = (worker, incarnation)
        self._limit_min, self._limit_max = limit_min, limit_max
        self._twin_turns = 0
        self._is_own_last = False
        self._sequence = 0
        self._members: dict[_Key, _Member] = {}
        self._sent: deque[_Sent] = deque()
        self._undelivered = self._others_dropped = 0
        self._granted = 0
        self._target = 0
        self._joined_at: float | None = None
        self._high_seen_at = float("-inf")
        self._said: Capacity | None = None
        self._said_at = float("-inf")
        self._others = Others()

    @property
    def worker(self) -> str:
        """This worker's id."""
        return self._own_key[0]

    @property
    def target_requests(self) -> int:
        """The share that this worker is due; it has less until others have released it."""
        return self._target

    @property
    def others(self) -> Others:
        """The other workers, as of the last `step`."""
        return self._others

    @property
    def members(self) -> list[Capacity]:
        """The last record of each worker on the backend, this one included once it has read its own."""
        return [member.capacity for _, member in sorted(self._members.items())]

    @property
    def has_twin(self) -> bool:
        """Whether another process publishes under this worker's id."""
        return self._twin_turns >= TWIN_TURNS

    def receive(self, capacity: Capacity, *, now: float, age_seconds: float) -> float | None:
        """Receives a record that a broker took ``age_seconds`` ago. Returns the limit to which the backend made its
        worker cut, if that is new.

        Every worker computes the same holds: the sender's share, and as much of its claim as the others leave.
        """
        at = now - max(0.0, age_seconds)
        if capacity.backend != self._backend or at <= now - GONE_SECONDS:
            return None
        key = (capacity.worker, capacity.incarnation)
        before = self._members.get(key)
        if before is not None and capacity.sequence <= before.capacity.sequence:
            return None  # a retry by a producer that did not know of the first delivery
        self._look_for_twin(key, capacity)
        capacity = _at_most(capacity, LIMIT_MAX_TIMES * self._limit_max)
        self._forget_gone(at)
        others = self._members_but(key)
        share = max(capacity.share_requests, min(capacity.claim_requests, _room(capacity.limit_requests, others)))
        self._members[key] = _Member(capacity, at, max(share, capacity.in_flight))
        if key == self._own_key:
            self._receive_own(capacity, share, now)
            return None
        if capacity.draining and not capacity.in_flight:
            del self._members[key]
        if before is None:
            return None
        self._others_dropped += max(0, capacity.dropped_total - before.capacity.dropped_total)
        return self._bounded(capacity.limit_requests) if capacity.cuts_total > before.capacity.cuts_total else None

    def _look_for_twin(self, key: _Key, capacity: Capacity) -> None:
        if key == self._own_key:
            self._is_own_last = True
        elif capacity.worker == self._own_key[0] and not capacity.draining and self._is_own_last:
            self._is_own_last = False
            self._twin_turns += 1

    def _bounded(self, limit_requests: float) -> float:
        return min(max(limit_requests, float(self._limit_min)), float(self._limit_max))

    def _receive_own(self, capacity: Capacity, share: int, now: float) -> None:
        while self._sent and self._sent[0].sequence < capacity.sequence:
            self._sent.popleft()
        if not self._sent or self._sent[0].sequence != capacity.sequence:
            return  # sent long ago and given up since
        sent = self._sent.popleft()
        self._granted = share
        self.read_own_at = sent.at
        if self._joined_at is None and now - sent.at <= SILENT_SECONDS:
            self._joined_at = now

    def delivered(self) -> None:
        """Notes that the record from `step` was written, or will not be."""
        self._undelivered -= 1

    def is_silent(self, now: float) -> bool:
        """Whether this worker is cut off: it does not receive its own records."""
        return now - self.read_own_at > SILENT_SECONDS

    def step(self, now: float, now_ms: int, own: Own) -> Capacity | None:
        """Sets `share_requests`. Returns the record to send now, to be followed by `delivered`.

        ``now_ms``: epoch milliseconds by the brokers' clock, by which workers take turns.
        """
        self._forget_gone(now)
        while self._sent and now - self._sent[0].at > SILENT_SECONDS:
            self._sent.popleft()
        if self.is_silent(now):
            # Others may hold this worker's former share: it begins anew.
            self._granted, self._joined_at = 0, None
        others = [member.capacity for member in self._members_but(self._own_key)]
        self._others = Others(
            workers=len(others),
            in_flight=sum(other.in_flight for other in others),
            wanted=sum(max(other.in_flight, sum(other.wanted.values())) for other in others),
            dropped_total=self._others_dropped,
        )
        wanted = self._wanted(own, now)
        self._target = self._find_target(own, wanted, others, now, now_ms)
        self.share_requests = min([self._granted, self._target, *(sent.claim_requests for sent in self._sent)])
        claim = self._target
        if self._joined_at is None:
            claim = 0
        elif self._is_new(now):
            claim = min(claim, max(NEW_SHARE_REQUESTS, self.share_requests))
        if self._undelivered or not self._is_due(now, own, claim):
            return None
        return self._describe(now, own, wanted, claim)

    def farewell(self, now: float, own: Own) -> Capacity:
        """The last record of this worker; after it nothing of this worker counts."""
        return self._describe(now, own, {}, 0)

    def common_limit(self, own: Own, now_ms: int) -> float:
        """The limit on which all workers agree: the mean of theirs, weighted by requests in flight, since a worker with
        many knows the most and a new one nothing. Each is taken within this worker's own bounds, and weighs no more
        than a whole limit."""
        found = [(self._own_key[1], own.in_flight, own.limit_requests)]
        for member in self._members_but(self._own_key):
            said = member.capacity
            limit = self._bounded(said.limit_requests)
            found.append((said.incarnation, min(said.in_flight, int(max(limit, own.limit_requests))), limit))
        old = [each for each in found if each[1] and now_ms - each[0] >= LEARNT_SECONDS * 1000]
        counted = old or [each for each in found if each[1]] or [(since, 1, limit) for since, _, limit in found]
        return sum(weight * limit for _, weight, limit in counted) / sum(weight for _, weight, _ in counted)

    @property
    def known_seconds(self) -> tuple[float, float, float] | None:
        """`Capacity.fitted_seconds` of the longest-running worker, which has seen the most."""
        known = [
            (member.capacity.incarnation, member.capacity.fitted_seconds)
            for member in self._members_but(self._own_key)
            if member.capacity.fitted_seconds is not None
        ]
        return min(known)[1] if known else None

    def _is_new(self, now: float) -> bool:
        """Whether a worker only follows so far, and need not be alive."""
        return self._joined_at is None or (self._others.workers > 0 and now - self._joined_at < NEW_SECONDS)

    def _wanted(self, own: Own, now: float) -> Wanted:
        """The demand for which others make room: without requests that the worker may not start yet."""
        if not self._is_new(now):
            return own.wanted
        tier = next((tier for tier in TIERS if own.wanted.get(tier)), None)
        return {tier: NEW_SHARE_REQUESTS} if tier is not None else {}

    def _find_target(self, own: Own, wanted: Wanted, others: list[Capacity], now: float, now_ms: int) -> int:
        if own.draining:
            return 0
        slots = int(own.limit_requests)
        if not others:
            return slots
        all_wanted: dict[_Key, Wanted] = {
            (other.worker, other.incarnation): other.wanted for other in others if not other.draining
        }
        all_wanted[self._own_key] = wanted
        if any(each.get(Tier.HIGH) for each in all_wanted.values()):
            self._high_seen_at = now
        keeps_reserve = now - self._high_seen_at <= HIGH_SEEN_SECONDS
        is_scarce = sum(any(each.values()) for each in all_wanted.values()) > slots
        shares = allocate(
            slots,
            all_wanted,
            minimum=self._minimum,
            reserve_slots=int(self._reserve_share * slots) if keeps_reserve else 0,
            turn=int(now_ms / 1000 / TURN_SECONDS) if is_scarce else 0,
        )
        return shares[self._own_key]

    def _is_due(self, now: float, own: Own, claim: int) -> bool:
        said, since = self._said, now - self._said_at
        if said is None or since >= CAPACITY_SECONDS:
            return True
        if since < max(AGAIN_SECONDS, AGAIN_SECONDS_PER_WORKER * len(self._members)):
            return False
        if own.draining != said.draining or own.cuts_total > said.cuts_total:
            return True
        others = self._members_but(self._own_key)
        # The others must learn of a higher demand, or have released slots.
        is_news = claim > said.claim_requests or _room(own.limit_requests, others) > self._granted
        if is_news and claim > self._granted and not self._sent:
            return True
        known = self._members.get(self._own_key)
        # A draining worker reads no more.
        held = said.in_flight if own.draining or known is None else known.hold_requests
        is_less = max(self.share_requests, own.in_flight) < held
        return is_less and any(_is_short(other) for other in others)

    def _describe(self, now: float, own: Own, wanted: Wanted, claim: int) -> Capacity:
        self._sequence += 1
        said = Capacity(
            worker=self._own_key[0],
            backend=self._backend,
            limit_requests=own.limit_requests,
            share_requests=self.share_requests,
            claim_requests=claim,
            in_flight=own.in_flight,
            wanted=dict(wanted),
            ended_per_second=own.ended_per_second,
            service_seconds=own.service_seconds,
            draining=own.draining,
            dropped_total=own.dropped_total,
            cuts_total=own.cuts_total,
            fitted_seconds=own.fitted_seconds,
            tier_ttl_ms=dict(self.tier_times.ttl_ms),
            tier_wait_ms=dict(self.tier_times.wait_ms),
            incarnation=self._own_key[1],
            sequence=self._sequence,
        )
        self._said, self._said_at = said, now
        self._sent.append(_Sent(self._sequence, now, claim))
        self._undelivered += 1
        return said

    def _forget_gone(self, now: float) -> None:
        for key in [key for key, member in self._members.items() if member.published_at <= now - GONE_SECONDS]:
            del self._members[key]

    def _members_but(self, key: _Key) -> list[_Member]:
        return [member for other, member in self._members.items() if other != key]


def _room(limit_requests: float, others: list[_Member]) -> int:
    """The room that the others leave, within the highest of the workers' limits, so that no worker loses its share for
    knowing less."""
    limit = max([limit_requests, *(other.capacity.limit_requests for other in others)])
    return int(limit) - sum(other.hold_requests for other in others)


def _at_most(capacity: Capacity, requests: int) -> Capacity:
    return msgspec.structs.replace(
        capacity,
        limit_requests=min(capacity.limit_requests, float(requests)),
        share_requests=min(capacity.share_requests, requests),
        claim_requests=min(capacity.claim_requests, requests),
        in_flight=min(capacity.in_flight, requests),
    )


def _is_short(member: _Member) -> bool:
    return sum(member.capacity.wanted.values()) > member.hold_requests
