"""Records that are made to harm, on each topic that a worker reads: it answers or keeps each, lives, and serves the
others."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

from forebay_schemas.contract.headers import record_headers
from forebay_schemas.contract.reasons import Status
from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_schemas.contract.topics import RETRY_DELAYS_SECONDS
from harness.hostile_records import CONTROL, COORDINATION, HEADERS, MIB, REFUSED, RETRIED, RUN, Headers, text
from harness.live_pool import LOG, LivePool, envelope
from harness.waiting import wait_until

if TYPE_CHECKING:
    from confluent_kafka import Message

    from forebay_sandbox.engine.process import EngineProcess
    from harness.worker_process import WorkerProcess
    from harness.workers import NewWorker


class Stranger:
    """Writes to any topic of a pool."""

    def __init__(self, pool: LivePool) -> None:
        self._producer = Producer(
            {"bootstrap.servers": pool.kafka.bootstrap_servers, "message.max.bytes": 9 * MIB, "logger": LOG}
        )
        self._errors: list[str] = []

    def write(self, topic: str, *values: bytes | None, key: bytes | None = b"k", headers: Headers = ()) -> None:
        for value in values:
            self._producer.produce(topic, value, key, headers=list(headers), on_delivery=self._delivered)
        assert self._producer.flush(30) == 0
        assert self._errors == []

    def _delivered(self, error: Any, _message: Any) -> None:
        if error is not None:
            self._errors.append(str(error))


def memory_mib(worker: WorkerProcess) -> float:
    """The most that its process ever held."""
    status = Path(f"/proc/{worker.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def reason_of(letter: Message) -> str:
    return (dict(record_headers(letter))["forebay-reason"] or b"").decode()


def test_hostile_records_harm_nobody(pool: LivePool, new_worker: NewWorker, engine: EngineProcess) -> None:
    stranger = Stranger(pool)
    high, mid, low = (pool.topics.requests(tier) for tier in TIERS)
    innocents = [pool.submit(tier, *(envelope(f"{tier}-{number}") for number in range(4))) for tier in TIERS]
    for number, headers in enumerate(HEADERS.values()):
        stranger.write(high, text(f"header-{number}"), headers=headers, key=b"\xff" * 10_000)
    stranger.write(mid, *RUN.values())
    stranger.write(low, *REFUSED.values())
    stranger.write(pool.topics.retry(Tier.LOW, RETRY_DELAYS_SECONDS[0]), RETRIED)
    stranger.write(pool.topics.control, *CONTROL)
    stranger.write(pool.topics.coordination, *(value and value.replace(b"@", low.encode()) for value in COORDINATION))
    innocents += [pool.submit(tier, *(envelope(f"{tier}-behind-{number}") for number in range(4))) for tier in TIERS]
    worker = new_worker(pool, backend_url=engine.url)
    wanted = {*itertools.chain(*innocents), *RUN, *(f"header-{number}" for number in range(len(HEADERS)))}
    results = pool.results(wanted)
    odd = {request_id[:40]: (result.status, result.error) for request_id, result in results.items()}
    assert {status for status, _ in odd.values()} == {Status.COMPLETED}, odd
    letters = pool.dead_letters(len(REFUSED) + 1)
    assert sorted(letter.value() or b"" for letter in letters) == sorted([*REFUSED.values(), RETRIED])
    assert {reason_of(letter) for letter in letters} == {"undecodable"}
    assert worker.get("/livez")[0] == 200
    assert worker.get("/readyz")[0] == 200
    wait_until("nothing in flight", lambda: worker.status()["in_flight_requests"] == 0 or None)
    assert pool.ended() >= wanted
    assert {request_id: len(pool.all_results(request_id)) for request_id in wanted} == dict.fromkeys(wanted, 1)
    assert memory_mib(worker) < 400
