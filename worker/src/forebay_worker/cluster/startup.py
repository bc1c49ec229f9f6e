"""Checks of the Kafka cluster before the worker begins, and messages for what the cluster denies it.

`require_usable` and `lacking` call the brokers, on the calling thread; the rest only writes messages.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import structlog
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from forebay_schemas.contract.tiers import TIERS
from forebay_schemas.contract.topics import Pool
from forebay_schemas.kafka import offsets_retention
from forebay_schemas.kafka.acls import worker_needs
from forebay_schemas.kafka.clients import make_admin
from forebay_schemas.kafka.connection import KafkaConnection
from forebay_schemas.kafka.diagnosis import refused_credentials
from forebay_schemas.kafka.group_access import denied_groups
from forebay_schemas.kafka.metadata import ask_metadata, require_topics
from forebay_schemas.kafka.permissions import (
    ANSWER_SECONDS_MAX,
    Access,
    Operation,
    Resource,
    denied_error,
    error_text,
    missing_of_topics,
    on_group,
    on_topic,
)
from forebay_schemas.kafka.topic_ids import topic_ids

ASK_SECONDS_MAX: Final = 2.0

log = structlog.get_logger("forebay.cluster")


class Cluster:
    """The cluster as seen by this worker's principal."""

    def __init__(self, connection: KafkaConnection, *, pool: Pool, worker_id: str) -> None:
        self._connection = connection
        self._pool = pool
        self._worker_id = worker_id
        self._principal = connection.principal
        self._admin: AdminClient | None = None
        """Kept for the one request that is repeated for ever."""

    def require_usable(self) -> dict[str, int]:
        """Returns the number of partitions of each topic.

        Raises ``TopicMissingError``; ``DeniedError`` with all missing ACLs; and, if the brokers cannot be asked,
        ``AuthenticationFailedError``, ``TlsFailedError`` or ``BrokerUnreachableError``.
        """
        pool = self._pool
        admin = make_admin(self._connection, client_id=self._worker_id)
        ask_metadata(admin, connection=self._connection, doing="listing topics")
        try:
            lacking = self._missing(admin, timeout_seconds=ANSWER_SECONDS_MAX)
        except KafkaException as error:
            # A controller or a coordinator is away; the other brokers answer, so there is work to do. A missing
            # permission is reported when a request is denied.
            log.warning("permissions could not be read from the brokers", error=error.args[0].str())
            lacking = []
        if lacking:
            raise denied_error(*lacking, principal=self._principal, doing="starting")
        topics = [pool.requests(tier) for tier in TIERS] + pool.retries + [pool.results, pool.dead_letter]
        topics += [pool.coordination, pool.control]
        counts = require_topics(
            admin, topics, connection=self._connection, pool=pool.name, operation=Operation.DESCRIBE
        )
        self._look_at_retention(admin)
        return counts

    def _look_at_retention(self, admin: AdminClient) -> None:
        """Warns if commits may be deleted before waiting requests, if this principal may read the settings."""
        try:
            minutes = offsets_retention.ask_retention_minutes(admin, timeout_seconds=ASK_SECONDS_MAX)
        except KafkaException:
            return
        if minutes is not None and (said := offsets_retention.shortfall(minutes)) is not None:
            log.warning("commits may be deleted before requests", problem=said, fix=offsets_retention.FIX)

    def topic_ids(self, topics: Collection[str]) -> dict[str, int]:
        """The ids of those of these topics that exist. Raises ``KafkaException``."""
        if self._admin is None:
            self._admin = make_admin(self._connection, client_id=self._worker_id)
        self._admin.poll(0)  # its log
        return topic_ids(self._admin, topics, timeout_seconds=ASK_SECONDS_MAX)

    def count_streams_partitions(self) -> int:
        """The number of partitions of the streams topic. Talks to the brokers, for some seconds at most.

        Raises ``TopicMissingError``, and what keeps it from being asked as `require_usable` does.
        """
        topic = self._pool.streams
        admin = make_admin(self._connection, client_id=self._worker_id)
        found = require_topics(
            admin,
            [topic],
            connection=self._connection,
            pool=self._pool.name,
            operation=Operation.WRITE,
            timeout_seconds=ASK_SECONDS_MAX,
        )
        return found[topic]

    def lacking(self) -> list[Access] | None:
        """The missing ACLs; None if the brokers do not answer within some seconds."""
        admin = make_admin(self._connection, client_id=self._worker_id)
        try:
            return self._missing(admin, timeout_seconds=ASK_SECONDS_MAX)
        except KafkaException:
            return None

    def _missing(self, admin: AdminClient, *, timeout_seconds: float) -> list[Access]:
        needed = worker_needs(self._pool)
        refused = missing_of_topics(admin, needed, timeout_seconds=timeout_seconds)
        denied = denied_groups(
            self._connection,
            sorted({one.name for one in needed if one.resource is Resource.GROUP}),
            topic=self._pool.results,
            client_id=self._worker_id,
            timeout_seconds=min(timeout_seconds, ASK_SECONDS_MAX),
        )
        return [one for one in needed if one in refused or (one.resource is Resource.GROUP and one.name in denied)]

    def explain_writing(self, error: KafkaError, topic: str) -> str:
        """Why a record could not be written."""
        return error_text(error, on_topic(Operation.WRITE, topic), principal=self._principal)

    def explain_reading(self, intake: str, error: KafkaError, topic: str) -> str:
        """Why a topic cannot be read, or its offsets cannot be committed."""
        group = on_group(Operation.READ, f"forebay.{self._pool.name}.{intake}")
        return error_text(error, on_topic(Operation.READ, topic), group, principal=self._principal)

    def explain_following(self, error: KafkaError, topic: str) -> str:
        """Why coordination or control cannot be read. They are read without a group."""
        return error_text(error, on_topic(Operation.READ, topic), principal=self._principal)

    @property
    def troubles(self) -> list[str]:
        """Recent client errors about credentials and certificates."""
        watch = self._connection.watch
        if (refused := watch.authentication_failure) is not None:
            return [str(refused_credentials(refused, self._connection.properties))]
        return [] if watch.failure is None else [f"TLS: {watch.failure.str()}"]
