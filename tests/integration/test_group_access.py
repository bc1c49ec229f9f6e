"""A client's permissions on a group, from a broker that allows nothing without an ACL. Nothing is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forebay_sandbox.testing.kafka_secure import Acl
from forebay_schemas.kafka.group_access import ask_groups, denied_groups
from forebay_schemas.kafka.permissions import Operation, Resource, on_group
from harness.locked_down import locked_pool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay_sandbox.testing.kafka_secure import SecureKafka
    from harness.live_pool import LivePool

pytestmark = pytest.mark.slow

USER, PASSWORD = "group-asker", "hush-hush"
DESCRIBE, READ = Operation.DESCRIBE, Operation.READ


@pytest.fixture
def pool(secure_kafka: SecureKafka) -> Iterator[LivePool]:
    with locked_pool(secure_kafka, USER, PASSWORD) as pool:
        yield pool


def test_what_may_be_done_to_a_group_is_told_without_an_admin_client(secure_kafka: SecureKafka, pool: LivePool) -> None:
    connection = secure_kafka.scram(USER, PASSWORD)
    groups = {f"{pool.name}.described": ("Describe",), f"{pool.name}.read": ("Read",), f"{pool.name}.hidden": ()}
    secure_kafka.allow(
        *(
            Acl(principal=f"User:{USER}", operation=operation, resource="Group", name=group)
            for group, operations in groups.items()
            for operation in operations
        )
    )
    described, read, hidden = groups
    topic = pool.topics.results
    needed = [on_group(READ, group) for group in groups]
    assert ask_groups(connection, needed, topic=topic, client_id="t", timeout_seconds=5.0) == {
        (Resource.GROUP, described): {DESCRIBE},
        (Resource.GROUP, read): {DESCRIBE, READ},
        (Resource.GROUP, hidden): frozenset(),
    }
    assert denied_groups(connection, groups, topic=topic, client_id="t", timeout_seconds=5.0) == {hidden}
    there = secure_kafka.kafka.admin().list_consumer_groups(request_timeout=30).result().valid
    assert {group.group_id for group in there} & set(groups) == set()
