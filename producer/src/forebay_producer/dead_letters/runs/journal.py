"""The open runs on the audit topic: which one holds the lease, and which replays are in doubt. Pure.

Runs get the lease in the order of their `RunStarted` records. A run that has not ended blocks those behind it until it
has been silent for the lease. A replay is in doubt when its run's last `Intent` names it and no `ReplayAudit` does. A
run writes its next intent only when it knows the result of the last one, so that it leaves at most one intent behind.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

from forebay_producer.dead_letters.audit import (
    LEASE_SECONDS,
    AuditRecord,
    DiscardAudit,
    IntendedReplay,
    Intent,
    ReplayAudit,
    RunEnded,
    RunStarted,
)

Place = tuple[int, int]
"""Partition and offset of a dead letter."""


@dataclass(slots=True, kw_only=True)
class OpenRun:
    """A run that has not ended.

    ``turn``: the offset of its first record. ``heard``: monotonic seconds of its last record. ``started_at``: epoch
    milliseconds on its clock. ``doubts``: the letters of ``intent``, its last one, that are in doubt.
    """

    run_id: str
    by: str
    turn: int
    started_at: int
    heard: float
    intent: Intent | None = None
    doubts: dict[Place, IntendedReplay] = field(default_factory=dict)


class Journal:
    """Built from all audit records in order; keeps only runs that have not ended."""

    def __init__(self) -> None:
        self._open: dict[str, OpenRun] = {}

    def add(self, record: AuditRecord, *, offset: int, now: float) -> None:
        """Adds the record at ``offset``, read at ``now`` (monotonic seconds)."""
        run_id = record.run_id
        if run_id is None:
            return
        if isinstance(record, RunEnded):
            self._open.pop(run_id, None)
            return
        run = self._open.get(run_id)
        if run is None:
            # A late intent of a run that others have ended is in doubt like any other.
            if not isinstance(record, RunStarted | Intent):
                return
            run = OpenRun(run_id=run_id, by=record.by, turn=offset, started_at=record.at, heard=now)
            self._open[run_id] = run
        run.heard = now
        if isinstance(record, Intent):
            run.intent = record
            run.doubts = {(letter.partition, letter.offset): letter for letter in record.letters}
        elif isinstance(record, ReplayAudit):
            run.doubts.pop((record.partition, record.offset), None)
        elif isinstance(record, DiscardAudit):
            for partition, place in record.places:
                run.doubts.pop((partition, place), None)

    def ahead_of(self, run_id: str) -> list[OpenRun]:
        """The runs that have not ended and started before this one, the first one first; all if this one is not
        open."""
        own = self._open.get(run_id)
        ahead = [run for run in self._open.values() if own is None or run.turn < own.turn]
        return sorted(ahead, key=lambda run: run.turn)

    def is_open(self, run_id: str) -> bool:
        """Whether the run has started and not ended."""
        return run_id in self._open

    def holding_up(self, run_id: str, *, own: Set[str], now: float) -> OpenRun | None:
        """The first run that blocks this one; None when this one may hold the lease.

        ``own``: earlier ids of the same process, known to have ended. ``now``: monotonic seconds of the last read of
        the topic; all records written before it must have been added.
        """
        for run in self.ahead_of(run_id):
            if run.run_id not in own and now - run.heard < LEASE_SECONDS:
                return run
        return None

    @property
    def in_doubt(self) -> int:
        """The number of replays in doubt, of all runs."""
        return sum(len(run.doubts) for run in self._open.values())
