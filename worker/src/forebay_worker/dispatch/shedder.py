"""Applies the overload ladder: estimates each tier's wait from what its lane holds, and picks the requests to shed.

Pure; one thread uses it.
"""

from __future__ import annotations

from collections.abc import Callable

from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_worker.dispatch.overload import OverloadLadder, Shed, plan_shedding
from forebay_worker.dispatch.wait_estimates import WaitEstimates
from forebay_worker.lanes.lanes import Lanes
from forebay_worker.pacing.gate import Gate
from forebay_worker.request.work import Work

SERVICE_ALPHA = 0.05
LEARNT_ANSWERS = 20
"""Before so many answers nothing is called late: what a token takes of this backend is a guess until then."""


class Shedder:
    """``by_tokens``: whether requests come with predictions of their tokens; else their number alone tells the wait."""

    def __init__(
        self,
        *,
        ladder: OverloadLadder,
        lanes: Lanes,
        gate: Gate,
        by_tokens: bool,
        open_slots: Callable[[Tier, float], int] = lambda _tier, _now: 0,
    ) -> None:
        self.ladder = ladder
        self._lanes = lanes
        self._gate = gate
        self._by_tokens = by_tokens
        self._answers = 0
        self._service_seconds = 0.0
        self.estimates = WaitEstimates(
            lanes=lanes,
            work_seconds=self.work_seconds,
            turn_seconds=lambda seconds: seconds / max(1, gate.share_requests),
            open_slots=open_slots,
        )

    def answered(self, service_seconds: float) -> None:
        """The backend gave an answer, after so long."""
        self._answers += 1
        alpha = max(SERVICE_ALPHA, 1 / self._answers)
        self._service_seconds += alpha * (service_seconds - self._service_seconds)

    @property
    def service_seconds(self) -> float | None:
        """What an answer takes, the mean of the last; None before the first."""
        return self._service_seconds if self._answers else None

    def work_seconds(self) -> dict[Tier, float]:
        """What waits in each tier, in seconds of this worker's share of a backend that has in flight all that it may
        have. Empty while too little is known of it.

        By what the model says now: what a request was thought to cost when it came says little of a surge that began
        while the backend idled.
        """
        if self._answers < LEARNT_ANSWERS:
            return {}
        lanes = self._lanes
        if not self._by_tokens:
            turn_seconds = self._turn_seconds()
            return {tier: turn_seconds * len(lanes[tier]) for tier in TIERS}
        cost_seconds, parts = self._gate.full_cost_seconds, self._parts
        return {tier: parts * cost_seconds(lanes[tier].prompt_tokens, lanes[tier].output_tokens) for tier in TIERS}

    def waits(self, now: float) -> dict[Tier, float]:
        """The seconds until a new request of each tier would start; empty while too little is known of the backend."""
        return self.estimates.waits(now)

    def step(self, now: float, now_ms: int, *, serves: bool) -> list[Shed]:
        """Once a second: which requests to shed now, all of which wait.

        ``now``: monotonic seconds; ``now_ms``: epoch milliseconds. ``serves``: whether the backend does; while it
        serves nobody there is no pace by which anything could be called late.
        """
        waits = self.waits(now) if serves else {}
        self.ladder.step(now, now_ms, waits)
        shed_tiers = self.ladder.shed_tiers if waits else ()
        if not shed_tiers:
            return []
        late: dict[Tier, list[Shed]] = {}
        ahead_seconds = 0.0
        for tier in TIERS:
            plan = plan_shedding(
                self._lanes[tier].waiting_in_order(),
                now_ms=now_ms,
                ahead_seconds=ahead_seconds,
                turn_seconds=self._turn_of(),
                service_seconds=self._service_of(now),
            )
            late[tier], ahead_seconds = plan.shed, plan.ahead_seconds
        return [shed for tier in shed_tiers for shed in late[tier]]

    @property
    def _parts(self) -> float:
        """How many shares like this worker's the backend has."""
        return self._gate.limit_requests / max(1, self._gate.share_requests)

    def _turn_seconds(self) -> float:
        return self._service_seconds / max(1, self._gate.share_requests)

    def _turn_of(self) -> Callable[[Work], float]:
        if not self._by_tokens:
            turn_seconds = self._turn_seconds()
            return lambda _: turn_seconds
        prompt, output = (self._parts * self._gate.full_cost_seconds(*tokens) for tokens in ((1, 0), (0, 1)))
        return lambda work: prompt * work.prompt_tokens + output * work.output_tokens

    def _service_of(self, now: float) -> Callable[[Work], float]:
        """With luck, as for what is doomed: what may still be in time is not shed."""
        if not self._by_tokens:
            service_seconds = self._service_seconds
            return lambda _: service_seconds
        pace = self._gate.pace_min(now)
        ahead, prompt, output = pace.ahead_seconds, pace.prompt_token_seconds, pace.output_token_seconds
        return lambda work: ahead + prompt * work.prompt_tokens + output * work.output_tokens_min
