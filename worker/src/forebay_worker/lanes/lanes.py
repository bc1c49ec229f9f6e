"""The lanes: requests that wait in this worker, one lane per tier, in order of urgency. Pure; one thread uses it.

With n requests of t tenants in a lane: `push`, `pop` and `remove` O(log n + log t) amortised, `remove_expired`
O(expired * log n), `sweep` O(budget + dropped * log n), lengths and sums O(1); `pop_probe` O(n) and
`waiting_in_order` O(n log n), both rarely asked. What is taken out of turn leaves dead entries in the heaps; a heap
is rebuilt when half of it is dead.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterable, Mapping
from types import MappingProxyType

from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_worker.lanes.order import LaneOrder, urgency
from forebay_worker.lanes.tenants import DEAD_ENTRIES_MAX, FairQueue
from forebay_worker.lanes.tier_shares import TierShares
from forebay_worker.request.memory import RECORD_OVERHEAD_BYTES
from forebay_worker.request.work import Work

NO_WEIGHTS: Mapping[str, float] = MappingProxyType({})


def _tenant_of(work: Work) -> str | None:
    return work.request.tenant if work.request is not None else None


class Lane:
    """One tier's waiting requests: by the integer priority, then fair among tenants, then in the order given.

    ``size_bytes``, ``cost_seconds``, ``prompt_tokens`` and ``output_tokens`` are sums over what waits. A request's
    predictions, priority and deadline do not change while it waits.
    """

    __slots__ = (
        "_cursor",
        "_deadlines",
        "_next_number",
        "_numbers",
        "_order",
        "_places",
        "_queues",
        "_queues_by_priority",
        "_round",
        "_waiting",
        "_weights",
        "cost_seconds",
        "output_tokens",
        "prompt_tokens",
        "size_bytes",
    )

    def __init__(self, *, order: LaneOrder = LaneOrder.SJF_AGED, weights: Mapping[str, float] = NO_WEIGHTS) -> None:
        self._order = order
        self._weights = weights
        self._next_number = 0
        self._waiting: dict[int, Work] = {}
        """By number: the order of arrival."""
        self._numbers: dict[int, int] = {}
        """By the request's identity: a request waits at most once."""
        self._queues_by_priority: dict[int, FairQueue] = {}
        self._queues: list[FairQueue] = []
        """The same, most urgent first; at most eleven."""
        self._deadlines: list[tuple[int, int]] = []
        self._round: list[int] = []
        """The numbers of all waiting requests, unordered: those below the cursor are still to be seen in this round."""
        self._places: dict[int, int] = {}
        self._cursor = 0
        self.size_bytes = 0
        self.cost_seconds = 0.0
        self.prompt_tokens = 0
        self.output_tokens = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def records_by_tenant(self) -> dict[str | None, int]:
        """Number of waiting requests of each tenant. O(t)."""
        counts: dict[str | None, int] = {}
        for queue in self._queues:
            for name, size in queue.sizes():
                counts[name] = counts.get(name, 0) + size
        return counts

    def push(self, work: Work) -> None:
        """Adds a request that does not wait here yet."""
        number = self._next_number
        self._next_number = number + 1
        self._waiting[number] = work
        self._numbers[id(work)] = number
        self._places[number] = len(self._round)
        self._round.append(number)
        queue = self._queues_by_priority.get(work.priority)
        if queue is None:
            queue = self._add_queue(work.priority)
        queue.push(_tenant_of(work), urgency(self._order, work, number), number)
        heapq.heappush(self._deadlines, (work.deadline_ms, number))
        self.size_bytes += work.size_bytes + RECORD_OVERHEAD_BYTES
        self.cost_seconds += work.cost_seconds
        self.prompt_tokens += work.prompt_tokens
        self.output_tokens += work.output_tokens

    def pop(self) -> Work:
        """Takes out the most urgent request. Raises IndexError if the lane is empty."""
        for queue in self._queues:
            if queue.size:
                return self._leave(queue.pop())
        raise IndexError("pop from an empty lane")

    def holds(self, work: Work) -> bool:
        """Whether it waits here."""
        return id(work) in self._numbers

    def remove(self, work: Work) -> None:
        """Takes out a request from any place. Raises KeyError if it does not wait here."""
        self._take_out(self._numbers[id(work)])

    def remove_expired(self, now_ms: int) -> list[Work]:
        """Takes out the requests whose deadline has passed, earliest first. Those of released partitions are dropped,
        not returned."""
        expired = []
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now_ms:
            number = heapq.heappop(deadlines)[1]
            if number in self._waiting:
                work = self._take_out(number)
                if work.assignment.claims.is_open:
                    expired.append(work)
        return expired

    def begin_round(self) -> None:
        """Begins a new round of `sweep` over all waiting requests."""
        self._cursor = 0

    @property
    def is_round_over(self) -> bool:
        """Whether `sweep` has seen all requests of its round, except those that have left."""
        return self._cursor == 0

    def sweep(self, budget: int, drop: Callable[[Work], bool], dropped: list[Work]) -> int:
        """Continues the round, at most to its end. Returns the number of requests seen."""
        numbers = self._round
        cursor = min(self._cursor, len(numbers)) or len(numbers)
        looks = min(budget, cursor)
        for place in range(cursor - 1, cursor - 1 - looks, -1):
            number = numbers[place]
            work = self._waiting[number]
            if not work.assignment.claims.is_open:
                self._take_out(number)
            elif drop(work):
                dropped.append(self._take_out(number))
        self._cursor = cursor - looks
        return looks

    def waiting(self) -> Iterable[tuple[float, int, Work]]:
        """All waiting requests, unordered: urgency, number and request."""
        return ((urgency(self._order, work, number), number, work) for number, work in self._waiting.items())

    def having(self, request_ids: Container[str]) -> list[Work]:
        """The requests of these ids. O(n)."""
        return [work for work in self._waiting.values() if work.request_id in request_ids]

    @property
    def oldest_enqueued_at(self) -> int | None:
        """First enqueue of the oldest request, in epoch milliseconds; None if nothing waits. O(n)."""
        return min((work.first_enqueued_at for work in self._waiting.values()), default=None)

    def waiting_in_order(self) -> list[Work]:
        """All waiting requests in the order of their starts, without the turns of tenants. O(n log n)."""
        entries = [(-work.priority, urgent, number, work) for urgent, number, work in self.waiting()]
        entries.sort()
        return [entry[-1] for entry in entries]

    def _add_queue(self, priority: int) -> FairQueue:
        queues = self._queues_by_priority
        queues[priority] = FairQueue(waiting=self._waiting, weights=self._weights)
        self._queues = [queues[each] for each in sorted(queues, reverse=True)]
        return queues[priority]

    def _take_out(self, number: int) -> Work:
        work = self._leave(number)
        self._queues_by_priority[work.priority].removed(_tenant_of(work))
        return work

    def _leave(self, number: int) -> Work:
        waiting, numbers, places = self._waiting, self._round, self._places
        work = waiting.pop(number)
        del self._numbers[id(work)]
        # The round's last request takes the freed place. It was seen already, or its new place is still ahead: a round
        # goes from the end to the front, so none is skipped.
        place, last = places.pop(number), numbers.pop()
        if last != number:
            numbers[place] = last
            places[last] = place
        if not waiting:
            self._deadlines.clear()
            self.size_bytes = self.prompt_tokens = self.output_tokens = 0
            self.cost_seconds = 0.0
            return work
        self.size_bytes -= work.size_bytes + RECORD_OVERHEAD_BYTES
        self.cost_seconds -= work.cost_seconds
        self.prompt_tokens -= work.prompt_tokens
        self.output_tokens -= work.output_tokens
        if len(self._deadlines) > 2 * len(waiting) + DEAD_ENTRIES_MAX:
            self._deadlines[:] = [entry for entry in self._deadlines if entry[1] in waiting]
            heapq.heapify(self._deadlines)
        return work


class Lanes:
    """All lanes of a worker: high before mid before low, within what `TierShares` guarantees each of them.

    ``order`` and ``weights`` (tenants' shares, 1 for those not named, all above 0) hold for each lane.
    """

    __slots__ = ("_high", "_lanes", "_low", "_mid", "_ordered", "_sweeping", "shares")

    def __init__(
        self,
        *,
        order: LaneOrder = LaneOrder.SJF_AGED,
        weights: Mapping[str, float] = NO_WEIGHTS,
        shares: TierShares | None = None,
    ) -> None:
        if any(weight <= 0 for weight in weights.values()):
            raise ValueError("a tenant's weight must be above 0")
        self._lanes = {tier: Lane(order=order, weights=weights) for tier in TIERS}
        self._ordered = tuple(self._lanes.values())
        self._high, self._mid, self._low = self._ordered
        self.shares = shares if shares is not None else TierShares()
        self._sweeping = 0

    def __len__(self) -> int:
        return sum(len(lane) for lane in self._ordered)

    def __bool__(self) -> bool:
        return bool(self._high._waiting or self._mid._waiting or self._low._waiting)

    def __getitem__(self, tier: Tier) -> Lane:
        return self._lanes[tier]

    def push(self, work: Work, now: float) -> None:
        """Adds a request to its tier's lane."""
        tier = work.assignment.tier
        lane = self._lanes[tier]
        self.shares.arrived(tier, now, first=not lane._waiting)
        lane.push(work)

    def pop(self, now: float, *, running: Mapping[Tier, int], limit: int, only_high: bool = False) -> Work | None:
        """Takes out the request to start now in a free slot.

        None if nothing waits, or if the waiting ones must not use the reserve; the reserve ends with time, so ask
        again. ``running``: number of running requests by tier. ``limit``: the most that may run. ``only_high``: mid and
        low get no more than their guaranteed share now.
        """
        tier = self.shares.choose(
            now,
            high=bool(self._high._waiting),
            mid=bool(self._mid._waiting),
            low=bool(self._low._waiting),
            running=running,
            limit=limit,
            only_high=only_high,
        )
        return None if tier is None else self._lanes[tier].pop()

    def pop_probe(self, avoid: Callable[[Work], bool] = lambda _: False) -> Work | None:
        """Takes out the request to probe a broken backend with: one that never failed, else the one that failed longest
        ago. Those for which ``avoid`` is true come last.

        The next one by urgency would not do: a request that breaks the backend returns to the head of its lane, and
        would be every probe.
        """
        candidates = (
            (avoid(work), work.failed_at, rank, -work.priority, urgency_of_it, number, work)
            for rank, lane in enumerate(self._ordered)
            for urgency_of_it, number, work in lane.waiting()
        )
        best = min(candidates, default=None)
        if best is None:
            return None
        self.remove(best[-1])
        return best[-1]

    def remove(self, work: Work) -> None:
        """Takes out a request from any place. Raises KeyError if it does not wait."""
        self._lanes[work.assignment.tier].remove(work)

    def holds(self, work: Work) -> bool:
        """Whether it waits."""
        return self._lanes[work.assignment.tier].holds(work)

    def waiting(self) -> Iterable[Work]:
        """All waiting requests, unordered. The lanes must not change during the iteration."""
        return (work for lane in self._ordered for _, _, work in lane.waiting())

    def having(self, request_ids: Container[str]) -> list[Work]:
        """The waiting requests of these ids; they go on waiting. O(n)."""
        return [work for lane in self._ordered for work in lane.having(request_ids)]

    def remove_expired(self, now_ms: int) -> list[Work]:
        """Takes out every request whose deadline has passed."""
        return [work for lane in self._ordered for work in lane.remove_expired(now_ms)]

    def sweep(self, budget: int, drop: Callable[[Work], bool]) -> list[Work]:
        """Looks at up to ``budget`` waiting requests. Takes out and returns those for which ``drop`` is true; drops
        those of released partitions without returning them.

        The next call continues where this one ended. With a sufficient budget a call sees all of them; it sees none
        twice. ``drop`` must not change the lanes.
        """
        dropped: list[Work] = []
        if budget >= len(self):
            for lane in self._ordered:
                lane.begin_round()
        for _ in self._ordered:
            lane = self._ordered[self._sweeping]
            budget -= lane.sweep(budget, drop, dropped)
            if not lane.is_round_over:
                break
            self._sweeping = (self._sweeping + 1) % len(self._ordered)
        return dropped
