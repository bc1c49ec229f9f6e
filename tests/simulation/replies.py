"""Outcomes awaited in partitions, and requests sent again: how they are drawn, and where results may lie. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING, Any

from forebay_schemas.contract.tiers import Tier
from forebay_worker.outcome.reported import KNOWN_SECONDS

if TYPE_CHECKING:
    from forebay_schemas.contract.results import Result
    from simulation.broker import LogRecord
    from simulation.executions import Accepted
    from simulation.ledger import Ledger
    from simulation.plan import Plan


Copy = tuple[float, Tier, bytes, dict[str, Any]]
"""Time, tier, key and envelope of a request that is sent again."""


class Replies:
    """Draws from a generator of its own: what a seed stands for otherwise is left as it is."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._random = Random(plan.seed + 20_000_003)

    def draw(self) -> dict[str, Any]:
        """Fields of an envelope: a partition that there may not be, or none."""
        random, plan = self._random, self._plan
        if random.random() >= plan.awaited_share:
            return {}
        return {"reply": {"partition": random.randrange(plan.results_partitions + 1)}}

    def copies(self, at: float, tier: Tier, fields: dict[str, Any]) -> Iterator[Copy]:
        """Somebody loses patience and sends a request again under its id. Key, partition and payload are any."""
        random, plan = self._random, self._plan
        while random.random() < plan.copied_share:
            copy = {**fields, "payload": {"copy": True}, **self.draw()}
            if "ttl_ms" in fields:
                tier = random.choice(plan.tiers)
            at += random.random() * random.choice((0.01, 0.5, 5.0))
            yield at, tier, random.randbytes(4), copy


class ResultPlaces:
    """Checks where results are written."""

    def __init__(self, ledger: Ledger, plan: Plan) -> None:
        self._ledger = ledger
        self._partitions = plan.results_partitions
        # Whether workers remember all that they report.
        self._remembers_outcomes = plan.bounds.reported_requests_max > 10 * plan.requests
        self._written_at: dict[tuple[str, str, int], float] = {}

    def check(self, record: LogRecord, result: Result, accepted: Accepted, *, now: float, is_explained: bool) -> None:
        """Fails for a result that lies where nobody awaits it, and for a second one there of a worker that remembers
        the first. ``is_explained``: another reason is known for that."""
        request_id, partition = result.request_id, record.partition_number
        is_awaited_by_key = any(each is None or each >= self._partitions for each in accepted.awaited_in)
        if partition not in accepted.awaited_in and not is_awaited_by_key:
            self._ledger.fail(f"the result of {request_id} lies in {partition}, where nobody awaits it")
        mark = (request_id, result.worker or "", partition)
        is_known = now - self._written_at.get(mark, -math.inf) < KNOWN_SECONDS / 2
        if is_known and self._remembers_outcomes and not is_explained:
            self._ledger.fail(f"{result.worker} writes a second result of {request_id} to {partition}")
        self._written_at[mark] = now
