"""A pool on a locked-down broker, and clients that come to it with nothing but what docs/security.md grants them.

Talks to the broker; writes properties files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from forebay_sandbox.testing.kafka_secure import Acl, SecureKafka
from forebay_schemas.kafka.connection import KafkaConnection
from harness.forebay_command import ForebayCommand
from harness.live_pool import LivePool

SECURITY = Path(__file__).parents[2] / "docs" / "security.md"

_ROW = re.compile(r"\| `(?P<role>[^`]+)` \| (?P<operations>[A-Za-z, ]+) \| (?P<kind>\w+) `(?P<name>[^`]+)` \|")


@contextmanager
def locked_pool(secure_kafka: SecureKafka, user: str, password: str) -> Iterator[LivePool]:
    """A pool on that broker, and a user who may nothing yet."""
    secure_kafka.set_password(user, password)
    with closing(LivePool(secure_kafka.kafka)) as pool:
        yield pool


def documented_acls(role: str, *, pool: str, principal: str) -> list[Acl]:
    """The rows of the table in docs/security.md for a role, as permissions of ``principal`` in ``pool``."""
    found: list[Acl] = []
    for row in _ROW.finditer(SECURITY.read_text(encoding="utf-8")):
        if row["role"] != role:
            continue
        name = row["name"].replace("<pool>", pool)
        found += [
            Acl(
                principal=principal,
                operation=operation,
                resource=row["kind"].capitalize(),
                name=name.removesuffix("*"),
                prefixed=name.endswith("*"),
            )
            for operation in row["operations"].split(", ")
        ]
    assert found, f"docs/security.md has no row for {role}"
    return found


def write_properties(path: Path, connection: KafkaConnection, **instead: str) -> Path:
    """A properties file for the connection; ``instead`` (``_`` for ``.``) replaces values."""
    properties: Mapping[str, str] = connection.properties | {
        name.replace("_", "."): value for name, value in instead.items()
    }
    path.touch(mode=0o600)
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()), encoding="utf-8")
    return path


def forebay_as(connection: KafkaConnection, *, pool: str, folder: Path) -> ForebayCommand:
    """The command `forebay` with this connection's properties in a file."""
    file = write_properties(folder / "client.properties", connection)
    return ForebayCommand(bootstrap_servers=connection.bootstrap_servers, pool=pool, FOREBAY_KAFKA_PROPERTIES=str(file))


def without(acls: Iterable[Acl], gone: Acl) -> list[Acl]:
    """All but one."""
    return [acl for acl in acls if acl != gone]


def grant_roles(secure: SecureKafka, *roles: str, pool: str, principal: str) -> list[Acl]:
    """Grants exactly what the table says; returns it."""
    acls = list({acl: None for role in roles for acl in documented_acls(role, pool=pool, principal=principal)})
    secure.allow(*acls)
    return acls
