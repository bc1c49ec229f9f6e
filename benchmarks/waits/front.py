"""Clients that ask admission before they send, in front of real dispatch and a simulated engine. Virtual time, no I/O.

The clients know what real ones know: the capacity records that the workers published, and offsets, read once a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.pacing.engine import Engine, Ledger, VirtualClock
from benchmarks.pacing.shared_front import Scale, SharedFront
from benchmarks.pacing.virtual import MakeFront
from benchmarks.pacing.workloads import Arrival
from forebay_producer.admission.admission import Admission, Reading
from forebay_producer.admission.decision import AdmissionPolicy
from forebay_producer.errors import AdmissionRefusedError
from forebay_schemas.contract.coordination import GONE_SECONDS, Capacity
from forebay_schemas.contract.tiers import TIERS, Tier, TierTimes, tier_times
from forebay_schemas.estimate.accuracy import CounterRate
from forebay_schemas.estimate.pool import TierRecords, load_of_pool
from forebay_schemas.estimate.waits import Wait
from forebay_worker.pacing.policy import PacingPolicy

READ_SECONDS = 1.0
_WEEK_MS = 604_800_000

ADMIT_ALL = AdmissionPolicy(deadline_share=1.0, service_seconds_max={})
PATIENT: TierTimes = tier_times(dict.fromkeys(TIERS, _WEEK_MS), dict.fromkeys(TIERS, _WEEK_MS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """``policy`` and ``times`` of the admission; by default it admits everything and only estimates."""

    policy: AdmissionPolicy = ADMIT_ALL
    times: TierTimes = PATIENT


class EstimatingFront(SharedFront):
    """Implements `Front`."""

    def __init__(
        self,
        engine: Engine,
        ledger: Ledger,
        clock: VirtualClock,
        *,
        make_policy: Callable[[], PacingPolicy],
        scales: Sequence[Scale],
        rules: Rules,
    ) -> None:
        super().__init__(engine, ledger, clock, make_policy=make_policy, scales=scales, blind=False)
        self.estimated: dict[int, Wait] = {}
        self.not_admitted: dict[int, AdmissionRefusedError] = {}
        self._rules = rules
        self._admission = Admission(policy=rules.policy, times=rules.times)
        self._is_patient = rules.times is PATIENT
        self._open: dict[Tier, set[int]] = {tier: set() for tier in TIERS}
        self._sent = dict.fromkeys(TIERS, 0)
        self._arrivals = {tier: CounterRate() for tier in TIERS}
        self._read_at = 0.0

    def offer(self, key: int, arrival: Arrival, now: float) -> None:
        left_seconds = _WEEK_MS / 1000 if self._is_patient else arrival.deadline_seconds - now
        try:
            admitted = self._admission.admit(str(key), tier=arrival.tier, left_seconds=left_seconds, now=now)
        except AdmissionRefusedError as error:
            self.not_admitted[key] = error
            self._ledger.drop(key, now, "refused")
            return
        if admitted.wait is not None:
            self.estimated[key] = admitted.wait
        self._open[arrival.tier].add(key)
        self._sent[arrival.tier] += 1
        super().offer(key, arrival, now)

    def tick(self, now: float) -> None:
        super().tick(now)
        if now >= self._read_at:
            self._read_at = now + READ_SECONDS
            self._read(now)

    def _read(self, now: float) -> None:
        latest: dict[str, Capacity] = {
            capacity.worker: capacity for at, capacity in self._topic if now - GONE_SECONDS < at <= now
        }
        records = {}
        for tier in TIERS:
            self._open[tier] = {
                key
                for key in self._open[tier]
                if key not in self._ledger.finished_at and key not in self._ledger.dropped
            }
            records[tier] = TierRecords(
                unfinished=len(self._open[tier]),
                arriving_per_second=self._arrivals[tier].per_second(now, self._sent[tier]),
            )
        # As readers of announcements do, it ignores a worker that has left.
        workers = [each for each in latest.values() if not (each.draining and not each.in_flight)]
        load = load_of_pool(workers, records)
        self._admission.update(Reading(at=now, load=load, times=self._rules.times))


def make_estimating_front(
    made: list[EstimatingFront], *, make_policy: Callable[[], PacingPolicy], scales: Sequence[Scale], rules: Rules
) -> MakeFront:
    """A front for `run`; the one that it makes is added to ``made``."""

    def make(engine: Engine, ledger: Ledger, clock: VirtualClock) -> EstimatingFront:
        front = EstimatingFront(engine, ledger, clock, make_policy=make_policy, scales=scales, rules=rules)
        made.append(front)
        return front

    return make
