"""`forebay cancel` and `forebay expedite`: what they write down, and what they say when nobody is there to do it."""

from __future__ import annotations

import json

import pytest

from forebay_producer import ControlAction, Producer
from forebay_schemas.contract.control import Control, decode_control
from forebay_schemas.contract.tiers import Tier
from harness.producer_pool import ProducerPool

REQUEST = {"biz_type": "chat_completion", "priority": "low", "payload": {"model": "m", "messages": []}}


def controls(pool: ProducerPool) -> list[tuple[bytes | None, Control | None]]:
    return [(one.key(), decode_control(one.value())) for one in pool.kafka.read_all(pool.topics.control)]


def test_without_a_worker_a_cancel_is_written_down_and_said_to_be_open(producer_pool: ProducerPool) -> None:
    submitted = producer_pool.forebay.run("submit", "-", stdin=json.dumps(REQUEST | {"request_id": "r-1"}).encode())
    done = producer_pool.forebay.run("cancel", "-", "--wait", "300ms", stdin=submitted.out.encode())
    assert done.code == 1
    assert "unheard: recorded, but no worker has answered" in done.err
    ((key, control),) = controls(producer_pool)
    assert key == b"cancel:r-1"
    assert control is not None
    assert control.place == (producer_pool.topics.requests(Tier.LOW), submitted.records[0]["partition"], 0)
    assert (control.action, control.request_id) == (ControlAction.CANCEL, "r-1")
    assert "@" in control.by


def test_without_waiting_it_is_done_when_it_is_written_down(producer_pool: ProducerPool) -> None:
    done = producer_pool.forebay.run("expedite", "a", "b", "--wait", "0", "--output", "json")
    assert done.code == 0
    assert [one["request_id"] for one in done.records] == ["a", "b"]
    assert [key for key, _ in controls(producer_pool)] == [b"expedite:a", b"expedite:b"]
    with Producer(bootstrap_servers=producer_pool.kafka.bootstrap_servers, pool=producer_pool.name) as producer:
        handle = producer.submit(REQUEST)
        assert handle.expedite(wait_seconds=0).outcome is None
    _, control = controls(producer_pool)[2]
    assert control is not None
    assert control.place == (handle.topic, handle.partition, handle.offset)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a", "--at", "here"), "error: --at: is 'here'; give TOPIC:PARTITION:OFFSET"),
        (("a", "b", "--at", "t:0:0"), "error: --at: came with 2 ids; give one id"),
        (("a", "--at", "t:0:0"), "error: place: of a is in t, which takes no requests of pool"),
        (("-",), "error: ID: is none; give request ids"),
        (("a", "--wait", "soon"), "error: --wait: is 'soon'; give seconds"),
    ],
)
def test_bad_options_are_named(producer_pool: ProducerPool, arguments: tuple[str, ...], message: str) -> None:
    done = producer_pool.forebay.run("cancel", *arguments, stdin=b"")
    assert message in done.err
    assert done.code == 2
