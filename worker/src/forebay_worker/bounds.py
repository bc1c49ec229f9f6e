"""Bounds of everything that a worker keeps. Pure; the simulation's short histories use smaller ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from forebay_schemas.contract.offsets_metadata import METADATA_BYTES_MAX
from forebay_schemas.contract.topics import LATER_BYTES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The bounds that no setting changes."""

    lookahead_records_min: int = 256
    """Records of each tier read ahead. Ordering needs candidates: a window of 1 / 16 / 64 / 256 gave .55 / .65 / .74 /
    .79 of the bound (measured)."""

    lookahead_records_max: int = 1 << 62
    """Independent of the backend's speed; a setting bounds the bytes."""

    retry_room_records: int = 256
    """Due retries may join a full lane, up to twice its capacity: they never queue at a tail again."""

    parked_records_max: int = 64
    parked_bytes_max: int = 4 * 1024 * 1024
    """A partition that parks more than either of these is paused until it parks less than half."""

    reported_requests_max: int = 50_000
    """Remembered requests whose outcome this worker has reported."""

    undelivered_records_max: int = 20_000
    undelivered_bytes_max: int = 64 * 1024 * 1024
    """Outcomes in flight to Kafka; with more of them nothing starts."""

    result_bytes_max: int = LATER_BYTES_MAX
    """Size of one result, as its topic accepts it."""

    notices_max: int = 10_000
    """Other workers' notices, kept for partitions that are assigned a little later."""

    metadata_bytes_max: int = METADATA_BYTES_MAX
    """Metadata of a commit: finished offsets beyond it, and running ones."""

    request_overhead_bytes: int = 20_000
    """Memory of a request in flight besides its body: connection, buffers and objects (18.5 KiB with bodies of 1 KiB,
    200 at a time, measured)."""

    @property
    def metadata_bytes_nearly_full(self) -> int:
        """From this size on the partition is not read until its commit is down to half of it."""
        return self.metadata_bytes_max * 3 // 4


BOUNDS: Final = Bounds()
