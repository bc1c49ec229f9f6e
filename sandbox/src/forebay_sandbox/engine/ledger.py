"""The outcome of each request that an engine received: counts, peaks, and a JSON line each in a file."""

from __future__ import annotations

import json
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from forebay_schemas.clock import Clock


class ExecutionOutcome(Enum):
    COMPLETED = "completed"
    """Run to its end; the answer went to the connection."""
    DISCONNECTED = "disconnected"
    """The client disconnected before the end."""
    REFUSED = "refused"
    """Answered with an error status, and not run."""
    FAILED = "failed"
    """Caused by the engine: a 5xx other than 503, a cut connection, a stop."""


class Execution:
    """One request as the engine saw it. Its handler fills in what it learns, and ends it once."""

    __slots__ = (
        *("_ledger", "_started_at_ms", "attempt", "ended", "fault", "output_tokens", "path", "prompt_tokens"),
        *("replay_count", "request_id", "status", "traceparent", "worker"),
    )

    def __init__(self, *, ledger: ExecutionLedger, request_id: str, path: str, started_at_ms: int) -> None:
        self.request_id = request_id
        self.path = path
        self.worker: str | None = None
        """The client, attempt, replay and trace, if the client sends them as Forebay's worker does."""
        self.attempt: str | None = None
        self.replay_count: str | None = None
        self.traceparent: str | None = None
        self.status: int | None = None
        """The HTTP status; None when no status line was sent."""
        self.fault: str | None = None
        """The kind of the injected fault, if any."""
        self.prompt_tokens: int | None = None
        self.output_tokens = 0
        """Output tokens so far."""
        self.ended = False
        self._ledger = ledger
        self._started_at_ms = started_at_ms

    def end(self, outcome: ExecutionOutcome) -> None:
        """Records the outcome; the first one counts."""
        if not self.ended:
            self.ended = True
            self._ledger.record(self, outcome, started_at_ms=self._started_at_ms)


class ExecutionLedger:
    """Counts executions since the last reset. With a file: the ground truth of all executions, for tests."""

    def __init__(self, *, clock: Clock, log_path: Path | None) -> None:
        """Opens `log_path` for appending; each line is flushed when it is written."""
        self._clock = clock
        self._file = None if log_path is None else log_path.open("a", encoding="utf-8", buffering=1)
        self._in_flight = 0
        self.reset()

    def reset(self) -> None:
        """Restarts the counts. Requests in flight stay, and are the new peak."""
        self._received = self._in_flight
        self._in_flight_peak = self._in_flight
        self._outcomes = dict.fromkeys(ExecutionOutcome, 0)
        self._prompt_tokens = 0
        self._output_tokens = 0

    def begin(self, *, request_id: str, path: str) -> Execution:
        self._received += 1
        self._in_flight += 1
        self._in_flight_peak = max(self._in_flight_peak, self._in_flight)
        return Execution(ledger=self, request_id=request_id, path=path, started_at_ms=self._clock.wall_ms())

    def record(self, execution: Execution, outcome: ExecutionOutcome, *, started_at_ms: int) -> None:
        self._in_flight -= 1
        self._outcomes[outcome] += 1
        if outcome is ExecutionOutcome.COMPLETED:
            self._prompt_tokens += execution.prompt_tokens or 0
            self._output_tokens += execution.output_tokens
        if self._file is not None:
            line = {
                "request_id": execution.request_id,
                "path": execution.path,
                "worker": execution.worker,
                "attempt": execution.attempt,
                "replay_count": execution.replay_count,
                "traceparent": execution.traceparent,
                "started_at_ms": started_at_ms,
                "ended_at_ms": self._clock.wall_ms(),
                "outcome": outcome.value,
                "status": execution.status,
                "fault": execution.fault,
                "prompt_tokens": execution.prompt_tokens,
                "output_tokens": execution.output_tokens,
            }
            self._file.write(json.dumps(line) + "\n")

    def counts(self) -> dict[str, Any]:
        """Requests by outcome, those in flight now and at most, and the tokens of the completed ones."""
        return {
            "received": self._received,
            **{outcome.value: count for outcome, count in self._outcomes.items()},
            "in_flight": self._in_flight,
            "in_flight_peak": self._in_flight_peak,
            "prompt_tokens": self._prompt_tokens,
            "output_tokens": self._output_tokens,
        }

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def executed_ids(log_path: Path) -> list[str]:
    """The request ids in a ledger's file, each as often as it was run. A refused request was not run."""
    lines = map(json.loads, log_path.read_text(encoding="utf-8").splitlines())
    return [line["request_id"] for line in lines if line["outcome"] != ExecutionOutcome.REFUSED.value]
