"""The Kafka checks of every doctor: connection, credentials, brokers, topics and their settings, permissions, clock.

Talks to the brokers with a time limit; changes nothing but for clock probes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import ConfigResource, ResourceType  # type: ignore[attr-defined]  # not in its stubs

from forebay_schemas.clock import SystemClock
from forebay_schemas.contract.fronts import Front
from forebay_schemas.contract.tiers import TierTimes
from forebay_schemas.contract.topics import Pool
from forebay_schemas.doctor.clock import CHECK as CLOCK
from forebay_schemas.doctor.clock import check_clock
from forebay_schemas.doctor.credentials import CREDENTIALS, TLS, credentials_findings, refusal_findings
from forebay_schemas.doctor.findings import CONNECTION_CHECK, Finding, Status, failed, named, ok, skipped, warning
from forebay_schemas.doctor.needs import Role, needs_of, topics_of
from forebay_schemas.doctor.network import tcp_problems
from forebay_schemas.doctor.tiers import CHECK as TIERS
from forebay_schemas.doctor.tiers import check_tiers
from forebay_schemas.doctor.topics import (
    PERMISSIONS,
    REPLICAS,
    SETTINGS,
    TOPICS,
    PartitionReplicas,
    TopicFound,
    drift_findings,
    existence_findings,
    permission_findings,
    replica_findings,
)
from forebay_schemas.errors import KafkaFailedError
from forebay_schemas.kafka import offsets_retention
from forebay_schemas.kafka.clients import make_admin
from forebay_schemas.kafka.connection import KafkaConnection
from forebay_schemas.kafka.diagnosis import find_trouble, refused_credentials
from forebay_schemas.kafka.group_access import ask_groups
from forebay_schemas.kafka.offsets_retention import retention_minutes, shortfall
from forebay_schemas.kafka.permissions import Access, Operation, Permitted, ask_topics, lacks, on_topic

BROKERS: Final = "kafka.brokers"
RETENTION: Final = "kafka.offsets_retention"

CONNECT_SECONDS: Final = 5.0
DOUBT_SECONDS: Final = 1.5
"""After this time without an answer the cause is probed."""

ANSWER_SECONDS: Final = 3.0
KAFKA_SECONDS: Final = 14.0
"""Time limit of all checks; what is left of it bounds each request."""

TCP_SECONDS: Final = 1.0
POLL_SECONDS: Final = 0.05

_LATER_CHECKS: Final = (BROKERS, RETENTION, TOPICS, SETTINGS, REPLICAS, PERMISSIONS, TIERS, CLOCK)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cluster:
    """The brokers' description of the cluster."""

    cluster_id: str | None
    nodes: tuple[Any, ...]
    milliseconds: float


class KafkaDoctor:
    """One look at a pool's cluster as ``role`` uses it, within ``KAFKA_SECONDS`` and a moment."""

    def __init__(
        self, connection: KafkaConnection, *, pool: Pool, role: Role, tier_times: TierTimes, front: Front | None = None
    ) -> None:
        """``tier_times``, ``front``: this process's. Raises ``UsageError`` for a property librdkafka refuses."""
        self._tier_times = tier_times
        self._connection = connection
        self._pool = pool
        self._front = front
        self._role = role
        self._end = 0.0
        self._admin = make_admin(connection, client_id="forebay-doctor")

    def run(self) -> list[Finding]:
        """All findings. A failed check does not stop independent ones. Call it once."""
        self._end = time.monotonic() + KAFKA_SECONDS
        cluster = self._connect()
        if not isinstance(cluster, _Cluster):
            broken = next(finding for finding in cluster if finding.status is Status.FAILED)
            return [*cluster, *_skipped(_LATER_CHECKS, broken.check)]
        findings = [
            ok(
                CONNECTION_CHECK,
                f"{self._connection.bootstrap_servers} answered in {cluster.milliseconds:.0f} ms; "
                f"cluster {cluster.cluster_id}",
            ),
            *credentials_findings(self._connection.properties),
        ]
        findings += self._check_brokers(cluster)
        broker_settings = self._broker_settings(cluster)
        findings.append(_retention_finding(broker_settings))
        found = self._describe_topics()
        if isinstance(found, Finding):
            return [*findings, found, *_skipped((SETTINGS, REPLICAS, PERMISSIONS, TIERS, CLOCK), TOPICS)]
        findings += existence_findings(found, pool=self._pool, front=self._front)
        findings += self._check_settings(found)
        findings += replica_findings(found)
        needs = needs_of(self._role, self._pool, front=self._front)
        permitted: Permitted = {}
        try:
            permitted = self._ask_permitted([need.access for need in needs])
        except KafkaException as error:
            said = f"the brokers do not tell what is permitted ({error.args[0].str()})"
            findings.append(warning(PERMISSIONS, said, fix="look at the brokers' log"))
        else:
            findings += permission_findings(
                needs,
                permitted,
                principal=self._connection.principal,
                authorizer=_authorizer(broker_settings),
                role=self._role,
            )
        findings += self._check_tiers(found, permitted)
        findings.append(self._check_clock(found, permitted))
        return findings

    def _connect(self) -> _Cluster | list[Finding]:
        """The cluster, or None: findings about the connection, TLS and the credentials."""
        started = time.monotonic()
        future = self._admin.describe_cluster(request_timeout=CONNECT_SECONDS)
        doubt_at = started + DOUBT_SECONDS
        while not future.done() and time.monotonic() - started < CONNECT_SECONDS:
            self._admin.poll(POLL_SECONDS)
            if self._connection.watch.failure is not None or time.monotonic() >= doubt_at:
                doubt_at = math.inf
                found = self._look_for_trouble()
                if found:
                    return found
        if future.done() and future.exception() is None:
            said = future.result()
            took_ms = (time.monotonic() - started) * 1000
            return _Cluster(cluster_id=said.cluster_id, nodes=tuple(said.nodes), milliseconds=took_ms)
        servers = self._connection.bootstrap_servers
        silent = failed(
            CONNECTION_CHECK,
            f"{servers}: TCP connects, but what is there does not answer as a Kafka broker",
            fix="check the address; if it is right, the broker hangs or a proxy before it has nobody behind it",
        )
        return self._look_for_trouble() or [silent, *_skipped((TLS, CREDENTIALS), CONNECTION_CHECK)]

    def _look_for_trouble(self) -> list[Finding]:
        """The cause of a failed connection; none if it cannot be seen from here. Takes up to seven seconds."""
        servers, properties = self._connection.bootstrap_servers, self._connection.properties
        report = self._connection.watch.authentication_failure
        trouble: KafkaFailedError | None = None
        if report is not None:
            trouble = refused_credentials(report, properties)
        else:
            addresses = [_address(server) for server in servers.split(",")]
            problems = tcp_problems(addresses, seconds=TCP_SECONDS)
            if len(problems) == len(addresses):
                said = "; ".join(f"{host}:{port}: {why.problem}" for (host, port), why in problems.items())
                fix = f"FOREBAY_BOOTSTRAP_SERVERS: {problems[addresses[0]].fix}"
                return [failed(CONNECTION_CHECK, said, fix=fix), *_skipped((TLS, CREDENTIALS), CONNECTION_CHECK)]
            trouble = find_trouble(servers, properties)
        if trouble is None:
            return []
        return [ok(CONNECTION_CHECK, f"{servers} takes connections"), *refusal_findings(trouble, properties)]

    def _check_brokers(self, cluster: _Cluster) -> list[Finding]:
        """Clients connect to the addresses that the brokers advertise, whatever the bootstrap servers are."""
        addresses = {(node.host, node.port): node.id for node in cluster.nodes}
        problems = tcp_problems(addresses, seconds=TCP_SECONDS)
        if not problems:
            names = [f"{host}:{port}" for host, port in addresses]
            return [ok(BROKERS, f"each address that the {len(addresses)} broker(s) advertise connects: {named(names)}")]
        return [
            failed(
                BROKERS,
                f"broker {addresses[host, port]} advertises {host}:{port}: {why.problem}",
                fix="start that broker, or correct its advertised.listeners to what this machine can reach",
            )
            for (host, port), why in problems.items()
        ]

    def _describe_topics(self) -> dict[str, TopicFound] | Finding:
        """Each topic that the role uses, by name."""
        names = TopicCollection(topics_of(self._role, self._pool, front=self._front))
        answers = self._admin.describe_topics(names, request_timeout=self._seconds())
        found: dict[str, TopicFound] = {}
        for name, answer in self._answers(answers).items():
            if isinstance(answer, KafkaError):
                found[name] = TopicFound(name=name, error=answer)
                continue
            found[name] = TopicFound(
                name=name,
                partitions=tuple(
                    PartitionReplicas(
                        number=each.id,
                        has_leader=each.leader is not None and each.leader.id >= 0,
                        replicas=len(each.replicas),
                        in_sync=len(each.isr),
                    )
                    for each in answer.partitions
                ),
            )
        errors = [of.error for of in found.values() if of.error is not None]
        if len(errors) == len(found) and errors[0].code() in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT):
            return failed(TOPICS, f"no broker told of the topics ({errors[0].str()})", fix=f"see {BROKERS}")
        return found

    def _check_settings(self, found: Mapping[str, TopicFound]) -> list[Finding]:
        there = [name for name, of in found.items() if of.is_there]
        if not there:
            return [skipped(SETTINGS, "no topic to look at")]
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in there]
        answers = self._admin.describe_configs(resources, request_timeout=self._seconds())
        settings = {
            resource.name: answer
            if isinstance(answer, KafkaError)
            else {name: str(entry.value) for name, entry in answer.items()}
            for resource, answer in self._answers(answers).items()
        }
        return drift_findings(found, settings, pool=self._pool, front=self._front)

    def _broker_settings(self, cluster: _Cluster) -> Mapping[str, Any] | KafkaError:
        """Those of one broker, by name."""
        resource = ConfigResource(ResourceType.BROKER, str(cluster.nodes[0].id))
        answers = self._admin.describe_configs([resource], request_timeout=self._seconds())
        [answer] = self._answers(answers).values()
        settings: Mapping[str, Any] | KafkaError = answer
        return settings

    def _ask_permitted(self, accesses: list[Access]) -> Permitted:
        """Raises ``KafkaException``."""
        on_topics = ask_topics(self._admin, accesses, timeout_seconds=self._seconds())
        on_groups = ask_groups(
            self._connection,
            accesses,
            topic=self._pool.results,
            client_id="forebay-doctor",
            timeout_seconds=self._seconds(),
        )
        return {**on_topics, **on_groups}

    def _check_tiers(self, found: Mapping[str, TopicFound], permitted: Permitted) -> list[Finding]:
        topic = self._pool.coordination
        if not found[topic].is_there:
            return [skipped(TIERS, f"cannot be told: {topic} is not there or not to be seen")]
        if lacks(permitted, on_topic(Operation.READ, topic)):
            return [skipped(TIERS, f"cannot be told: workers say theirs on {topic}, and reading it is not permitted")]
        return check_tiers(self._connection, topic=topic, own=self._tier_times, seconds=self._seconds())

    def _check_clock(self, found: Mapping[str, TopicFound], permitted: Permitted) -> Finding:
        topic = self._pool.coordination
        if not found[topic].is_there:
            return skipped(CLOCK, f"cannot be told: {topic} is not there or not to be seen")
        if lacks(permitted, on_topic(Operation.WRITE, topic)):
            return skipped(CLOCK, f"cannot be told: that takes a record on {topic}, and writing it is not permitted")
        return check_clock(self._connection, topic=topic, clock=SystemClock(), seconds=self._seconds())

    def _answers(self, futures: Mapping[Any, Any]) -> dict[Any, Any]:
        """The result of each request, or its `KafkaError`."""
        # The client's own timeout ends the requests; this one guards against a client that does not keep it.
        end = time.monotonic() + self._seconds() + 1.0
        while not all(future.done() for future in futures.values()) and time.monotonic() < end:
            self._admin.poll(POLL_SECONDS)
        return {each: _answer(future) for each, future in futures.items()}

    def _seconds(self) -> float:
        """The timeout of the next request."""
        return max(0.1, min(ANSWER_SECONDS, self._end - time.monotonic()))


def _authorizer(settings: Mapping[str, Any] | KafkaError) -> str | None:
    """The brokers' authorizer; empty without one, None where it may not be known."""
    if isinstance(settings, KafkaError) or "authorizer.class.name" not in settings:
        return None
    return str(settings["authorizer.class.name"].value or "")


def _retention_finding(settings: Mapping[str, Any] | KafkaError) -> Finding:
    minutes = None if isinstance(settings, KafkaError) else retention_minutes(settings)
    if minutes is None:
        why = settings.str() if isinstance(settings, KafkaError) else "the brokers do not tell"
        return skipped(RETENTION, f"{offsets_retention.SETTING} cannot be told ({why})")
    said = shortfall(minutes)
    if said is not None:
        return warning(RETENTION, said, fix=offsets_retention.FIX)
    return ok(RETENTION, f"{offsets_retention.SETTING} is {minutes}: commits outlast what waits")


def _answer(future: Any) -> Any:
    if not future.done():
        return KafkaError(KafkaError._TIMED_OUT)
    error = future.exception()
    if error is None:
        return future.result()
    return error.args[0] if isinstance(error, KafkaException) else KafkaError(KafkaError._FAIL, str(error))


def _skipped(checks: Iterable[str], needed: str) -> list[Finding]:
    return [skipped(check, f"needs {needed}") for check in checks]


def _address(server: str) -> tuple[str, int]:
    host, _, port = server.rpartition(":")
    return host.strip("[]"), int(port)
