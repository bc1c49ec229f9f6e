"""What Forebay asks of Kafka's ACLs, and what is said when they refuse. `ask_permitted` and `missing` talk to
the brokers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs leave AclOperation out
    AclOperation,
    AdminClient,
)

from forebay_schemas.errors import DeniedError
from forebay_schemas.kafka.transient import until_passed

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


Permitted = Mapping[tuple[Resource, str], Collection[Operation]]
"""What a principal may do, as far as the brokers say: a resource that is missing here is not known."""


def lacks(permitted: Permitted, access: Access) -> bool:
    """Whether the brokers say that it is not allowed. Of a resource that is not known nothing lacks."""
    operations = permitted.get((access.resource, access.name))
    return operations is not None and access.operation not in operations


def missing(
    admin: AdminClient, needed: Iterable[Access], *, timeout_seconds: float = ANSWER_SECONDS_MAX
) -> list[Access]:
    """What of ``needed`` the brokers would refuse this client, in its order. Raises as `ask_permitted`."""
    wanted = list(needed)
    permitted = ask_permitted(admin, wanted, timeout_seconds=timeout_seconds)
    return [access for access in wanted if lacks(permitted, access)]


def ask_permitted(
    admin: AdminClient, needed: Iterable[Access], *, timeout_seconds: float = ANSWER_SECONDS_MAX
) -> Permitted:
    """What this client may do to the topics and groups in ``needed``.

    Of a topic or group that does not exist nobody can tell. ``timeout_seconds`` bounds each of the two questions.
    Raises ``KafkaException`` when the brokers do not answer.
    """
    wanted = list(needed)
    # A group's coordinator is still loading for some seconds after its broker came up.
    again = until_passed(timeout_seconds)
    topics = sorted({each.name for each in wanted if each.resource is Resource.TOPIC})
    groups = sorted({each.name for each in wanted if each.resource is Resource.GROUP})
    permitted: dict[tuple[Resource, str], Collection[Operation]] = {}
    if topics:
        permitted |= again(_on_topics, admin, topics, timeout_seconds)
    if groups:
        permitted |= again(_on_groups, admin, groups, timeout_seconds)
    return permitted


def _on_topics(admin: AdminClient, names: list[str], timeout_seconds: float) -> Permitted:
    answers = admin.describe_topics(
        TopicCollection(names), include_authorized_operations=True, request_timeout=timeout_seconds
    )
    return _permitted(Resource.TOPIC, answers)


def _on_groups(admin: AdminClient, names: list[str], timeout_seconds: float) -> Permitted:
    answers = admin.describe_consumer_groups(names, include_authorized_operations=True, request_timeout=timeout_seconds)
    return _permitted(Resource.GROUP, answers)


def _permitted(resource: Resource, answers: Mapping[str, Any]) -> Permitted:
    permitted: dict[tuple[Resource, str], Collection[Operation]] = {}
    for name, answer in answers.items():
        operations = _operations(answer)
        if operations is not None:
            permitted[resource, name] = operations
    return permitted


def _operations(answer: Any) -> frozenset[Operation] | None:
    """What is allowed; None when it cannot be told."""
    try:
        allowed = answer.result().authorized_operations
    except KafkaException as error:
        if is_denied(error.args[0]):
            return frozenset()
        if error.args[0].code() in _ABSENT:
            return None
        raise
    if allowed is None:
        return None
    return frozenset(operation for operation in Operation if AclOperation[operation.name] in allowed)
