"""Hand-drawn runs, as the ledger is given them. Pure."""

from __future__ import annotations

import dataclasses
from typing import Any

from chaos.facts import (
    End,
    Execution,
    Facts,
    Letter,
    Life,
    Outcome,
    RequestRecord,
)
from chaos.ledger import Cause, make_ledger

_TOPIC = "requests.high"


def _life(worker: str, *, slot: int = 1, end: End = End.RUNNING, signalled_ms: int | None = None) -> Life:
    return Life(worker=worker, slot=slot, started_ms=0, end=end, signalled_ms=signalled_ms)


def _record(request_id: str = "a", *, attempt: int = 1, offset: int = 0, due_ms: int = 0, **more: Any) -> RequestRecord:
    return RequestRecord(
        request_id=request_id,
        attempt=attempt,
        topic=_TOPIC,
        partition=0,
        offset=offset,
        written_ms=due_ms,
        due_ms=due_ms,
        **more,
    )


def _execution(worker: str, started_ms: int, ended_ms: int, **more: Any) -> Execution:
    fields = {"request_id": "a", "attempt": 1, "outcome": "completed", "fault": None, **more}
    return Execution(worker=worker, started_ms=started_ms, ended_ms=ended_ms, **fields)


def _outcome(request_id: str = "a", at_ms: int = 50_000, *, status: str = "completed", **more: Any) -> Outcome:
    return Outcome(request_id=request_id, attempt=1, status=status, reason=status, worker="w1", at_ms=at_ms, **more)


def _letter(key: str = "a", *, offset: int = 0, reason: str = "backend_error", replay_count: int = 0) -> Letter:
    return Letter(partition=0, offset=offset, key=key, reason=reason, replay_count=replay_count, at_ms=0)


_NOTHING = Facts(
    accepted=frozenset({"a"}),
    undecodable=frozenset(),
    records=(_record(),),
    outcomes=(_outcome(),),
    letters=(),
    executions=(),
    lives=(_life("w1"), _life("w2", slot=2)),
    windows=(),
    commits={},
    end_ms=100_000,
)


def _causes(**given: Any) -> list[Cause]:
    return [each.cause for each in make_ledger(dataclasses.replace(_NOTHING, **given)).repetitions]
