"""Decodes an intake's records, or says why one cannot be decoded. The consumer's thread.

JSON and our own Avro are decoded here, within bounds that hold for any bytes. Records with foreign schemas are decoded
in a separate process, many at a time. So no record can end the worker while it is decoded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from forebay_schemas.contract.envelope import Request, deadline_ms, priority_in
from forebay_schemas.contract.envelope_problems import request_id_in_key
from forebay_schemas.contract.tiers import DEFAULT_PRIORITY, Tier
from forebay_schemas.contract.topics import LATER_BYTES_MAX, REQUEST_BYTES_MAX
from forebay_schemas.errors import EnvelopeError
from forebay_schemas.formats.envelope_reader import EnvelopeReader, SchemaPendingError, too_large
from forebay_worker.request.work import Record, Work

Ahead = Mapping[int, Request | EnvelopeError]
"""Records decoded together, by their identity."""

NOTHING_AHEAD: Final[Ahead] = MappingProxyType({})


class Decoding:
    """Decodes records with ``envelopes``. Never raises. ``default_ttl_ms``: `TierTimes.ttl_ms`."""

    def __init__(self, envelopes: EnvelopeReader, *, default_ttl_ms: Mapping[Tier, int]) -> None:
        self._envelopes = envelopes
        self._default_ttl_ms = default_ttl_ms

    def ahead(self, records: Sequence[Record]) -> Ahead:
        """Decodes the records with foreign schemas together; leaves out those that cannot be decoded yet.

        Blocks for at most a second plus the time of one record.
        """
        if not self._envelopes.reads_foreign:
            return NOTHING_AHEAD
        found = self._envelopes.read_foreign([_value_of(record) for record in records])
        return {id(records[place]): item for place, item in found.items()}

    def read(self, work: Work, ahead: Ahead = NOTHING_AHEAD) -> bool:
        """Decodes the record's value, unless that was done. False: it cannot be decoded yet.

        Foreign schemas are applied in `ahead` alone, so that this call is short.
        """
        if work.is_read:
            return True
        value = work.record.value()
        # Each hop adds its headers to those that the first topic accepted.
        bytes_max = LATER_BYTES_MAX if work.assignment.retry_delay_seconds else REQUEST_BYTES_MAX
        if work.size_bytes > bytes_max:
            return _refuse(work, too_large(value, work.size_bytes, bytes_max=bytes_max))
        found = ahead.get(id(work.record))
        if found is None:
            if self._envelopes.is_foreign(value):
                return False
            try:
                found = self._envelopes.read(value, content_type=work.history.content_type)
            except SchemaPendingError:
                return False
            except EnvelopeError as error:
                found = error
        if isinstance(found, EnvelopeError):
            return _refuse(work, found)
        work.request = found
        work.priority = priority_in(found, tier=work.tier)
        tier = work.history.expedited_tier
        if tier is None:
            tier = work.tier
        else:
            # The last request of the high tier could not be expedited.
            work.priority = max(work.priority, DEFAULT_PRIORITY[work.tier])
        work.deadline_ms = deadline_ms(
            found, tier=tier, first_enqueued_at=work.first_enqueued_at, default_ttl_ms=self._default_ttl_ms
        )
        return True


def _refuse(work: Work, problem: EnvelopeError) -> bool:
    """Refuses the record. The outcome goes to the id in the record, or else to its key."""
    if problem.request_id is None:
        problem.request_id = request_id_in_key(work.record.key())
        work.is_named_by_key = problem.request_id is not None
    work.problem = problem
    return True


def _value_of(record: Record) -> bytes | None:
    """The record's value; None if it is not a record, or too large to decode."""
    if record.error() is not None:
        return None
    value: bytes | None = record.value()
    return value if value is not None and len(value) <= REQUEST_BYTES_MAX else None
