"""Bounds of each tenant in this process: a token bucket for its rate, and a count of its open requests. Pure; the
caller holds a lock; times are monotonic seconds that the caller passes in."""

from __future__ import annotations

import heapq
from typing import Final

from forebay_producer.admission.decision import AdmissionPolicy, RefusalReason, Refused
from forebay_schemas.bounded import BoundedMap

TENANTS_MAX: Final = 10_000
"""Tenants remembered. One that is forgotten begins with a full bucket."""

_ENDED_ENTRIES_MAX: Final = 64


class _Tenant:
    __slots__ = ("at", "deadlines", "open", "tokens")

    def __init__(self, tokens: float, now: float) -> None:
        self.tokens = tokens
        self.at = now
        self.open: set[str] = set()
        self.deadlines: list[tuple[float, str]] = []


class Tenants:
    """Requests without a tenant share one bucket."""

    def __init__(self, policy: AdmissionPolicy) -> None:
        self._rate, self._burst = policy.tenant_per_second, max(1, policy.tenant_burst)
        self._concurrency = policy.tenant_concurrency
        self._tenants: BoundedMap[str, _Tenant] = BoundedMap(entries_max=TENANTS_MAX)
        self._tenant_of: dict[str, str] = {}

    def refuse(self, tenant: str | None, now: float) -> Refused | None:
        """Why one more request of the tenant is refused; None when it may go on. Takes nothing."""
        if not self._rate and not self._concurrency:
            return None
        found = self._of(tenant, now)
        name = "requests without a tenant" if tenant is None else f"tenant {tenant}"
        if self._concurrency and len(found.open) >= self._concurrency:
            return Refused(
                reason=RefusalReason.TENANT_CONCURRENCY,
                message=f"{name} has {len(found.open)} requests open, and may have {self._concurrency}",
                value=len(found.open),
                threshold=self._concurrency,
                retry_after_seconds=1.0,
                turn_seconds=0.1,
            )
        if self._rate and found.tokens < 1:
            return Refused(
                reason=RefusalReason.TENANT_RATE,
                message=f"{name} sent more than {self._rate:g} requests a second",
                value=self._rate,
                threshold=self._rate,
                retry_after_seconds=(1 - found.tokens) / self._rate,
                turn_seconds=1 / self._rate,
            )
        return None

    def started(self, tenant: str | None, request_id: str, *, now: float, deadline: float) -> None:
        """Counts an admitted request until `ended`, or until its deadline."""
        if not self._rate and not self._concurrency:
            return
        found = self._of(tenant, now)
        if self._rate:
            found.tokens -= 1
        if self._concurrency:
            found.open.add(request_id)
            heapq.heappush(found.deadlines, (deadline, request_id))
            if len(found.deadlines) > 2 * len(found.open) + _ENDED_ENTRIES_MAX:
                # Those that ended long before their deadlines.
                found.deadlines = [entry for entry in found.deadlines if entry[1] in found.open]
                heapq.heapify(found.deadlines)
            self._tenant_of[request_id] = tenant or ""

    def ended(self, request_id: str) -> None:
        """Its outcome is known, or it was not sent."""
        name = self._tenant_of.pop(request_id, None)
        if name is not None and (found := self._tenants.get(name)) is not None:
            found.open.discard(request_id)

    def _of(self, tenant: str | None, now: float) -> _Tenant:
        name = tenant or ""
        found = self._tenants.get(name)
        if found is None:
            found = _Tenant(float(self._burst), now)
            if len(self._tenants) >= TENANTS_MAX:
                for request_id in self._tenants.forget_oldest()[1].open:
                    self._tenant_of.pop(request_id, None)
        found.tokens = min(float(self._burst), found.tokens + (now - found.at) * self._rate)
        found.at = now
        while found.deadlines and found.deadlines[0][0] <= now:
            request_id = heapq.heappop(found.deadlines)[1]
            found.open.discard(request_id)
            self._tenant_of.pop(request_id, None)
        self._tenants.put(name, found)
        return found
