"""The ACLs that each deployable needs; docs/security.md has them as a table. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_schemas.contract.topics import Pool
from forebay_schemas.kafka.permissions import Access, Operation, Resource, on_group, on_topic

READER_GROUP: Final = "forebay-reader"
"""The group of all consumers that read topics without joining a group."""


class Role(StrEnum):
    """The deployable that needs the permission; one principal may have several roles."""

    WORKER = "forebay-worker"
    SUBMIT = "forebay submit"
    ADMISSION = "a client with admission"
    RESULTS = "forebay results"
    BACKLOG = "forebay backlog"
    EXPORTER = "forebay exporter"
    CONTROL = "forebay cancel, expedite"
    STREAMS = "a client that streams"
    FRONT = "a client with FOREBAY_FRONT"
    DEAD_LETTERS = "forebay dead-letters"
    TOPICS = "forebay topics"


@dataclass(frozen=True, slots=True, kw_only=True)
class Acl:
    """One row. ``name`` may contain ``<pool>`` or ``<front>``; one that ends with a dot is a prefix."""

    role: Role
    operations: tuple[Operation, ...]
    resource: Resource
    name: str
    why: str

    @property
    def is_prefix(self) -> bool:
        """Whether it applies to all names with this prefix."""
        return self.name.endswith(".")


_R, _W, _D = Operation.READ, Operation.WRITE, Operation.DESCRIBE


def _topic(role: Role, operations: tuple[Operation, ...], name: str, why: str) -> Acl:
    return Acl(role=role, operations=operations, resource=Resource.TOPIC, name=f"forebay.<pool>.{name}", why=why)


def _groups(role: Role, operation: Operation, why: str) -> Acl:
    return Acl(role=role, operations=(operation,), resource=Resource.GROUP, name="forebay.<pool>.", why=why)


def _reader(role: Role) -> Acl:
    why = "looks for a coordinator whenever it reads a topic, though it joins no group"
    return Acl(role=role, operations=(_D,), resource=Resource.GROUP, name=READER_GROUP, why=why)


ACLS: Final = (
    _topic(Role.WORKER, (_R,), "requests.", "takes requests"),
    _topic(Role.WORKER, (_R, _W), "retry.", "writes retries and takes them when they are due"),
    _topic(Role.WORKER, (_R, _W), "results", "writes every outcome, and reads those of a dead worker"),
    _topic(Role.WORKER, (_W,), "streams", "sends streamed answers piece by piece; without it they come as a whole"),
    _topic(Role.WORKER, (_W,), "dead-letter", "keeps requests that failed for good"),
    _topic(Role.WORKER, (_R, _W), "coordination", "publishes hand-overs, and reads those of other workers"),
    _topic(Role.WORKER, (_R,), "control", "reads cancels and expedites"),
    _topic(Role.WORKER, (_W,), "requests.high", "writes copies of expedited requests"),
    _groups(Role.WORKER, _R, "is a member of the pool's groups, and commits"),
    _reader(Role.WORKER),
    _topic(Role.SUBMIT, (_W,), "requests.", "writes requests; `--wait` needs those of `forebay results` too"),
    _topic(Role.ADMISSION, (_R,), "requests.", "reads ends, beside `forebay submit`"),
    _topic(Role.ADMISSION, (_R,), "coordination", "reads which workers there are, and their load"),
    _groups(Role.ADMISSION, _D, "reads the workers' commits"),
    _reader(Role.ADMISSION),
    _topic(Role.RESULTS, (_R,), "results", "reads outcomes"),
    _reader(Role.RESULTS),
    _topic(Role.BACKLOG, (_R,), "requests.", "reads ends, and the oldest waiting request"),
    _groups(Role.BACKLOG, _D, "reads the workers' commits"),
    _reader(Role.BACKLOG),
    _topic(Role.EXPORTER, (_R,), "requests.", "reads ends, and the oldest waiting request"),
    _topic(Role.EXPORTER, (_D,), "retry.", "reads ends"),
    _topic(Role.EXPORTER, (_D,), "dead-letter", "reads ends"),
    _topic(Role.EXPORTER, (_R,), "coordination", "reads which workers there are, and their capacity"),
    _groups(Role.EXPORTER, _D, "reads the workers' commits"),
    _reader(Role.EXPORTER),
    _topic(Role.CONTROL, (_W,), "control", "writes cancels and expedites"),
    _topic(Role.CONTROL, (_R,), "coordination", "reads the workers' answers"),
    _reader(Role.CONTROL),
    _topic(Role.STREAMS, (_R,), "streams", "reads streamed answers piece by piece, beside `forebay results`"),
    Acl(
        role=Role.FRONT,
        operations=(_R, _W),
        resource=Resource.TOPIC,
        name="forebay-front.<front>.presence",
        why="announces which partition of results it follows, beside `forebay results`",
    ),
    _topic(Role.DEAD_LETTERS, (_R,), "dead-letter", "reads dead letters"),
    _topic(Role.DEAD_LETTERS, (_R, _W), "audit", "records replays, and skips recorded ones"),
    _topic(
        Role.DEAD_LETTERS,
        (_W,),
        "requests.",
        "writes replays; also needs those of `forebay backlog` and `forebay results`, which it reads meanwhile",
    ),
    _reader(Role.DEAD_LETTERS),
    _topic(
        Role.TOPICS,
        (Operation.CREATE, Operation.DESCRIBE_CONFIGS, Operation.DESCRIBE),
        "",
        "makes topics and compares their settings; the one command for administrators",
    ),
)


def worker_needs(pool: Pool) -> list[Access]:
    """The permissions without which a pool's worker does not start, one by one."""
    requests, groups = [pool.requests(tier) for tier in TIERS], [pool.group(tier) for tier in TIERS]
    return [
        *(on_topic(_R, name) for name in [*requests, *pool.retries, pool.results, pool.control, pool.coordination]),
        *(on_topic(_W, name) for name in [*pool.retries, pool.results, pool.dead_letter, pool.coordination]),
        on_topic(_W, pool.requests(Tier.HIGH)),
        *(on_group(_R, name) for name in [*groups, pool.retry_group]),
        on_group(_D, READER_GROUP),
    ]
