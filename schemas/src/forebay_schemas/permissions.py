"""What Forebay asks of Kafka's ACLs, and what is said when they refuse. Only `missing` asks the brokers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from forebay_schemas.errors import DeniedError
from forebay_schemas.passing import until_passed

ANSWER_SECONDS_MAX: Final = 10.0


class Operation(StrEnum):
    """What may be allowed, in Kafka's words. Read, Write, Delete and Alter include Describe."""

    READ = "Read"
    WRITE = "Write"
    CREATE = "Create"
    DELETE = "Delete"
    ALTER = "Alter"
    DESCRIBE = "Describe"
    DESCRIBE_CONFIGS = "DescribeConfigs"


class Resource(StrEnum):
    """What an operation is allowed on."""

    TOPIC = "topic"
    GROUP = "group"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """One thing that must be allowed."""

    operation: Operation
    resource: Resource
    name: str

    @property
    def target(self) -> str:
        """The resource with its name, for people."""
        return "the cluster" if self.resource is Resource.CLUSTER else f"{self.resource} {self.name}"


def on_topic(operation: Operation, name: str) -> Access:
    """An operation on a topic."""
    return Access(operation=operation, resource=Resource.TOPIC, name=name)


def on_group(operation: Operation, name: str) -> Access:
    """An operation on a consumer group."""
    return Access(operation=operation, resource=Resource.GROUP, name=name)


CLUSTER: Final = "kafka-cluster"

_RESOURCES: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: Resource.TOPIC,
    KafkaError.GROUP_AUTHORIZATION_FAILED: Resource.GROUP,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: Resource.CLUSTER,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Resource.CLUSTER,
}

_ABSENT: Final = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.GROUP_ID_NOT_FOUND)


def is_denied(error: KafkaError) -> bool:
    """Whether the error means that an ACL is missing."""
    return error.code() in _RESOURCES


def denied_error(*lacking: Access, principal: str, doing: str) -> DeniedError:
    """The error for missing permissions."""
    return DeniedError([(each.operation.value, each.target) for each in lacking], principal=principal, doing=doing)


def error_text(error: KafkaError, *needs: Access, principal: str) -> str:
    """One line about a Kafka error: for a denial operation, resource and principal, else the client's own words.

    ``needs``: what might be lacking; the error tells which kind of resource it is about.
    """
    resource = _RESOURCES.get(error.code())
    lacking = next((each for each in needs if each.resource is resource), None)
    return error.str() if lacking is None else f"denied: {principal} may not {lacking.operation} {lacking.target}"


def missing(admin: AdminClient, needed: Iterable[Access]) -> list[Access]:
    """What of ``needed`` (topics and groups) the brokers would refuse this client, in its order.

    A topic or group that does not exist is not counted: nobody can tell. Raises ``KafkaException`` when the brokers
    do not answer.
    """
    wanted = list(needed)
    topics = [each.name for each in wanted if each.resource is Resource.TOPIC]
    groups = [each.name for each in wanted if each.resource is Resource.GROUP]
    # A group's coordinator is still loading for some seconds after its broker came up.
    allowed = until_passed()(_allowed_on_topics, admin, topics) | until_passed()(_allowed_on_groups, admin, groups)
    lacking = []
    for access in wanted:
        operations = allowed.get((access.resource, access.name))
        if operations is not None and access.operation not in operations:
            lacking.append(access)
    return lacking


_Allowed = dict[tuple[Resource, str], set[str] | None]


def _allowed_on_topics(admin: AdminClient, names: list[str]) -> _Allowed:
    if not names:
        return {}
    answers = admin.describe_topics(
        TopicCollection(sorted(set(names))), include_authorized_operations=True, request_timeout=ANSWER_SECONDS_MAX
    )
    return {(Resource.TOPIC, name): _operations(answer) for name, answer in answers.items()}


def _allowed_on_groups(admin: AdminClient, names: list[str]) -> _Allowed:
    if not names:
        return {}
    answers = admin.describe_consumer_groups(
        sorted(set(names)), include_authorized_operations=True, request_timeout=ANSWER_SECONDS_MAX
    )
    return {(Resource.GROUP, name): _operations(answer) for name, answer in answers.items()}


def _operations(answer: Any) -> set[str] | None:
    """What is allowed; None when it cannot be told."""
    try:
        operations = answer.result().authorized_operations
    except KafkaException as error:
        if is_denied(error.args[0]):
            return set()
        if error.args[0].code() in _ABSENT:
            return None
        raise
    return None if operations is None else {_word(each.name) for each in operations}


def _word(name: str) -> str:
    """Kafka's word for an operation of the client: DESCRIBE_CONFIGS is DescribeConfigs."""
    return "".join(part.capitalize() for part in name.split("_"))
