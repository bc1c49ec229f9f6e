"""Checks of a cluster's answers before a worker begins. No broker: the questions are answered by hand."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from structlog.testing import capture_logs

from forebay_schemas.contract.topics import Pool
from forebay_schemas.errors import DeniedError
from forebay_schemas.kafka import offsets_retention
from forebay_schemas.kafka.connection import KafkaConnection
from forebay_schemas.kafka.permissions import Operation, on_group
from forebay_worker.cluster import startup as module
from forebay_worker.cluster.startup import Cluster


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(module, "make_admin", lambda *_, **__: None)
    monkeypatch.setattr(module, "ask_metadata", lambda *_, **__: None)
    monkeypatch.setattr(module, "denied_groups", lambda *_, **__: set())
    monkeypatch.setattr(module, "require_topics", lambda *_, **__: {"a-topic": 3})
    monkeypatch.setattr(offsets_retention, "ask_retention_minutes", lambda *_, **__: None)
    return Cluster(KafkaConnection(bootstrap_servers="127.0.0.1:1", properties={}), pool=Pool("p"), worker_id="w")


def test_a_worker_starts_although_a_coordinator_is_away_and_nobody_says_what_is_allowed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: Any, **__: Any) -> Any:
        raise KafkaException(KafkaError(KafkaError.NOT_COORDINATOR))

    monkeypatch.setattr(module, "missing_of_topics", missing)
    assert cluster.require_usable() == {"a-topic": 3}


def test_a_worker_does_not_start_without_a_permission(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "missing_of_topics", lambda *_, **__: [on_group(Operation.READ, "forebay.p.high")])
    with pytest.raises(DeniedError, match=r"forebay\.p\.high"):
        cluster.require_usable()


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (10_080, []),
        (1_440, ["offsets.retention.minutes is 1440"]),
        (None, []),
        (KafkaException(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED)), []),
    ],
)
def test_commits_that_are_deleted_before_requests_are_warned_of_at_the_start(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, told: Any, words: list[str]
) -> None:
    def ask(*_: Any, **__: Any) -> int | None:
        if isinstance(told, Exception):
            raise told
        return told  # type: ignore[no-any-return]

    monkeypatch.setattr(module, "missing_of_topics", lambda *_, **__: [])
    monkeypatch.setattr(offsets_retention, "ask_retention_minutes", ask)
    with capture_logs() as logs:
        assert cluster.require_usable() == {"a-topic": 3}
    assert [event["problem"].split(":")[0] for event in logs] == words
    assert all("10080" in event["fix"] for event in logs)
