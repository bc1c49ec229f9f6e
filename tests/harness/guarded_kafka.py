"""A broker that asks who is there and what they may do: SASL/PLAIN and ACLs. Talks to the broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from confluent_kafka import admin

from forebay_sandbox.kafka.access import KafkaAccess
from forebay_sandbox.kafka.spec import BrokerSpec, ClusterSpec, Listener

_ANSWER_SECONDS_MAX = 30.0

DESCRIBE: Final = admin.AclOperation.DESCRIBE  # type: ignore[attr-defined]  # its types do not name them
READ: Final = admin.AclOperation.READ  # type: ignore[attr-defined]
WRITE: Final = admin.AclOperation.WRITE  # type: ignore[attr-defined]
_JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="admin" password="admin-pw" user_admin="admin-pw" user_worker="worker-pw";'
)


def _client(user: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": f"{user}-pw",
    }


GUARDED: Final = ClusterSpec(
    brokers=(BrokerSpec(listeners=(Listener(name="DIRECT", protocol="SASL_PLAINTEXT"),)),),
    properties={
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        # The controller's own listener is plain: whoever is on it is the broker itself.
        "super.users": "User:admin;User:ANONYMOUS",
        "allow.everyone.if.no.acl.found": "true",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.direct.plain.sasl.jaas.config": _JAAS,
    },
    client_properties=_client("admin"),
)
"""Users `admin`, who may do all, and `worker`, who may do what is not denied."""


def worker_properties(folder: Path) -> Path:
    """A properties file for a worker that comes as `worker`."""
    path = folder / "guarded.properties"
    lines = [f"{name}={value}" for name, value in _client("worker").items()]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@contextmanager
def denied(kafka: KafkaAccess, topic: str, operation: Any) -> Iterator[None]:
    """Takes a permission on a topic away from `worker` while the block runs."""
    names: Any = admin  # its types do not name what follows
    deny = names.AclPermissionType.DENY
    rule = (names.ResourceType.TOPIC, topic, names.ResourcePatternType.LITERAL, "User:worker", "*", operation, deny)
    client = kafka.admin()
    for made in client.create_acls([names.AclBinding(*rule)]).values():
        made.result(_ANSWER_SECONDS_MAX)
    try:
        yield
    finally:
        for gone in client.delete_acls([names.AclBindingFilter(*rule)]).values():
            gone.result(_ANSWER_SECONDS_MAX)
