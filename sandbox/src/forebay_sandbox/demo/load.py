"""The demo's load: the pulse through Forebay and, at the same times, directly to an identical engine.

`Traffic.run` runs on one asyncio event loop, talks to Kafka and HTTP, and uses the machine's clocks.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import aiohttp
from confluent_kafka import KafkaError, Message, Producer

from forebay_sandbox.demo.direct import call_directly, direct_session
from forebay_sandbox.demo.ledger import DirectCall, DirectOutcome, Ledger, Passage
from forebay_sandbox.demo.results import ResultsReader
from forebay_sandbox.demo.samples import NOTHING_YET, Sample, Sampler
from forebay_sandbox.demo.traffic import Arrival, Pulse
from forebay_sandbox.demo.view import Board
from forebay_sandbox.stack.stack import MODEL, Stack
from forebay_schemas.clock import Clock
from forebay_schemas.contract.envelope import JsonCodec
from forebay_schemas.contract.reasons import Status
from forebay_schemas.contract.results import Result
from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_schemas.contract.topics import REQUEST_BYTES_MAX, Pool
from forebay_schemas.kafka.clients import create_client
from forebay_schemas.kafka.configs import producer_config

LEAD_SECONDS: Final = 1.5
"""Time from the creation of the clients to the first request: a new broker takes a second to assign producer ids."""

STALLED_SECONDS_MAX: Final = 30.0
"""Time without an outcome after the last send: open requests are then lost."""

_POLL_SECONDS: Final = 0.01
_SHOW_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficRecord:
    """The results of all requests."""

    ids: set[str]
    """Of the accepted ones."""
    passages: list[Passage]
    direct: list[DirectCall]
    samples: list[Sample]
    refused_by_broker: list[str]
    """The errors of requests that the broker refused."""


class Traffic:
    """One run of the traffic: each request is sent both ways when due. ``show`` is called twice a second."""

    def __init__(
        self,
        *,
        stack: Stack,
        direct_url: str,
        pulse: Pulse,
        arrivals: Sequence[Arrival],
        clock: Clock,
        show: Callable[[Board], None],
    ) -> None:
        self._stack = stack
        self._direct_url = direct_url
        self._pulse = pulse
        self._arrivals = arrivals
        self._clock = clock
        self._show = show
        self._pool = Pool(stack.pool)
        self._codec = JsonCodec()
        self._started = clock.monotonic() + LEAD_SECONDS
        self._ledger = Ledger(started_wall_ms=clock.wall_ms() + round(LEAD_SECONDS * 1000))
        self._direct: list[DirectCall] = []
        self._refused: list[str] = []
        self._last_outcome_seconds = 0.0
        self._samples = [NOTHING_YET]

    async def run(self) -> TrafficRecord:
        """Returns when each request has ended, or none has ended for `STALLED_SECONDS_MAX`."""
        loop = asyncio.get_running_loop()
        connection = self._stack.kafka.connection
        config = producer_config(connection, client_id="forebay-demo", record_bytes_max=REQUEST_BYTES_MAX)
        producer = create_client(Producer, config)

        def take(results: list[Result]) -> None:
            loop.call_soon_threadsafe(self._end, results, self._now())

        with ResultsReader(connection, topic=self._pool.results, take=take):
            async with direct_session() as session, asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(self._send(producer, session))
                background = [
                    tasks.create_task(self._serve_callbacks(producer)),
                    tasks.create_task(self._keep_showing()),
                    tasks.create_task(self._keep_sampling(session)),
                ]
                calls = await sending
                await self._wait_for_outcomes(producer)
                await asyncio.gather(*calls)
                for task in background:
                    task.cancel()
        self._show(self._board())
        return TrafficRecord(
            ids=self._ledger.ids(),
            passages=self._ledger.passages(),
            direct=self._direct,
            samples=self._samples,
            refused_by_broker=self._refused,
        )

    def _now(self) -> float:
        """Seconds since the traffic's start."""
        return self._clock.monotonic() - self._started

    async def _send(self, producer: Producer, session: aiohttp.ClientSession) -> list[asyncio.Task[None]]:
        calls = []
        for arrival in self._arrivals:
            await asyncio.sleep(arrival.at_seconds - self._now())
            self._submit(producer, arrival)
            calls.append(asyncio.create_task(self._call_directly(session, arrival)))
        return calls

    def _submit(self, producer: Producer, arrival: Arrival) -> None:
        request_id = str(uuid.uuid4())
        fields = {
            "request_id": request_id,
            "biz_type": "chat_completion",
            "priority": arrival.tier,
            "ttl_ms": arrival.ttl_ms,
            "payload": arrival.payload(model=MODEL),
        }

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is None:
                self._ledger.accept(request_id, arrival, at_seconds=self._now())
            else:
                self._refused.append(error.str())

        producer.produce(
            self._pool.requests(arrival.tier),
            key=request_id,
            value=self._codec.encode(fields),
            on_delivery=delivered,
        )

    async def _call_directly(self, session: aiohttp.ClientSession, arrival: Arrival) -> None:
        call = await call_directly(session, arrival, base_url=self._direct_url, model=MODEL, now=self._now)
        self._direct.append(call)

    def _end(self, results: list[Result], at_seconds: float) -> None:
        for result in results:
            self._ledger.end(result, at_seconds=at_seconds)
        self._last_outcome_seconds = at_seconds

    async def _wait_for_outcomes(self, producer: Producer) -> None:
        sent_seconds = self._now()
        while True:
            if not len(producer) and not self._ledger.open_in_all():
                return
            if self._now() - max(sent_seconds, self._last_outcome_seconds) > STALLED_SECONDS_MAX:
                return
            await asyncio.sleep(_POLL_SECONDS)

    async def _serve_callbacks(self, producer: Producer) -> None:
        while True:
            producer.poll(0)
            await asyncio.sleep(_POLL_SECONDS)

    async def _keep_showing(self) -> None:
        while True:
            self._show(self._board())
            await asyncio.sleep(_SHOW_SECONDS)

    async def _keep_sampling(self, session: aiohttp.ClientSession) -> None:
        worker_urls = [worker.url for worker in self._stack.workers]
        sampler = Sampler(session, worker_urls=worker_urls, engine_url=self._stack.engines[0].url, now=self._now)
        while True:
            self._samples.append(await sampler.ask())
            await asyncio.sleep(_SHOW_SECONDS)

    def _board(self) -> Board:
        now, sample = max(0.0, self._now()), self._samples[-1]
        outcomes = [call.outcome for call in self._direct]
        answered = outcomes.count(DirectOutcome.COMPLETED)
        phase = f"{self._pulse.rate_at(now):g} requests/s" if now < self._pulse.total_seconds else "all sent, draining"
        return Board(
            at_seconds=now,
            title=f"Forebay demo of {self._pulse.total_seconds:.0f} s, {phase}",
            rows={tier: self._cells(tier, sample) for tier in TIERS},
            notes=(
                f"the workers allow {sample.limit_requests} in flight; engine busy {sample.engine_busy_share:.0%}",
                f"the same requests straight at an engine: {answered} answered, "
                f"{len(outcomes) - answered} refused or timed out",
            ),
        )

    def _cells(self, tier: Tier, sample: Sample) -> dict[str, int]:
        ledger = self._ledger
        # The workers were asked up to half a second ago; requests that ended since are not in flight any more.
        in_flight = min(sample.in_flight[tier], ledger.open(tier))
        ended = {status: ledger.ended(tier, status) for status in Status}
        return {
            "arrived": ledger.accepted(tier),
            "backlog": ledger.open(tier) - in_flight,
            "in flight": in_flight,
            "completed": ended[Status.COMPLETED],
            "expired": ended[Status.EXPIRED],
            "failed": sum(ended.values()) - ended[Status.COMPLETED] - ended[Status.EXPIRED],
        }
