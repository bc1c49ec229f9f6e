"""Hand-drawn runs, as the ledger is given them. Pure."""

from __future__ import annotations

import dataclasses
from typing import Any

from chaos.facts import End, Execution, Facts, Letter, Life, Outcome, RequestRecord
from chaos.ledger import Cause, make_ledger

TOPIC = "requests.high"


def life(worker: str, *, slot: int = 1, end: End = End.RUNNING, signalled_ms: int | None = None) -> Life:
    return Life(worker=worker, slot=slot, started_ms=0, end=end, signalled_ms=signalled_ms)


def record(request_id: str = "a", *, attempt: int = 1, offset: int = 0, due_ms: int = 0, **more: Any) -> RequestRecord:
    return RequestRecord(
        request_id=request_id,
        attempt=attempt,
        topic=TOPIC,
        partition=0,
        offset=offset,
        written_ms=due_ms,
        due_ms=due_ms,
        **more,
    )


def execution(worker: str, started_ms: int, ended_ms: int, **more: Any) -> Execution:
    fields = {"request_id": "a", "attempt": 1, "outcome": "completed", "fault": None, **more}
    return Execution(worker=worker, started_ms=started_ms, ended_ms=ended_ms, **fields)


def outcome(request_id: str = "a", at_ms: int = 50_000, *, status: str = "completed", **more: Any) -> Outcome:
    return Outcome(request_id=request_id, attempt=1, status=status, reason=status, worker="w1", at_ms=at_ms, **more)


def letter(key: str = "a", *, offset: int = 0, reason: str = "backend_error", replay_count: int = 0) -> Letter:
    return Letter(partition=0, offset=offset, key=key, reason=reason, replay_count=replay_count, at_ms=0)


NOTHING = Facts(
    accepted=frozenset({"a"}),
    undecodable=frozenset(),
    records=(record(),),
    outcomes=(outcome(),),
    letters=(),
    executions=(),
    lives=(life("w1"), life("w2", slot=2)),
    windows=(),
    commits={},
    end_ms=100_000,
)


def causes_of(**given: Any) -> list[Cause]:
    return [each.cause for each in make_ledger(dataclasses.replace(NOTHING, **given)).repetitions]
