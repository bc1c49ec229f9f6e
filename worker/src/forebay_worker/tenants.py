"""Fair turns among the tenants of one lane and priority: deficit round robin by cost. Pure; one thread; no clock.

Each round a tenant may spend a quantum of engine time for each unit of its weight. Within a round the lane's order
decides, whoever's the requests are. A tenant overdraws its quantum by at most one request and pays in the rounds that
follow, so a huge request waits no longer for its turn than a small one, and costs its tenant alone.

Two departures from the textbook (Shreedhar and Varghese, 1995), which visits tenants one after the other:
tenants stand in a heap by round and best request, so that thousands of tenants with a request each still leave in the
lane's order and no visit is spent on one that may not send; and the round in which a newcomer joins moves on by the
served cost over the waiting weights (as the virtual time of WF2Q+), so that endless newcomers cannot hold up a tenant
that has had its quantum.

Costs: `push` and `pop` O(log n + log t) with n requests of t tenants (amortised over dropped entries); with one tenant
a plain heap. `removed` O(1) amortised.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from forebay_worker.work import Work

ROUND_REQUESTS = 4
"""The quantum in requests of mean cost. More lets the order gain more across tenants, less evens them out sooner."""

MEAN_COST_GAIN = 0.05
"""Weight of the newest request in the mean cost: it follows a changed mix within some dozens of requests."""

UNKNOWN_COST = 1.0
"""What a request of unknown cost is charged with. When all are unknown, tenants share by number of requests."""

STALE_ENTRIES_MAX = 64
"""A heap is rebuilt once it holds more than so many dead entries beyond one for each live one."""


@dataclass(slots=True, eq=False)
class Tenant:
    """``requests``: entries (urgency, number), some of them dead. ``size``: how many wait. ``spent``: in ``round``.

    ``version`` tells its one valid turn from those that a better request or a removal made void.
    """

    name: str | None
    weight: float
    round: int
    requests: list[tuple[float, int]] = field(default_factory=list)
    size: int = 0
    spent: float = 0.0
    version: int = 0


class FairQueue:
    """``waiting`` is the lane's own map of what waits: an entry whose number is not in it is dead.

    ``size``: how many requests wait.
    """

    __slots__ = (
        "_mean_cost",
        "_only",
        "_progress",
        "_round",
        "_tenants",
        "_turns",
        "_waiting",
        "_weight",
        "_weights",
        "size",
    )

    def __init__(self, *, waiting: Mapping[int, Work], weights: Mapping[str, float]) -> None:
        self._waiting = waiting
        self._weights = weights
        self.size = 0
        self._tenants: dict[str | None, Tenant] = {}
        self._only: Tenant | None = None
        """The one tenant while no other is known: no turns are kept and nothing is charged."""
        self._turns: list[tuple[int, float, int, int, Tenant]] = []
        self._round = 0
        self._progress = 0.0
        self._weight = 0.0
        self._mean_cost = 0.0

    def names(self) -> list[str | None]:
        """The tenants of what waits."""
        return [tenant.name for tenant in self._tenants.values() if tenant.size]

    def push(self, name: str | None, urgency: float, number: int) -> None:
        """Adds a request; its number is already in ``waiting``."""
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._join(name)
        heapq.heappush(tenant.requests, (urgency, number))
        self.size += 1
        tenant.size += 1
        if self._only is not None:
            return
        if tenant.size == 1:
            self._weight += tenant.weight
            if tenant.round < self._round:
                tenant.round, tenant.spent = self._round, 0.0
            self._give_turn(tenant)
        elif tenant.requests[0][1] == number:
            self._give_turn(tenant)

    def pop(self) -> int:
        """The number of the request to take next; the caller takes it out of ``waiting``. Something must wait."""
        only = self._only
        if only is None:
            return self._pop_in_turn()
        requests, waiting = only.requests, self._waiting
        number = heapq.heappop(requests)[1]
        while number not in waiting:
            number = heapq.heappop(requests)[1]
        only.size -= 1
        self.size -= 1
        if not self.size:
            self._end_busy_period()
        return number

    def removed(self, name: str | None) -> None:
        """A waiting request of this tenant was taken out of ``waiting``, wherever it stood."""
        tenant = self._tenants[name]
        tenant.size -= 1
        self.size -= 1
        if not tenant.size:
            tenant.requests.clear()
            self._emptied(tenant)
        elif len(tenant.requests) > 2 * tenant.size + STALE_ENTRIES_MAX:
            tenant.requests = [entry for entry in tenant.requests if entry[1] in self._waiting]
            heapq.heapify(tenant.requests)

    def _join(self, name: str | None) -> Tenant:
        weight = 1.0 if name is None else self._weights.get(name, 1.0)
        tenant = self._tenants[name] = Tenant(name, weight, self._round)
        if len(self._tenants) == 1:
            self._only = tenant
        elif self._only is not None:
            # They begin as equals: what the first one took while it was alone took from nobody.
            first, self._only = self._only, None
            first.round, first.spent = self._round, 0.0
            self._weight = first.weight
            self._give_turn(first)
        return tenant

    def _give_turn(self, tenant: Tenant) -> None:
        tenant.version += 1
        urgency, number = tenant.requests[0]
        heapq.heappush(self._turns, (tenant.round, urgency, number, tenant.version, tenant))
        if len(self._turns) > 2 * len(self._tenants) + STALE_ENTRIES_MAX:
            self._turns = [turn for turn in self._turns if turn[3] == turn[4].version]
            heapq.heapify(self._turns)

    def _pop_in_turn(self) -> int:
        turns, waiting = self._turns, self._waiting
        while True:
            round_number, _, number, version, tenant = turns[0]
            if version != tenant.version:
                heapq.heappop(turns)
                continue
            requests = tenant.requests
            while requests and requests[0][1] not in waiting:
                heapq.heappop(requests)
            if not requests:
                self._pass_over()
                if self._only is not None:
                    return self.pop()
            elif requests[0][1] != number:
                heapq.heapreplace(turns, (round_number, *requests[0], version, tenant))
            else:
                break
        self._round = max(self._round, round_number)
        self._charge(tenant, waiting[number].cost_seconds or UNKNOWN_COST)
        heapq.heappop(requests)
        while requests and requests[0][1] not in waiting:
            heapq.heappop(requests)
        tenant.size -= 1
        self.size -= 1
        # One without requests keeps a turn at the end of its round: until then it is remembered what it has spent.
        urgency, head = requests[0] if requests else (math.inf, number)
        heapq.heapreplace(turns, (tenant.round, urgency, head, version, tenant))
        if not tenant.size:
            self._emptied(tenant)
        return number

    def _charge(self, tenant: Tenant, cost: float) -> None:
        self._mean_cost += (cost - self._mean_cost) * (MEAN_COST_GAIN if self._mean_cost else 1.0)
        quantum = ROUND_REQUESTS * self._mean_cost
        spent = tenant.spent + cost / tenant.weight
        rounds = int(spent / quantum)
        tenant.round += rounds
        tenant.spent = spent - rounds * quantum
        progress = self._progress + cost / (quantum * self._weight)
        rounds = int(progress)
        self._round += rounds
        self._progress = progress - rounds

    def _pass_over(self) -> None:
        """The first turn is that of a tenant without requests: at the end of its round it is forgotten."""
        round_number, urgency, number, version, tenant = self._turns[0]
        if urgency < math.inf:  # its last request was removed
            heapq.heapreplace(self._turns, (round_number, math.inf, number, version, tenant))
            return
        heapq.heappop(self._turns)
        self._round = max(self._round, round_number + 1)
        del self._tenants[tenant.name]
        if len(self._tenants) == 1:
            (self._only,) = self._tenants.values()
            self._turns.clear()

    def _emptied(self, tenant: Tenant) -> None:
        self._weight -= tenant.weight
        if not self.size:
            self._end_busy_period()

    def _end_busy_period(self) -> None:
        """Nothing waits: nobody is owed anything, and nobody is remembered."""
        self._tenants.clear()
        self._turns.clear()
        self._only = None
        self._round, self._progress, self._weight = 0, 0.0, 0.0
