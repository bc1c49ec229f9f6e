"""Duration and words of calls while no broker answers. They go to a port at which nobody listens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import forebay_producer
from forebay_producer import (
    AsyncProducer,
    BrokerUnreachableError,
    ControlAction,
    Handle,
    Producer,
    ProducerSettings,
    Request,
    UsageError,
)
from forebay_producer.client.prepare import prepare
from forebay_schemas.contract.envelope import JsonCodec
from forebay_schemas.contract.tiers import Tier
from harness.waiting import wait_until

NOBODY = "127.0.0.1:1"
REQUEST = {"biz_type": "x", "payload": {}}
SLACK_SECONDS = 4.0
"""Extra time for a busy machine."""


@contextmanager
def takes(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert seconds - 0.05 <= time.monotonic() - began <= seconds + SLACK_SECONDS


def client(*, delivery_timeout_seconds: float = 30.0) -> Producer:
    settings = ProducerSettings(bootstrap_servers=NOBODY, pool="p", delivery_timeout_seconds=delivery_timeout_seconds)
    return Producer(settings=settings)


def handle(producer: Producer, request_id: str = "r") -> Handle:
    return Handle(
        request_id=request_id, topic="t", partition=0, offset=0, enqueued_at=1_900_000_000_000, producer=producer
    )


@pytest.mark.parametrize(
    "call",
    [
        lambda producer: producer.submit(REQUEST, timeout_seconds=1.0),
        lambda producer: producer.outcome(handle(producer), timeout_seconds=1.0),
        lambda producer: handle(producer).outcome(timeout_seconds=1.0),
        lambda producer: list(producer.outcomes([handle(producer)], timeout_seconds=1.0)),
    ],
    ids=["submit", "outcome", "a handle's outcome", "outcomes"],
)
def test_a_timeout_that_is_given_holds_while_no_broker_answers_and_the_refusal_is_named(
    call: Callable[[Producer], object],
) -> None:
    with client() as producer, takes(1.0), pytest.raises(BrokerUnreachableError, match="connection refused"):
        call(producer)


def test_a_delivery_timeout_of_less_than_ten_seconds_holds_and_who_has_less_time_ends_nobody_elses_wait() -> None:
    with client(delivery_timeout_seconds=2.0) as producer, ThreadPoolExecutor(20) as threads:

        def submit(timeout_seconds: float | None) -> float:
            began = time.monotonic()
            with pytest.raises(BrokerUnreachableError):
                producer.submit(REQUEST, timeout_seconds=timeout_seconds)
            return time.monotonic() - began

        hasty = threads.submit(submit, 0.3)
        others = [threads.submit(submit, None) for _ in range(19)]
        assert hasty.result() < 0.3 + SLACK_SECONDS
        took = [other.result() for other in others]
        assert max(took) < 2.0 + SLACK_SECONDS
        assert max(took) > 1.9, "they share a question, but not that of who was in a hurry"


def test_cancelling_gives_up_after_the_delivery_timeout() -> None:
    with client(delivery_timeout_seconds=1.0) as producer, takes(1.0), pytest.raises(BrokerUnreachableError):
        producer.cancel("r")


def test_closing_takes_no_longer_than_it_may_and_names_what_was_not_acknowledged() -> None:
    producer = client()
    codecs = dict.fromkeys(Tier, JsonCodec())
    # As it is when the brokers go away after the first submit.
    prepared = prepare(
        {**REQUEST, "request_id": "left behind"}, tier=None, traceparent=None, codecs=codecs, now_ms=1_900_000_000_000
    )
    producer._core.single.send(prepared)
    with takes(0.5):
        assert producer.close(timeout_seconds=0.5) == ["left behind"]


@pytest.mark.parametrize("request_id", ["", "a\nb", "a" * 201])
def test_what_is_no_request_id_is_refused_before_anything_is_asked_for(request_id: str) -> None:
    with client() as producer:
        with pytest.raises(UsageError, match=r"^request_id: is .*printable characters"):
            producer.cancel(request_id)
        with pytest.raises(UsageError, match=r"^request_id: "), takes(0.0):
            producer.control_batch(ControlAction.CANCEL, ["good", request_id])


def test_a_setting_that_was_typed_in_python_is_named_as_it_was_typed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^bootstrap_servers: is 'localhost'"):
        Producer(bootstrap_servers="localhost")
    with pytest.raises(UsageError, match=r"^pool: "):
        Producer(bootstrap_servers=NOBODY, pool="a b")
    with pytest.raises(UsageError, match=r"^kafka_properties"):
        Producer(bootstrap_servers=NOBODY, kafka_properties=tmp_path / "none")


def test_a_request_takes_its_payload_as_a_mapping() -> None:
    request = Request(request_id="r", biz_type="x", payload={"model": "m"})
    assert bytes(request.payload) == b'{"model":"m"}'
    wrong: Any
    for wrong in ([], "{}", {"model": object()}):
        with pytest.raises(ValueError, match=r"^payload "):
            Request(request_id="r", biz_type="x", payload=wrong)


def test_the_library_says_which_version_it_is() -> None:
    assert forebay_producer.__version__.count(".") == 2


@pytest.mark.parametrize("wrong", ["", "a\nb", "x" * 201, 5, None])
def test_what_is_no_request_id_is_refused_before_the_brokers_are_asked(wrong: Any) -> None:
    with Producer(bootstrap_servers=NOBODY) as producer, takes(0):
        for call in (
            lambda: producer.cancel(wrong),
            lambda: producer.expedite(wrong),
            lambda: producer.control_batch(ControlAction.CANCEL, ["good-1", wrong]),
            lambda: producer.outcome(wrong, timeout_seconds=5, since_ms=0),
            lambda: producer.outcomes([wrong], timeout_seconds=5, since_ms=0),
        ):
            with pytest.raises(UsageError, match=r"^request_id: is .*; give 1 to 200 printable characters"):
                call()


def test_a_task_that_is_cancelled_while_no_broker_answers_is_cancelled() -> None:
    async def main() -> None:
        settings = ProducerSettings(bootstrap_servers=NOBODY, pool="p")
        async with AsyncProducer(settings=settings) as producer:
            wait = asyncio.create_task(producer.outcome("r", timeout_seconds=60, since_ms=0))
            await asyncio.to_thread(wait_until, "a broker that refuses", lambda: producer._core.watch._trouble)
            wait.cancel()
            with pytest.raises(asyncio.CancelledError):
                await wait
            with takes(1.0), pytest.raises(BrokerUnreachableError):
                [one async for one in producer.outcomes(["r", "s"], timeout_seconds=1.0, since_ms=0)]

    asyncio.run(main())
