"""The permissions that each deployable needs, and what fails without them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum

from forebay_schemas.contract.fronts import Front
from forebay_schemas.contract.tiers import TIERS
from forebay_schemas.contract.topics import Pool
from forebay_schemas.kafka.acls import READER_GROUP, worker_needs
from forebay_schemas.kafka.permissions import Access, Operation, Permitted, Resource, lacks, on_group, on_topic


class Role(StrEnum):
    """The deployable."""

    PRODUCER = "producer"
    WORKER = "worker"


class Weight(StrEnum):
    """The effect of a missing permission."""

    VITAL = "vital"
    """Nothing works without it."""
    USEFUL = "useful"
    """One command or feature does not work without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """An operation on a resource. ``lost``: what does not work without it."""

    access: Access
    weight: Weight
    lost: str


def needs_of(role: Role, pool: Pool, *, front: Front | None = None) -> list[Need]:
    """All permissions of a deployable, the vital ones first. ``front``: the producer's, if it is a replica of one."""
    if role is Role.PRODUCER:
        return [*_producer_needs(pool), *([] if front is None else _front_needs(front))]
    streams = on_topic(Operation.WRITE, pool.streams)
    return [
        *_vital(worker_needs(pool), "a worker does not start without it"),
        *_useful([streams], "streaming answers piece by piece"),
    ]


def topics_of(role: Role, pool: Pool, *, front: Front | None = None) -> list[str]:
    """The topics that a deployable uses."""
    accesses = [need.access for need in needs_of(role, pool, front=front)]
    return list(dict.fromkeys(access.name for access in accesses if access.resource is Resource.TOPIC))


def lacking(needs: Collection[Need], permitted: Permitted) -> list[Need]:
    """The needs that are not met."""
    return [need for need in needs if lacks(permitted, need.access)]


def known(needs: Collection[Need], permitted: Permitted) -> list[Need]:
    """The needs that the brokers report on."""
    return [need for need in needs if (need.access.resource, need.access.name) in permitted]


def _producer_needs(pool: Pool) -> list[Need]:
    requests, groups = [pool.requests(tier) for tier in TIERS], [pool.group(tier) for tier in TIERS]
    read, write = Operation.READ, Operation.WRITE
    return [
        *_vital((on_topic(write, name) for name in requests), "requests cannot be submitted"),
        *_vital([on_topic(read, pool.results), on_group(Operation.DESCRIBE, READER_GROUP)], "outcomes cannot be read"),
        *_useful((on_topic(read, name) for name in requests), "forebay backlog"),
        *_useful((on_group(Operation.DESCRIBE, name) for name in groups), "forebay backlog"),
        *_useful([on_topic(write, pool.control), on_topic(read, pool.coordination)], "forebay cancel and expedite"),
        *_useful([on_topic(read, pool.streams)], "reading streamed answers piece by piece"),
        *_useful([on_topic(read, pool.dead_letter), on_topic(read, pool.audit)], "forebay dead-letters"),
        *_useful([on_topic(write, pool.audit)], "forebay dead-letters replay and discard"),
    ]


def _front_needs(front: Front) -> list[Need]:
    accesses = [on_topic(operation, front.presence) for operation in (Operation.READ, Operation.WRITE)]
    return _useful(accesses, "following one partition of results (FOREBAY_FRONT)")


def _vital(accesses: Iterable[Access], lost: str) -> list[Need]:
    return [Need(access=access, weight=Weight.VITAL, lost=lost) for access in accesses]


def _useful(accesses: Iterable[Access], lost: str) -> list[Need]:
    return [Need(access=access, weight=Weight.USEFUL, lost=lost) for access in accesses]
