"""What a worker makes of a cluster's answers before it begins. No broker: the questions are answered by hand."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from forebay_schemas.contract.topics import Pool
from forebay_schemas.errors import DeniedError
from forebay_schemas.kafka.connection import KafkaConnection
from forebay_schemas.kafka.permissions import Operation, on_group
from forebay_worker.cluster import startup as module
from forebay_worker.cluster.startup import Cluster


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(module, "make_admin", lambda *_, **__: None)
    monkeypatch.setattr(module, "ask_metadata", lambda *_, **__: None)
    monkeypatch.setattr(module, "require_topics", lambda *_, **__: {"a-topic": 3})
    return Cluster(KafkaConnection(bootstrap_servers="127.0.0.1:1", properties={}), pool=Pool("p"), worker_id="w")


def test_a_worker_starts_although_a_coordinator_is_away_and_nobody_says_what_is_allowed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: Any, **__: Any) -> Any:
        raise KafkaException(KafkaError(KafkaError.NOT_COORDINATOR))

    monkeypatch.setattr(module, "missing", missing)
    assert cluster.require_usable() == {"a-topic": 3}


def test_a_worker_does_not_start_without_a_permission(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "missing", lambda *_, **__: [on_group(Operation.READ, "forebay.p.high")])
    with pytest.raises(DeniedError, match=r"forebay\.p\.high"):
        cluster.require_usable()
