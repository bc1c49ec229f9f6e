"""Admission of requests before they are sent: one object that any number of threads ask. No I/O: `follower` keeps its
load up to date in a thread of its own."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

from forebay_producer.admission.decision import AdmissionPolicy, Admitted, RefusalReason, Refused, decide
from forebay_producer.admission.tenants import TENANTS_MAX, Tenants
from forebay_producer.errors import AdmissionRefusedError
from forebay_schemas.bounded import BoundedMap
from forebay_schemas.contract.tiers import DEFAULT_TIER_TIMES, TIERS, Tier, TierTimes
from forebay_schemas.estimate.pool import PoolLoad, advanced

FRESH_SECONDS: Final = 15.0
"""An older load says nothing any more."""

RETRY_SECONDS_MAX: Final = 600.0

_OF_TENANTS: Final = (RefusalReason.TENANT_RATE, RefusalReason.TENANT_CONCURRENCY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A pool's load at a moment (monotonic seconds), and its workers' tolerated waits."""

    at: float
    load: PoolLoad
    times: TierTimes


class Admission:
    """Decides by the last `Reading` and by what was admitted since. A decision takes about 0.05 ms.

    Thread-safe. One object serves one pool, and may serve several clients of it.
    """

    def __init__(self, *, policy: AdmissionPolicy | None = None, times: TierTimes = DEFAULT_TIER_TIMES) -> None:
        """``times``: the tolerated waits until workers publish theirs."""
        self.policy = policy or AdmissionPolicy()
        self._times = times
        self._tenants = Tenants(self.policy)
        self._reading: Reading | None = None
        self.is_followed = False
        """Whether some client reads the pool's load for it."""
        self.has_reading = threading.Event()
        """Set by the first reading."""
        self._sent: dict[Tier, int] = dict.fromkeys(TIERS, 0)
        self._come_back_at: BoundedMap[tuple[Tier, str, str], float] = BoundedMap(entries_max=TENANTS_MAX)
        self._lock = threading.Lock()

    def update(self, reading: Reading) -> None:
        """A new reading."""
        with self._lock:
            self._reading = reading
            self._sent = dict.fromkeys(TIERS, 0)
        self.has_reading.set()

    def admit(
        self,
        request_id: str,
        *,
        tier: Tier,
        left_seconds: float,
        now: float,
        tenant: str | None = None,
        do_not_queue: bool = False,
    ) -> Admitted:
        """Admits a request and counts it, until `ended` or its deadline.

        ``left_seconds``: until its deadline. ``now``: monotonic seconds. Raises ``AdmissionRefusedError``.
        """
        with self._lock:
            found = self._tenants.refuse(tenant, now) or decide(
                self._now(now),
                tier=tier,
                left_seconds=left_seconds,
                do_not_queue=do_not_queue,
                policy=self.policy,
                times=self._times if self._reading is None else self._reading.times,
            )
            if isinstance(found, Refused):
                raise AdmissionRefusedError(
                    found.message,
                    code=found.reason.value,
                    http_status=found.reason.http_status,
                    value=found.value,
                    threshold=found.threshold,
                    retry_after_seconds=self._spread(tier, found, now, tenant=tenant),
                )
            self._sent[tier] += 1
            self._tenants.started(tenant, request_id, now=now, deadline=now + left_seconds)
            return found

    def ended(self, request_id: str) -> None:
        """The request's outcome is known, or it was not sent."""
        with self._lock:
            self._tenants.ended(request_id)

    def begin_following(self) -> bool:
        """Whether the caller is to read the load: nobody does yet."""
        with self._lock:
            begins, self.is_followed = not self.is_followed, True
            return begins

    def load(self, now: float) -> PoolLoad | None:
        """The pool's load as it is now by all that is known; None while nothing is."""
        with self._lock:
            return self._now(now)

    def _now(self, now: float) -> PoolLoad | None:
        reading = self._reading
        if reading is None or now - reading.at > FRESH_SECONDS:
            return None
        return advanced(reading.load, seconds=max(0.0, now - reading.at), added=self._sent)

    def _spread(self, tier: Tier, found: Refused, now: float, *, tenant: str | None) -> float | None:
        """Whoever was refused before comes back first: each later one a turn of the pool later."""
        if found.retry_after_seconds is None:
            return None
        # A tenant that exceeds its own bounds delays no other.
        key = (tier, found.reason.value, (tenant or "") if found.reason in _OF_TENANTS else "")
        at = max(self._come_back_at.get(key, 0.0), now + found.retry_after_seconds) + found.turn_seconds
        self._come_back_at.put(key, min(at, now + RETRY_SECONDS_MAX))
        return max(0.001, min(at - now, RETRY_SECONDS_MAX))
