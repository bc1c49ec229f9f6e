"""Executions in an engine's own log. Reads the log file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One request as the engine saw it; times in epoch milliseconds."""

    request_id: str
    started_at_ms: int
    ended_at_ms: int
    outcome: str
    status: int | None


def read_executions(log_path: Path) -> list[Execution]:
    """All executions that have ended, in the order of their ends."""
    if not log_path.exists():
        return []
    # The engine may be writing the last line just now.
    whole = log_path.read_text(encoding="utf-8").rpartition("\n")[0]
    names = Execution.__slots__
    return [Execution(**{name: fields[name] for name in names}) for fields in map(json.loads, whole.splitlines())]


def run_more_than_once(executions: Iterable[Execution]) -> set[str]:
    """The ids with two or more executions, whatever became of them."""
    counts = Counter(execution.request_id for execution in executions)
    return {request_id for request_id, count in counts.items() if count > 1}
