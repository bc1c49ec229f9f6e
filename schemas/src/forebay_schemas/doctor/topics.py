"""Findings about a pool's topics, from the brokers' descriptions: existence, settings, replicas, permissions. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaError

from forebay_schemas.contract.fronts import Front
from forebay_schemas.contract.tiers import TIERS
from forebay_schemas.contract.topics import PARTITIONS_MAX, Pool
from forebay_schemas.doctor.findings import Finding, failed, named, ok, skipped, warning
from forebay_schemas.doctor.needs import Need, Role, Weight, known, lacking
from forebay_schemas.kafka.permissions import Permitted, Resource, is_denied
from forebay_schemas.kafka.topic_drift import drift_of

TOPICS: Final = "topics"
SETTINGS: Final = "topics.settings"
REPLICAS: Final = "topics.replicas"
PERMISSIONS: Final = "permissions"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReplicas:
    """A partition, as the brokers describe it."""

    number: int
    has_leader: bool
    replicas: int
    in_sync: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFound:
    """A topic as the brokers describe it, or why they do not."""

    name: str
    error: KafkaError | None = None
    partitions: tuple[PartitionReplicas, ...] = ()

    @property
    def is_there(self) -> bool:
        """Whether it exists and may be described."""
        return self.error is None

    @property
    def is_denied(self) -> bool:
        """Whether this principal may not even know of it."""
        return self.error is not None and self.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def existence_findings(found: Mapping[str, TopicFound], *, pool: Pool, front: Front | None = None) -> list[Finding]:
    """Missing topics, and those that cannot be described."""
    gone = [
        name
        for name, of in found.items()
        if of.error is not None and of.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    ]
    # A pool that was made before this topic was added works without it.
    later = [pool.streams] if pool.streams in gone and any(pool.requests(tier) not in gone for tier in TIERS) else []
    of_front = [front.presence] if front is not None and front.presence in gone else []
    missing = [name for name in gone if name not in (*later, *of_front)]
    hidden = [name for name, of in found.items() if of.is_denied]
    findings: list[Finding] = []
    if missing:
        findings.append(
            failed(
                TOPICS,
                f"{len(missing)} of {len(found)} missing: {named(missing)}",
                fix=f"create them with: forebay topics create --pool {pool.name}; or is another --pool meant?",
            )
        )
    findings += [
        warning(
            TOPICS,
            f"{name} is missing: answers are not streamed piece by piece",
            fix=f"create it with: forebay topics create --pool {pool.name}",
        )
        for name in later
    ]
    findings += [
        failed(TOPICS, f"{name} is missing", fix=f"create it with: forebay topics create --front {front.name}")
        for name in of_front
        if front is not None
    ]
    if hidden:
        findings.append(
            warning(
                TOPICS,
                f"cannot tell whether {len(hidden)} of {len(found)} exist: {named(hidden)}",
                fix="permit this principal to Describe them; see the permissions below",
            )
        )
    findings += [
        failed(TOPICS, f"{name}: {of.error.str()} ({of.error.name()})", fix="look at the brokers' log")
        for name, of in found.items()
        if of.error is not None and name not in gone and name not in hidden
    ]
    return findings or [ok(TOPICS, f"all {len(found)} that it uses of pool {pool.name} are there")]


def drift_findings(
    found: Mapping[str, TopicFound],
    settings: Mapping[str, Mapping[str, str] | KafkaError],
    *,
    pool: Pool,
    front: Front | None = None,
) -> list[Finding]:
    """Differences from the topics that `forebay topics create` would make, a line for each."""
    requests = [found[pool.requests(tier)] for tier in TIERS]
    shapes = [of.partitions for of in requests if of.partitions] or [of.partitions for of in found.values()]
    partitions = min(max(map(len, shapes)), PARTITIONS_MAX)
    replication = max((each.replicas for shape in shapes for each in shape), default=1)
    findings: list[Finding] = []
    untold: list[tuple[str, KafkaError]] = []
    specs = pool.specs(partitions=max(1, partitions), replication=max(1, replication))
    if front is not None:
        specs += front.specs(replication=max(1, replication))
    for spec in specs:
        told = settings.get(spec.name)
        if told is None:
            continue
        if isinstance(told, KafkaError):
            untold.append((spec.name, told))
            continue
        of = found[spec.name]
        few = min((each.replicas for each in of.partitions), default=0)
        drift = drift_of(spec, partitions=len(of.partitions), replication=few, settings=told)
        if drift:
            findings.append(
                warning(
                    SETTINGS,
                    f"{spec.name}: " + "; ".join(map(str, drift)),
                    fix="set them with Kafka's own tools (kafka-configs, kafka-topics); Forebay changes no topic",
                )
            )
    if untold:
        findings.append(_untold_settings([name for name, _ in untold], untold[0][1]))
    return findings or [ok(SETTINGS, f"{len(settings)} topics are as forebay topics create makes them")]


def _untold_settings(names: Sequence[str], why: KafkaError) -> Finding:
    if is_denied(why):
        # Only administrators need it.
        may = "forebay topics describe tells one who may"
        return skipped(SETTINGS, f"DescribeConfigs is not permitted on {len(names)} topics: {named(names)}; {may}")
    said = f"cannot tell for {len(names)} topics: {named(names)} ({why.str()})"
    return warning(SETTINGS, said, fix="look at the brokers' log")


def replica_findings(found: Mapping[str, TopicFound]) -> list[Finding]:
    """Partitions that are unusable, or would be after one more broker failure."""
    parts = [(name, each) for name, of in found.items() for each in of.partitions]
    if not parts:
        return [skipped(REPLICAS, "no topic to look at")]
    leaderless = [f"{name}-{each.number}" for name, each in parts if not each.has_leader]
    behind = [f"{name}-{each.number}" for name, each in parts if each.has_leader and each.in_sync < each.replicas]
    findings: list[Finding] = []
    if leaderless:
        findings.append(
            failed(
                REPLICAS,
                f"{len(leaderless)} of {len(parts)} partitions have no leader: {named(leaderless)}",
                fix="start the brokers that hold them",
            )
        )
    if behind:
        findings.append(
            warning(
                REPLICAS,
                f"{len(behind)} of {len(parts)} partitions have replicas that are not in sync: {named(behind)}",
                fix="look for a broker that is down or slow; below min.insync.replicas nothing can be written",
            )
        )
    return findings or [ok(REPLICAS, f"{len(parts)} partitions have a leader and all replicas in sync")]


def permission_findings(
    needs: Sequence[Need], permitted: Permitted, *, principal: str, authorizer: str | None, role: Role
) -> list[Finding]:
    """Missing permissions of this principal, a line for each resource and operation. ``authorizer``: the brokers'
    class, empty without one, None if unknown."""
    findings = [_lack(need, principal) for need in lacking(needs, permitted)]
    told = known(needs, permitted)
    if findings:
        return findings
    if not told:
        return [skipped(PERMISSIONS, f"the brokers do not tell what {principal} may do")]
    if authorizer == "":
        return [ok(PERMISSIONS, "the cluster has no authorizer: everybody may do everything")]
    untold = len(needs) - len(told)
    more = f"; {untold} cannot be told" if untold else ""
    return [ok(PERMISSIONS, f"{principal} may do all {len(told)} things that a {role} needs{more}")]


def _lack(need: Need, principal: str) -> Finding:
    access = need.access
    said = f"{principal} may not {access.operation} {access.target}: {need.lost}"
    option = f"--{access.resource} {access.name}" if access.resource is not Resource.CLUSTER else "--cluster"
    fix = f'grant it: kafka-acls --add --allow-principal "{principal}" --operation {access.operation} {option}'
    if need.weight is Weight.VITAL:
        return failed(PERMISSIONS, said, fix=fix)
    return warning(PERMISSIONS, f"{said} does not work", fix=fix)
