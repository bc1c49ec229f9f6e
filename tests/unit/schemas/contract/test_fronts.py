"""A front's topics. Pure."""

from __future__ import annotations

import pytest

from forebay_schemas.contract.fronts import Front
from forebay_schemas.errors import UsageError


def test_a_front_has_a_compacted_topic_of_one_partition_on_the_brokers_time() -> None:
    [spec] = Front("web").specs(replication=3)
    assert (spec.name, spec.partitions, spec.replication) == ("forebay-front.web.presence", 1, 3)
    assert spec.config["cleanup.policy"] == "compact,delete"
    assert spec.config["message.timestamp.type"] == "LogAppendTime"
    assert spec.config["min.insync.replicas"] == "2"
    assert len(Front("x" * 100).presence) <= 249


@pytest.mark.parametrize("name", ["", "a.b", "a b", "ü", "x" * 101, "x\n"])
def test_a_name_that_is_none_is_refused_with_what_may_be_in_one(name: str) -> None:
    with pytest.raises(UsageError, match=r"^front: .* is no name of a front; use 1 to 100 letters") as caught:
        Front(name)
    assert len(str(caught.value)) < 250


def test_a_number_of_replicas_that_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^replication: is 0"):
        Front("web").specs(replication=0)
