"""What a client asks before it sends: an `Admission`, its follower, and counts of its decisions. Callers' threads; the
first call may wait for the first reading.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Protocol

from forebay_producer.admission.admission import Admission
from forebay_producer.admission.decision import AdmissionPolicy, Admitted, WithoutWorkers
from forebay_producer.admission.follower import KafkaLoadSource, LoadFollower
from forebay_producer.errors import AdmissionRefusedError
from forebay_producer.settings import ProducerSettings
from forebay_schemas.clock import Clock
from forebay_schemas.contract.tiers import Tier, TierTimes
from forebay_schemas.contract.topics import Pool
from forebay_schemas.kafka.connection import KafkaConnection

FIRST_READING_SECONDS: Final = 5.0
_FREE: Final = Admitted()


def policy_of(settings: ProducerSettings) -> AdmissionPolicy:
    """The bounds that the settings give."""
    return AdmissionPolicy(
        deadline_share=settings.admission_deadline_share,
        service_seconds_max={Tier.HIGH: settings.admission_service_seconds_max},
        without_workers=WithoutWorkers(settings.admission_without_workers),
        tenant_per_second=settings.admission_tenant_per_second,
        tenant_burst=settings.admission_tenant_burst,
        tenant_concurrency=settings.admission_tenant_concurrency,
    )


class ToAdmit(Protocol):
    """A request that is about to be sent. ``ttl_ms``: its deadline, from the enqueue on."""

    @property
    def request_id(self) -> str: ...
    @property
    def tier(self) -> Tier: ...
    @property
    def ttl_ms(self) -> int: ...
    @property
    def tenant(self) -> str | None: ...


class AdmissionGate:
    """One client's side of an `Admission`; without one, everything is admitted and nothing is read. Thread-safe."""

    def __init__(
        self,
        admission: Admission | None,
        *,
        connection: KafkaConnection,
        pool: Pool,
        times: TierTimes,
        clock: Clock,
        count: Callable[[Tier, str | None], None],
    ) -> None:
        """``count`` counts a decision: the tier, and the code of a refusal or None."""
        self._admission = admission
        self._clock = clock
        self._count = count
        self._follower: LoadFollower | None = None
        self._lock = threading.Lock()
        self._connection, self._pool, self._times = connection, pool, times

    def admit(self, request: ToAdmit, *, do_not_queue: bool) -> Admitted:
        """Admits a request. The first call reads the pool's load first. Raises ``AdmissionRefusedError``."""
        admission, tier = self._admission, request.tier
        if admission is None:
            return _FREE
        self.open()
        try:
            admitted = admission.admit(
                request.request_id,
                tier=tier,
                left_seconds=request.ttl_ms / 1000,
                now=self._clock.monotonic(),
                tenant=request.tenant,
                do_not_queue=do_not_queue,
            )
        except AdmissionRefusedError as error:
            self._count(tier, error.code)
            raise
        self._count(tier, None)
        return admitted

    @property
    def is_open(self) -> bool:
        """Whether `admit` returns at once."""
        return self._admission is None or self._admission.is_followed

    def open(self) -> None:
        """Begins to read the pool's load, and waits for the first reading."""
        if self._admission is not None and not self._admission.is_followed:
            self._follow(self._admission)

    def ended(self, request_id: str) -> None:
        """The request's outcome is known, or it was not sent."""
        if self._admission is not None:
            self._admission.ended(request_id)

    def close(self) -> None:
        """Ends the follower, if this client has it. Another client of the same admission then starts one."""
        with self._lock:
            follower, self._follower = self._follower, None
        if follower is not None and self._admission is not None:
            follower.close()
            self._admission.is_followed = False

    def _follow(self, admission: Admission) -> None:
        with self._lock:
            if self._follower is None and admission.begin_following():
                self._follower = LoadFollower(
                    self._make_source, update=admission.update, clock=self._clock, pool=self._pool.name
                )
                self._follower.start()
        admission.has_reading.wait(FIRST_READING_SECONDS)

    def _make_source(self) -> KafkaLoadSource:
        return KafkaLoadSource(self._connection, pool=self._pool, times=self._times, clock=self._clock)
