"""Past runs from the audit topic, and what they did with a letter. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forebay_producer.dead_letters.audit import (
    Action,
    AuditRecord,
    DiscardAudit,
    Ending,
    ReplayAudit,
    RunEnded,
    RunStarted,
)


@dataclass(slots=True, kw_only=True)
class PastRun:
    """One run with its continuations. Times: epoch milliseconds.

    ``letters``: replayed or discarded by it. ``ending``: None while it is active, or killed and not yet noticed by
    another run. ``run_id``: its first one. ``ttl_ms``, ``rate_per_second``, ``limit``, ``canary``: as given.
    """

    run_id: str
    started_at: int
    by: str
    action: Action
    selection: str
    ttl_ms: int | None
    rate_per_second: float | None
    limit: int | None
    canary: int | None
    letters: int = 0
    ended_at: int | None = None
    ending: Ending | None = None
    error: str | None = None

    @property
    def ending_text(self) -> str:
        """Its ending, as text."""
        ending = "has not ended" if self.ending is None else self.ending.value
        return ending if self.error is None else f"{ending}: {self.error}"


class PastRuns:
    """Built from all audit records in order. Keeps one entry per run, whatever its number of letters."""

    def __init__(self) -> None:
        self._runs: dict[str, PastRun] = {}
        self._last_ids: dict[str, str] = {}

    def add(self, record: AuditRecord) -> None:
        """Adds a record."""
        if isinstance(record, RunStarted):
            self._start(record)
            return
        run = self._runs.get(record.run_id or "")
        if run is None:
            return
        if isinstance(record, ReplayAudit):
            run.letters += 1
        elif isinstance(record, DiscardAudit):
            run.letters += len(record.places)
        elif isinstance(record, RunEnded) and record.run_id == self._last_ids[run.run_id]:
            run.ended_at, run.ending, run.error = record.at, record.ending, record.error

    def _start(self, record: RunStarted) -> None:
        run = self._runs.get(record.continues or "")
        if run is None:
            run = PastRun(
                run_id=record.run_id,
                started_at=record.at,
                by=record.by,
                action=record.does,
                selection=record.selection,
                ttl_ms=record.ttl_ms,
                rate_per_second=record.rate_per_second,
                limit=record.limit,
                canary=record.canary,
            )
        self._runs[record.run_id] = run
        self._last_ids[run.run_id] = record.run_id
        run.ended_at = run.ending = run.error = None

    def runs(self) -> list[PastRun]:
        """The runs, the first one first."""
        return [run for run_id, run in self._runs.items() if run.run_id == run_id]


def deeds_of(
    record: AuditRecord, *, topic_id: str, places: frozenset[tuple[int, int]]
) -> list[tuple[tuple[int, int], dict[str, Any]]]:
    """What the record says about the letters at these places: each place with a JSON object.

    ``topic_id``: Kafka's id of the dead-letter topic.
    """
    if not isinstance(record, ReplayAudit | DiscardAudit) or record.dead_letter_topic_id != topic_id:
        return []
    if isinstance(record, ReplayAudit):
        place = record.partition, record.offset
        if place not in places:
            return []
        to = f"{record.topic}:{record.to_partition}:{record.to_offset}"
        deed = {"action": "replay", "at": record.at, "by": record.by, "replay_count": record.replay_count, "to": to}
        return [(place, deed)]
    deed = {"action": "discard", "at": record.at, "by": record.by}
    return [(place, deed) for place in record.places if place in places]
