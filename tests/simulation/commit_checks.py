"""Checks of commits: none passes an unfinished record, none goes back, and none is confirmed that nobody took."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forebay_schemas.contract.offsets_metadata import decode_metadata
from simulation.executions import Executions, Place
from simulation.ledger import Ledger

if TYPE_CHECKING:
    from simulation.broker import LogRecord

Key = tuple[str, int]


@dataclass(slots=True)
class _Partition:
    """``checked``: everything below is finished."""

    records: list[LogRecord] = field(default_factory=list)
    checked: int = 0
    finished_ahead: set[int] = field(default_factory=set)
    committed: int = 0


class CommitChecks:
    """``is_finished``: whether the logs hold a record's outcome."""

    def __init__(self, *, ledger: Ledger, executions: Executions, is_finished: Callable[[LogRecord], bool]) -> None:
        self._ledger = ledger
        self._executions = executions
        self._is_finished = is_finished
        self._taken: set[tuple[str, Key, int, str]] = set()
        self._partitions: defaultdict[Key, _Partition] = defaultdict(_Partition)

    def appended(self, record: LogRecord) -> None:
        """A request or a retry was written."""
        self._partitions[record.topic_name, record.partition_number].records.append(record)

    def records(self) -> Iterator[LogRecord]:
        """All requests and retries."""
        return (record for partition in self._partitions.values() for record in partition.records)

    def check_confirmed(self, worker: str, key: Key, offset: int, metadata: str) -> None:
        """A worker takes a commit for confirmed."""
        if (worker, key, offset, metadata) not in self._taken:
            self._ledger.fail(f"{worker} takes a commit of {key} at {offset} for confirmed, and nobody took it")

    def committed(self, key: Key, offset: int, metadata: str, worker: str) -> None:
        """The coordinator took a commit."""
        partition = self._partitions[key]
        self._ledger.counts["commits"] += 1
        if offset < partition.committed:
            self._ledger.fail(f"{worker} committed {offset} of {key} after {partition.committed}")
        partition.committed = offset
        self._executions.causes.committed(worker, key)
        self._taken.add((worker, key, offset, metadata))
        decoded = decode_metadata(offset, metadata)
        if decoded is None:
            self._ledger.fail(f"{worker} committed metadata of {key} that cannot be read")
            return
        self._ledger.note(f"{worker} committed {key} {offset} {decoded if metadata else ''}")
        records = partition.records
        while partition.checked < len(records) and records[partition.checked].offset_number < offset:
            record = records[partition.checked]
            if record.offset_number not in partition.finished_ahead and not self._is_finished(record):
                self._ledger.fail(
                    f"{worker} committed {key} {offset}, but {record.request_id} at {record.place} is not finished"
                )
            partition.finished_ahead.discard(record.offset_number)
            partition.checked += 1
        if not decoded.finished:
            return
        ahead = partition.finished_ahead
        named = {at for first, length in decoded.finished for at in range(first, first + length)}
        for record in records[partition.checked :]:
            at = record.offset_number
            if at in named and at not in ahead:
                if not self._is_finished(record):
                    self._ledger.fail(
                        f"{worker} named {record.request_id} at {record.place} as finished, which it is not"
                    )
                ahead.add(at)

    def uncommitted(self, *, but: Set[Place]) -> str | None:
        """A partition that is not committed to its end, in words. ``but``: records that count as committed."""
        for key, partition in self._partitions.items():
            last = partition.records[-1] if partition.records else None
            if last is not None and partition.committed <= last.offset_number and last.place not in but:
                return f"{key} is committed up to {partition.committed}, its last record is {last.offset_number}"
        return None
