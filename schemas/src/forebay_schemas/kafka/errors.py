"""Turns Kafka errors into Forebay's, with a readable message; tells whether no broker answered. No I/O."""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError

from forebay_schemas.errors import BrokerUnreachableError, ForebayError, KafkaFailedError
from forebay_schemas.kafka.acls import READER_GROUP
from forebay_schemas.kafka.connection import KafkaConnection
from forebay_schemas.kafka.diagnosis import refused_credentials
from forebay_schemas.kafka.permissions import Access, Operation, Resource, denied_error, is_denied, on_group

_UNREACHABLE: Final = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._SSL,
}

# Reported for any topic while no broker names it, and before a broker that has just started does.
_FORGOTTEN: Final = {KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC}


def is_unreachable(error: KafkaError, *, known: bool = False) -> bool:
    """Whether the error means that no broker answered. ``known``: the topic existed before."""
    return error.code() in _UNREACHABLE or (known and error.code() in _FORGOTTEN)


def no_answer(connection: KafkaConnection, *, doing: str, why: str) -> BrokerUnreachableError:
    """The error for unreachable brokers while ``doing`` something."""
    return BrokerUnreachableError(
        f"no broker answered at {connection.bootstrap_servers} while {doing} ({why}); "
        "check FOREBAY_BOOTSTRAP_SERVERS and that Kafka runs"
    )


def as_forebay_error(
    error: KafkaError,
    *,
    connection: KafkaConnection,
    doing: str,
    needs: Access | None,
    known: bool = False,
    why: str = "",
) -> ForebayError:
    """The error for people, for a Kafka error while ``doing`` what ``needs`` a permission, or none.

    ``known``: the topic existed before. ``why``: the cause for unreachable brokers, instead of the client's own words.
    """
    if is_unreachable(error, known=known):
        refused = connection.watch.authentication_failure
        if refused is not None:
            return refused_credentials(refused, connection.properties)
        return no_answer(connection, doing=doing, why=why or error.str())
    if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED and (needs is None or needs.resource is Resource.TOPIC):
        # For consumers that read a topic without joining a group.
        needs = on_group(Operation.DESCRIBE, READER_GROUP)
    if needs is not None and is_denied(error):
        return denied_error(needs, principal=connection.principal, doing=doing)
    return KafkaFailedError(f"Kafka refused while {doing}: {error.str()} ({error.name()})")
