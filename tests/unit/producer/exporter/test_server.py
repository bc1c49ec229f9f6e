"""The exporter whatever its readings do: a pool's trouble stays in that pool, and nothing old passes for new."""

from __future__ import annotations

import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from structlog.testing import capture_logs

from forebay_producer.cluster.backlog import PartitionState
from forebay_producer.exporter import exporter as exporter_module
from forebay_producer.exporter.exporter import OLD_SECONDS, STUCK_SECONDS, Exporter
from forebay_producer.exporter.figures import Age, TierReading
from forebay_producer.exporter.server import ExporterServer
from forebay_schemas.contract.coordination import GONE_SECONDS, Capacity
from forebay_schemas.contract.tiers import DEFAULT_TIER_TIMES, TIERS
from forebay_schemas.contract.topics import Pool
from forebay_schemas.errors import UsageError
from forebay_schemas.kafka.connection import KafkaConnection
from simulated.ports import ManualClock

GOOD, BAD = Pool("good"), Pool("bad")
READING = TierReading(
    requests=(PartitionState(first=0, end=3, committed=0, finished_beyond=0, running=0),),
    retries=(),
    ages=(Age(seconds=1.0, lived_seconds=1.0, ttl_seconds=None),),
)


class Followed:
    """An `AnnouncementReader`; ``failing``: raised by the next poll."""

    def __init__(self) -> None:
        self.failing: Exception | None = None
        self.polls = 0

    def poll(self, seconds: float) -> None:
        self.polls += 1
        time.sleep(min(seconds, 0.001))
        if self.failing is not None:
            raise self.failing

    def workers(self, pool: Pool) -> list[Capacity]:
        if pool == BAD:
            raise OverflowError("int too large to convert to float")
        return []

    def listened_seconds(self, _pool: Pool) -> float:
        return GONE_SECONDS

    def start_over(self, pool: Pool) -> None:
        """Nothing to forget."""


class NoBrokers:
    """`Brokers` without any."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.followed = Followed()

    def close(self) -> None:
        """Nothing is open."""


class Reader:
    """A `PoolReader`."""

    def __init__(self, _brokers: NoBrokers, *, pool: Pool) -> None:
        self.pool = pool

    def read(self) -> tuple[Any, int]:
        return dict.fromkeys(TIERS, READING), 0

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture(autouse=True)
def _no_brokers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(exporter_module, "Brokers", NoBrokers)
    monkeypatch.setattr(exporter_module, "PoolReader", Reader)
    with capture_logs():
        yield


def make(clock: ManualClock, *pools: Pool) -> Exporter:
    return Exporter(
        KafkaConnection(bootstrap_servers="127.0.0.1:1", properties={}),
        pools=dict.fromkeys(pools, DEFAULT_TIER_TIMES),
        clock=clock,
    )


def page(server: ExporterServer, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def served(exporter: Exporter, clock: ManualClock) -> ExporterServer:
    server = ExporterServer(exporter, clock=clock, host="127.0.0.1", port=0)
    server.start()
    return server


def test_one_pools_trouble_stays_in_that_pool() -> None:
    exporter = make(ManualClock(), BAD, GOOD)
    exporter._refresh()
    assert exporter.not_ready() == [
        "pool bad: reading failed: OverflowError('int too large to convert to float')",
    ]
    assert exporter.states()["good"].figures is not None


def test_a_reading_that_is_old_is_not_up_whatever_became_of_its_thread() -> None:
    clock = ManualClock()
    exporter = make(clock, GOOD)
    exporter._refresh()
    server = served(exporter, clock)
    try:
        clock.advance(OLD_SECONDS)
        assert page(server, "/readyz") == (200, "ok\n")
        assert 'forebay_exporter_up{pool="good"} 1.0' in page(server, "/metrics")[1]
        clock.advance(1.0)
        assert page(server, "/readyz") == (
            503,
            "pool good: was last read 31 s ago; the reading has ended or is stuck\n",
        )
        assert 'forebay_exporter_up{pool="good"} 0.0' in page(server, "/metrics")[1]
        assert page(server, "/livez") == (200, "ok\n")
        clock.advance(STUCK_SECONDS)
        assert page(server, "/livez")[0] == 503
        exporter._refresh()
        assert page(server, "/readyz") == (200, "ok\n")
    finally:
        server.stop()


def test_a_record_that_breaks_the_listening_ends_nothing() -> None:
    exporter = make(ManualClock(), GOOD)
    followed = exporter._brokers.followed
    assert isinstance(followed, Followed)
    followed.failing = OverflowError("whatever")
    for _ in range(3):
        exporter._listen()
    assert followed.polls == 3


def test_a_page_that_fails_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    exporter = make(clock, GOOD)

    def fail() -> list[str]:
        raise OverflowError("too large")

    monkeypatch.setattr(exporter, "not_ready", fail)
    server = served(exporter, clock)
    try:
        assert page(server, "/readyz") == (500, "OverflowError('too large')\n")
    finally:
        server.stop()


@pytest.mark.parametrize(("host", "setting"), [("192.0.2.1", "HOST"), ("::1", "HOST"), ("127.0.0.1", "PORT")])
def test_what_keeps_it_from_listening_is_named(host: str, setting: str) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        clock = ManualClock()
        with pytest.raises(UsageError, match=f"FOREBAY_EXPORTER_{setting}"):
            ExporterServer(make(clock, GOOD), clock=clock, host=host, port=taken.getsockname()[1])
