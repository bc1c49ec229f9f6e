"""The permissions that Forebay needs, and the messages for denials. `ask_topics` and `missing_of_topics` talk to the
brokers; group permissions are asked in `group_access`."""

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
    """Operations, in Kafka's words. Read, Write, Delete and Alter include Describe."""

    READ = "Read"
    WRITE = "Write"
    CREATE = "Create"
    DELETE = "Delete"
    ALTER = "Alter"
    DESCRIBE = "Describe"
    DESCRIBE_CONFIGS = "DescribeConfigs"


class Resource(StrEnum):
    """The kinds of resources."""

    TOPIC = "topic"
    GROUP = "group"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """One permission: an operation on a resource."""

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


def is_denied(error: KafkaError) -> bool:
    """Whether the error means that an ACL is missing."""
    return error.code() in _RESOURCES


def denied_error(*lacking: Access, principal: str, doing: str) -> DeniedError:
    """The error for missing permissions."""
    return DeniedError([(each.operation.value, each.target) for each in lacking], principal=principal, doing=doing)


def error_text(error: KafkaError, *needs: Access, principal: str) -> str:
    """One line about a Kafka error: for a denial operation, resource and principal, else the client's own words.

    ``needs``: permissions that may be missing; the error tells the kind of resource.
    """
    resource = _RESOURCES.get(error.code())
    lacking = next((each for each in needs if each.resource is resource), None)
    return error.str() if lacking is None else f"denied: {principal} may not {lacking.operation} {lacking.target}"


Permitted = Mapping[tuple[Resource, str], Collection[Operation]]
"""A principal's permissions, as far as the brokers report them; resources that are missing here are unknown."""


def lacks(permitted: Permitted, access: Access) -> bool:
    """Whether the brokers deny it. Unknown resources are not denied."""
    operations = permitted.get((access.resource, access.name))
    return operations is not None and access.operation not in operations


def missing_of_topics(
    admin: AdminClient, needed: Iterable[Access], *, timeout_seconds: float = ANSWER_SECONDS_MAX
) -> list[Access]:
    """Those of ``needed`` that the brokers deny this client on topics, in order. Raises as `ask_topics`."""
    wanted = list(needed)
    permitted = ask_topics(admin, wanted, timeout_seconds=timeout_seconds)
    return [access for access in wanted if lacks(permitted, access)]


def ask_topics(
    admin: AdminClient, needed: Iterable[Access], *, timeout_seconds: float = ANSWER_SECONDS_MAX
) -> Permitted:
    """The client's permissions on the topics in ``needed``. Those on a missing topic are unknown.

    Raises ``KafkaException`` when the brokers do not answer within ``timeout_seconds``.
    """
    topics = sorted({each.name for each in needed if each.resource is Resource.TOPIC})
    return until_passed(timeout_seconds)(_on_topics, admin, topics, timeout_seconds) if topics else {}


def _on_topics(admin: AdminClient, names: list[str], timeout_seconds: float) -> Permitted:
    answers = admin.describe_topics(
        TopicCollection(names), include_authorized_operations=True, request_timeout=timeout_seconds
    )
    permitted = {(Resource.TOPIC, name): _operations(answer) for name, answer in answers.items()}
    return {key: operations for key, operations in permitted.items() if operations is not None}


def _operations(answer: Any) -> frozenset[Operation] | None:
    """The allowed operations; None if unknown."""
    try:
        allowed = answer.result().authorized_operations
    except KafkaException as error:
        if is_denied(error.args[0]):
            return frozenset()
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return None
        raise
    if allowed is None:
        return None
    return frozenset(operation for operation in Operation if AclOperation[operation.name] in allowed)
