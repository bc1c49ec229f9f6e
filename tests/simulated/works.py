"""Requests as the worker's stages hand them to each other, made in one line. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from forebay_schemas.contract.envelope import JsonCodec, deadline_ms, priority_in
from forebay_schemas.contract.headers import read_history
from forebay_schemas.contract.offsets_metadata import NOTHING, CommitMetadata
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.contract.topics import Pool
from forebay_schemas.errors import EnvelopeError
from forebay_worker.partition.assignment import Assignment
from forebay_worker.partition.credit import Credit
from forebay_worker.request.work import Work
from simulated.ports import NOW_MS, MemoryRecord

POOL = Pool("test")


def envelope(request_id: str = "r-1", **fields: Any) -> bytes:
    """An envelope's bytes; ``fields`` replace the defaults, None leaves a field out."""
    whole = {"request_id": request_id, "biz_type": "chat_completion", "payload": {}} | fields
    return msgspec.json.encode({name: value for name, value in whole.items() if value is not None})


def make_assignment(
    tier: Tier = Tier.MID,
    *,
    partition: int = 0,
    committed: int | None = 0,
    metadata: CommitMetadata = NOTHING,
    now: float = 0.0,
    retry_delay_seconds: int = 0,
    credit: Credit | None = None,
) -> Assignment:
    """A partition of a tier's requests, or of its retries when they have a delay.

    Its last owner let go of it, all that was said was heard, and its first commit was acknowledged: no start waits.
    """
    assignment = Assignment(
        topic=POOL.retry(tier, retry_delay_seconds) if retry_delay_seconds else POOL.requests(tier),
        partition=partition,
        tier=tier,
        retry_delay_seconds=retry_delay_seconds,
        credit=credit if credit is not None else Credit(capacity_records=1),
        now=now,
        committed=committed,
        metadata=metadata,
    )
    assignment.opened = True
    assignment.last_owner_died = False
    assignment.claims.careful_below = 0
    assignment.claims.is_announced = True
    return assignment


def make_work(
    assignment: Assignment | None = None,
    *,
    offset: int = 0,
    value: bytes | None = None,
    key: bytes | None = None,
    headers: list[tuple[str, bytes | None]] | None = None,
    enqueued_at: int = NOW_MS,
    **fields: Any,
) -> Work:
    """A request as the intake makes it. ``fields`` are the envelope's; its id is ``r-<offset>`` unless given."""
    assignment = assignment if assignment is not None else make_assignment()
    if value is None:
        value = envelope(**{"request_id": f"r-{offset}", **fields})
    record = MemoryRecord(
        topic_name=assignment.topic,
        partition_number=assignment.partition,
        offset_number=offset,
        key_bytes=key,
        value_bytes=value,
        header_list=headers,
        timestamp_ms=enqueued_at,
    )
    work = Work(
        record=record,
        assignment=assignment,
        offset=offset,
        size_bytes=len(value),
        history=read_history(headers),
        first_enqueued_at=enqueued_at,
        crashes=assignment.crashes_of(offset),
    )
    try:
        work.request = JsonCodec().decode(value)
    except EnvelopeError as error:
        work.problem = error
        return work
    work.priority = priority_in(work.request, tier=assignment.tier)
    work.deadline_ms = deadline_ms(work.request, tier=assignment.tier, first_enqueued_at=enqueued_at)
    return work
