"""Fair turns among the tenants of one lane and priority: deficit round robin by cost. Pure; one thread; no clock.

Each tenant has an account of the engine time it was served, divided by its weight. In a round all may spend until
their accounts stand a quantum above the lowest; those who still may are equals, and among them the lane's order
decides. A tenant overdraws by at most one request and sits out until the others have caught up: a huge request waits
no longer for its turn than a small one, and costs its tenant alone.

Two departures from the textbook (Shreedhar and Varghese, 1995), which visits tenants one after the other. The order
decides within a round, so that thousands of tenants with a request each leave in the lane's order, and no visit is
spent on one that may not send. And newcomers begin at the virtual time, which advances by served cost over waiting
weights (WF2Q+, Bennett and Zhang, 1996): they have nothing saved up, and an endless stream of them cannot hold up a
tenant that has had its quantum.

Costs: `push` and `pop` O(log n + log t) amortised, with n requests of t tenants; `removed` O(log t) amortised. One
tenant alone is a plain heap.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field

from forebay_worker.request.work import Work

ROUND_REQUESTS = 4
"""The quantum in requests of mean cost. A larger one improves the order across tenants, a smaller one balances them
sooner."""

MEAN_COST_GAIN = 0.05
"""Weight of the newest request in the mean cost: it follows a changed mix within some dozens of requests."""

UNKNOWN_COST = 1.0
"""The charge for a request of unknown cost. If all are unknown, tenants share by number of requests."""

DEAD_ENTRIES_MAX = 64
"""A heap is rebuilt once it holds more dead entries than this plus one for each live one."""


@dataclass(slots=True, eq=False)
class Tenant:
    """``requests``: entries (urgency, number), some of them dead. ``size``: how many wait. ``account``: seconds.

    ``version`` tells its one valid entry among the others' from those that a change made void.
    """

    name: str | None
    weight: float
    account: float
    requests: list[tuple[float, int]] = field(default_factory=list)
    size: int = 0
    version: int = 0


class FairQueue:
    """``waiting`` is the lane's own map of what waits: an entry whose number is not in it is dead.

    ``size``: how many requests wait.
    """

    __slots__ = (
        "_away",
        "_in_round",
        "_mean_cost",
        "_only",
        "_round_end",
        "_sitting_out",
        "_tenants",
        "_versions",
        "_virtual_time",
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
        """The one tenant while no other is known: no accounts are kept."""
        self._in_round: list[tuple[float, int, int, Tenant]] = []
        """By the most urgent request of each."""
        self._sitting_out: list[tuple[float, int, Tenant]] = []
        """By account, as the next."""
        self._away: list[tuple[float, int, Tenant]] = []
        """Tenants without requests that have a debt: kept until the virtual time reaches their accounts."""
        self._versions = 0
        self._virtual_time = 0.0
        self._round_end = 0.0
        self._weight = 0.0
        self._mean_cost = 0.0

    def sizes(self) -> list[tuple[str | None, int]]:
        """The tenants of what waits, and how many requests of each."""
        return [(tenant.name, tenant.size) for tenant in self._tenants.values() if tenant.size]

    def push(self, name: str | None, urgency: float, number: int) -> None:
        """Adds a request; its number is already in ``waiting``."""
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._join(name)
        heapq.heappush(tenant.requests, (urgency, number))
        tenant.size += 1
        self.size += 1
        if self._only is not None:
            return
        if tenant.size == 1:
            self._weight += tenant.weight
            tenant.account = max(tenant.account, self._virtual_time)
            self._place(tenant)
        elif tenant.requests[0][1] == number and tenant.account < self._round_end:
            self._place(tenant)

    def pop(self) -> int:
        """The number of the request to take next; the caller takes it out of ``waiting``. Something must wait."""
        only, waiting = self._only, self._waiting
        if only is None:
            return self._pop_among_many()
        number = heapq.heappop(only.requests)[1]
        while number not in waiting:
            number = heapq.heappop(only.requests)[1]
        only.size -= 1
        self.size -= 1
        if not self.size:
            self._end_busy_period()
        return number

    def removed(self, name: str | None) -> None:
        """Updates the queue after a tenant's request was taken out of ``waiting``, from any place."""
        tenant = self._tenants[name]
        tenant.size -= 1
        self.size -= 1
        if not tenant.size:
            self._emptied(tenant)
        elif len(tenant.requests) > 2 * tenant.size + DEAD_ENTRIES_MAX:
            tenant.requests = [entry for entry in tenant.requests if entry[1] in self._waiting]
            heapq.heapify(tenant.requests)

    def _join(self, name: str | None) -> Tenant:
        weight = 1.0 if name is None else self._weights.get(name, 1.0)
        tenant = self._tenants[name] = Tenant(name, weight, self._virtual_time)
        if len(self._tenants) == 1:
            self._only = tenant
        elif self._only is not None:
            # They begin as equals: the slots that the first one used alone were taken from no other tenant.
            first, self._only = self._only, None
            first.account = self._round_end = self._virtual_time
            self._weight = first.weight
            self._place(first)
        return tenant

    def _place(self, tenant: Tenant) -> None:
        self._versions += 1
        tenant.version = self._versions
        if tenant.account >= self._round_end:
            heapq.heappush(self._sitting_out, (tenant.account, tenant.version, tenant))
            self._sitting_out = self._without_void(self._sitting_out)
            return
        heapq.heappush(self._in_round, (*tenant.requests[0], tenant.version, tenant))
        if len(self._in_round) > 2 * len(self._tenants) + DEAD_ENTRIES_MAX:
            self._in_round = [entry for entry in self._in_round if entry[2] == entry[3].version]
            heapq.heapify(self._in_round)

    def _without_void(self, heap: list[tuple[float, int, Tenant]]) -> list[tuple[float, int, Tenant]]:
        if len(heap) > 2 * len(self._tenants) + DEAD_ENTRIES_MAX:
            heap = [entry for entry in heap if entry[1] == entry[2].version]
            heapq.heapify(heap)
        return heap

    def _pop_among_many(self) -> int:
        in_round, waiting = self._in_round, self._waiting
        while True:
            if not in_round:
                self._begin_round()
            _, number, version, tenant = in_round[0]
            if version != tenant.version:
                heapq.heappop(in_round)
                continue
            requests = tenant.requests
            while requests[0][1] not in waiting:
                heapq.heappop(requests)
            if requests[0][1] == number:
                break
            heapq.heapreplace(in_round, (*requests[0], version, tenant))
        heapq.heappop(requests)
        tenant.size -= 1
        self.size -= 1
        if not self.size:
            self._end_busy_period()
            return number
        self._charge(tenant, waiting[number].cost_seconds or UNKNOWN_COST)
        if self._only is not None:
            return number
        if tenant.size and tenant.account < self._round_end:
            heapq.heapreplace(in_round, (*requests[0], version, tenant))
            return number
        heapq.heappop(in_round)
        if tenant.size:
            heapq.heappush(self._sitting_out, (tenant.account, version, tenant))
        else:
            self._emptied(tenant)
        return number

    def _begin_round(self) -> None:
        """Lets tenants spend again if they sat out and stand less than a quantum above the lowest."""
        sitting_out, in_round = self._sitting_out, self._in_round
        while sitting_out[0][1] != sitting_out[0][2].version:
            heapq.heappop(sitting_out)
        lowest = sitting_out[0][0]
        self._virtual_time = max(self._virtual_time, lowest)
        self._round_end = lowest + ROUND_REQUESTS * (self._mean_cost or self._cost_of_next(sitting_out[0][2]))
        while sitting_out and sitting_out[0][0] < self._round_end:
            _, version, tenant = heapq.heappop(sitting_out)
            if version == tenant.version:
                heapq.heappush(in_round, (*tenant.requests[0], version, tenant))

    def _cost_of_next(self, tenant: Tenant) -> float:
        work = self._waiting.get(tenant.requests[0][1])
        return (work.cost_seconds if work is not None else 0.0) or UNKNOWN_COST

    def _charge(self, tenant: Tenant, cost: float) -> None:
        self._mean_cost += (cost - self._mean_cost) * (MEAN_COST_GAIN if self._mean_cost else 1.0)
        tenant.account += cost / tenant.weight
        # At most by the round: a huge request is charged in one piece, and newcomers need not wait until the others
        # have had as much.
        self._virtual_time = min(self._virtual_time + cost / self._weight, self._round_end)
        away = self._away
        while away and away[0][0] <= self._virtual_time:
            _, version, absent = heapq.heappop(away)
            if version == absent.version:
                self._forget(absent)

    def _emptied(self, tenant: Tenant) -> None:
        """Notes that a tenant's last request left: it loses its unspent share, but keeps its debt."""
        if not self.size:
            self._end_busy_period()
            return
        tenant.requests.clear()
        self._weight -= tenant.weight
        self._versions += 1
        tenant.version = self._versions
        if tenant.account <= self._virtual_time:
            self._forget(tenant)
        else:
            heapq.heappush(self._away, (tenant.account, tenant.version, tenant))
            self._away = self._without_void(self._away)

    def _forget(self, tenant: Tenant) -> None:
        del self._tenants[tenant.name]
        if len(self._tenants) == 1:
            (self._only,) = self._tenants.values()
            self._in_round.clear()
            self._sitting_out.clear()
            self._away.clear()

    def _end_busy_period(self) -> None:
        """Forgets all accounts: nothing waits."""
        self._tenants.clear()
        self._in_round.clear()
        self._sitting_out.clear()
        self._away.clear()
        self._only = None
        self._virtual_time = self._round_end = self._weight = 0.0
