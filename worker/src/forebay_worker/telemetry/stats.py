"""The worker's counters: plain integers, changed by the event loop's thread alone; the collector reads them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from forebay_schemas.contract.control import ControlAction, ControlOutcome
from forebay_schemas.contract.reasons import Reason, Status
from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_schemas.runtime.metrics import Histogram
from forebay_worker.request.work import Work

DEAD_LETTER_REASONS: Final = tuple(each for each in Reason if each.status in (Status.FAILED, Status.REJECTED))
BACKEND_FAILURE_REASONS: Final = (
    Reason.BACKEND_UNAVAILABLE,
    Reason.BACKEND_OVERLOADED,
    Reason.BACKEND_BAD_RESPONSE,
    Reason.BACKEND_ERROR,
    Reason.BACKEND_TIMEOUT,
    Reason.BACKEND_REJECTED,
)
"""Reasons of failures that may be due to the backend's state."""

_END_TO_END: Final = frozenset(
    each for each in Reason if each.status in (Status.COMPLETED, Status.FAILED, Status.EXPIRED)
)
"""Cancelled, shed and rejected requests show nothing about the duration of a request."""


def _per_tier() -> dict[Tier, int]:
    return dict.fromkeys(TIERS, 0)


def _histograms() -> dict[Tier, Histogram]:
    return {tier: Histogram() for tier in TIERS}


def _per_reason(reasons: Iterable[Reason]) -> dict[Reason, int]:
    # Initialised with 0, so that an alert on growth sees the first one: a series that begins at 1 shows no growth.
    return dict.fromkeys(reasons, 0)


def _controls() -> dict[tuple[ControlAction, ControlOutcome], int]:
    cancel = dict.fromkeys((ControlOutcome.CANCELLED, ControlOutcome.FINISHED), 0)
    expedite = dict.fromkeys((each for each in ControlOutcome if each is not ControlOutcome.CANCELLED), 0)
    return {
        (action, outcome): number
        for action, outcomes in ((ControlAction.CANCEL, cancel), (ControlAction.EXPEDITE, expedite))
        for outcome, number in outcomes.items()
    }


@dataclass(slots=True, kw_only=True)
class Stats:
    """Counters of the event loop's thread. Each request updates them three times, so the code is plain for speed."""

    received: dict[Tier, int] = field(default_factory=_per_tier)
    retries: dict[Tier, int] = field(default_factory=_per_tier)
    duplicates: dict[Tier, int] = field(default_factory=_per_tier)
    copies: dict[Tier, int] = field(default_factory=_per_tier)
    outcomes: defaultdict[tuple[Tier, Reason], int] = field(default_factory=lambda: defaultdict(int))
    controls: dict[tuple[ControlAction, ControlOutcome], int] = field(default_factory=_controls)
    queue_seconds: dict[Tier, Histogram] = field(default_factory=_histograms)
    """One sample for each started execution."""
    service_seconds: dict[Tier, Histogram] = field(default_factory=_histograms)
    end_to_end_seconds: dict[Tier, Histogram] = field(default_factory=_histograms)
    first_token_seconds: dict[Tier, Histogram] = field(default_factory=_histograms)
    backend_failures: dict[Reason, int] = field(default_factory=lambda: _per_reason(BACKEND_FAILURE_REASONS))
    dead_letters: dict[Reason, int] = field(default_factory=lambda: _per_reason(DEAD_LETTER_REASONS))
    produce_failures: int = 0
    pieces: int = 0
    pieces_dropped: int = 0

    def dispatched(self, work: Work, now_ms: int) -> None:
        """Counts the start of a request."""
        waited_ms = now_ms - work.first_enqueued_at
        self.queue_seconds[work.assignment.tier].observe(waited_ms / 1000 if waited_ms > 0 else 0.0)

    def ended(self, work: Work, reason: Reason, service_seconds: float | None) -> None:
        """Counts the outcome of a request."""
        tier = work.assignment.tier
        self.outcomes[tier, reason] += 1
        if service_seconds is not None:
            self.service_seconds[tier].observe(service_seconds)

    def durable(self, work: Work, reason: Reason, now_ms: int) -> None:
        """Counts a request whose outcome records were all delivered."""
        if reason in _END_TO_END:
            took_ms = now_ms - work.first_enqueued_at
            self.end_to_end_seconds[work.assignment.tier].observe(took_ms / 1000 if took_ms > 0 else 0.0)

    def backend_failed(self, reason: Reason) -> None:
        """Counts an execution that failed by the backend's state."""
        self.backend_failures[reason] = self.backend_failures.get(reason, 0) + 1

    def died(self, reason: Reason) -> None:
        """Counts a record that goes to the dead letters."""
        self.dead_letters[reason] = self.dead_letters.get(reason, 0) + 1

    def fold(self) -> None:
        """Adds the noted samples to the histograms; call it many times a minute."""
        kinds = (self.queue_seconds, self.service_seconds, self.end_to_end_seconds, self.first_token_seconds)
        for histograms in kinds:
            for histogram in histograms.values():
                histogram.fold()
