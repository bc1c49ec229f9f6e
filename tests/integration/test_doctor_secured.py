"""`forebay doctor` and `forebay-worker doctor` on a locked-down broker: all granted, one permission taken, a wrong
password."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from forebay_sandbox.testing.kafka_secure import Acl
from harness.doctor import examine
from harness.locked_down import forebay_as, grant_roles, locked_pool, write_properties

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from forebay_sandbox.testing.kafka_secure import SecureKafka
    from harness.live_pool import LivePool

pytestmark = pytest.mark.slow

USER, PASSWORD = "examined", "hush-hush"


@pytest.fixture
def pool(secure_kafka: SecureKafka) -> Iterator[LivePool]:
    with locked_pool(secure_kafka, USER, PASSWORD) as pool:
        yield pool


def test_a_worker_without_one_permission_is_told_which(
    secure_kafka: SecureKafka, pool: LivePool, tmp_path: Path
) -> None:
    connection = secure_kafka.scram(USER, PASSWORD)
    grant_roles(secure_kafka, "forebay-worker", pool=pool.name, principal=f"User:{USER}")
    settings = {
        "FOREBAY_BOOTSTRAP_SERVERS": connection.bootstrap_servers,
        "FOREBAY_KAFKA_PROPERTIES": str(write_properties(tmp_path / "client.properties", connection)),
        "FOREBAY_POOL": pool.name,
        "FOREBAY_HANDLER": "harness.handlers:obey",
        "FOREBAY_GPU": "none",
    }
    granted = examine("forebay_worker", settings)
    assert (granted.status("permissions"), granted.status("clock")) == ("ok", "ok")
    assert granted.wrong() == {}, "it looks at nothing that the documented permissions do not cover"
    assert granted.status("topics.settings") == "skipped"
    assert granted.code == 0
    results = pool.topics.results
    secure_kafka.take_away(Acl(principal=f"User:{USER}", operation="Write", resource="Topic", name=results))
    lacking = examine("forebay_worker", settings)
    assert lacking.code == 1
    assert f"User:{USER} may not Write topic {results}" in lacking.text("permissions")
    assert PASSWORD not in granted.out + granted.err + lacking.out + lacking.err


def test_a_client_is_told_what_it_may_not_do_and_that_its_password_is_wrong(
    secure_kafka: SecureKafka, pool: LivePool, tmp_path: Path
) -> None:
    connection = secure_kafka.scram(USER, PASSWORD)
    grant_roles(secure_kafka, "forebay results", pool=pool.name, principal=f"User:{USER}")
    found = forebay_as(connection, pool=pool.name, folder=tmp_path).run("doctor", "--output", "json")
    assert found.code == 1
    failed = [record["detail"] for record in found.records if record["status"] == "failed"]
    assert len(failed) == 3, failed
    assert all("may not Write topic" in detail and "requests" in detail for detail in failed)
    wrong = forebay_as(secure_kafka.scram(USER, "wrong"), pool=pool.name, folder=tmp_path)
    refused = wrong.run("doctor", "--output", "json")
    assert refused.code == 1
    [credentials] = [record for record in refused.records if record["status"] == "failed"]
    assert credentials["check"] == "kafka.credentials", json.dumps(refused.records)
    assert f"authentication failed for User:{USER}" in credentials["detail"]
