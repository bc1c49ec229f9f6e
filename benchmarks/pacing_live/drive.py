"""Sends requests when they are due, gathers their results, and looks at engine and workers meanwhile.

`Drive.run` runs on one asyncio event loop, speaks Kafka and HTTP, and uses the machine's clocks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from confluent_kafka import KafkaError, Message, Producer
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.pacing.workloads import Arrival
from forebay_sandbox.demo.results import ResultsReader
from forebay_sandbox.kafka.access import KafkaAccess
from forebay_schemas.clock import SystemClock
from forebay_schemas.contract.envelope import JsonCodec
from forebay_schemas.contract.results import Result
from forebay_schemas.contract.tiers import TIERS
from forebay_schemas.contract.topics import REQUEST_BYTES_MAX, Pool
from forebay_schemas.kafka.clients import create_client
from forebay_schemas.kafka.configs import producer_config

LEAD_SECONDS = 2.0
LOOK_SECONDS = 0.5
LOOK_SECONDS_MAX = 2.0
POLL_SECONDS = 0.01
STALLED_SECONDS_MAX = 30.0
"""Open requests are lost when nothing has ended for this time after the last request was sent."""

BYTES_PER_TOKEN = 4
_ENGINE_COUNTERS = ("sandbox:busy_seconds_total", "vllm:prompt_tokens_total", "vllm:generation_tokens_total")


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Engine and workers at a moment. ``engine``: its counters, None while it does not answer."""

    at_seconds: float
    waiting: int
    """Accepted and not started: in Kafka or in the workers."""
    running: int
    limits: tuple[int, ...]
    limited_by: tuple[str | None, ...]
    engine: tuple[float, float, float] | None
    """Seconds of steps, prompt tokens and output tokens, since the engine's start."""


@dataclass(slots=True, kw_only=True)
class Record:
    """Observations of a run, by number of the arrival. Seconds count from the run's start."""

    offered: Sequence[Arrival]
    accepted: dict[int, float] = field(default_factory=dict)
    results: dict[int, Result] = field(default_factory=dict)
    """The first of each."""
    finished_seconds: dict[int, float] = field(default_factory=dict)
    looks: list[Look] = field(default_factory=list)
    second_results: int = 0


@dataclass(frozen=True, slots=True)
class Act:
    """Something done to the engine at a moment; ``do`` may block."""

    at_seconds: float
    do: Callable[[], None]


class Drive:
    """One run."""

    def __init__(
        self,
        *,
        kafka: KafkaAccess,
        pool: Pool,
        offered: Sequence[Arrival],
        engine_url: str,
        worker_urls: Sequence[str],
        acts: Sequence[Act],
        say: Callable[[str], None],
    ) -> None:
        self._kafka = kafka
        self._pool = pool
        self._engine_url = engine_url
        self._worker_urls = worker_urls
        self._acts = acts
        self._say = say
        self._record = Record(offered=offered)
        clock = SystemClock()
        self._monotonic = clock.monotonic
        self._started = clock.monotonic() + LEAD_SECONDS
        self._started_ms = clock.wall_ms() + round(1000 * LEAD_SECONDS)
        self._ended_at = 0.0

    async def run(self) -> Record:
        """Returns when each request has ended, or nothing has for `STALLED_SECONDS_MAX`."""
        loop = asyncio.get_running_loop()
        connection = self._kafka.connection
        producer = create_client(
            Producer, producer_config(connection, client_id="forebay-bench", record_bytes_max=REQUEST_BYTES_MAX)
        )
        patience = aiohttp.ClientTimeout(total=LOOK_SECONDS_MAX)

        def take(results: list[Result]) -> None:
            loop.call_soon_threadsafe(self._take, results)

        with ResultsReader(connection, topic=self._pool.results, take=take):
            async with aiohttp.ClientSession(timeout=patience) as session, asyncio.TaskGroup() as tasks:
                background = [
                    tasks.create_task(self._serve_callbacks(producer)),
                    tasks.create_task(self._keep_looking(session)),
                    tasks.create_task(self._act()),
                ]
                await self._send(producer)
                await self._wait_for_results(producer)
                for task in background:
                    task.cancel()
        return self._record

    def _now(self) -> float:
        return self._monotonic() - self._started

    async def _send(self, producer: Producer) -> None:
        codec = JsonCodec()
        for number, arrival in enumerate(self._record.offered):
            await asyncio.sleep(arrival.at_seconds - self._now())
            fields = {
                "request_id": str(number),
                "biz_type": "chat_completion",
                "priority": arrival.tier,
                "ttl_ms": round(1000 * (arrival.deadline_seconds - arrival.at_seconds)),
                "payload": _payload(arrival),
            }
            producer.produce(
                self._pool.requests(arrival.tier),
                key=str(number),
                value=codec.encode(fields),
                on_delivery=self._delivered(number),
            )

    def _delivered(self, number: int) -> Callable[[KafkaError | None, Message], None]:
        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is None:
                self._record.accepted[number] = self._now()

        return delivered

    def _take(self, results: list[Result]) -> None:
        record = self._record
        for result in results:
            number = int(result.request_id)
            if number in record.results:
                record.second_results += 1
                continue
            record.results[number] = result
            record.finished_seconds[number] = (result.finished_at - self._started_ms) / 1000
        self._ended_at = self._now()

    async def _wait_for_results(self, producer: Producer) -> None:
        sent_at = self._now()
        record = self._record
        while len(producer) or len(record.results) < len(record.accepted):
            if self._now() - max(sent_at, self._ended_at) > STALLED_SECONDS_MAX:
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _serve_callbacks(self, producer: Producer) -> None:
        while True:
            producer.poll(0)
            await asyncio.sleep(POLL_SECONDS)

    async def _act(self) -> None:
        for act in self._acts:
            await asyncio.sleep(act.at_seconds - self._now())
            await asyncio.to_thread(act.do)

    async def _keep_looking(self, session: aiohttp.ClientSession) -> None:
        due, say_at = 0.0, 0.0
        while True:
            due += LOOK_SECONDS
            await asyncio.sleep(due - self._now())
            statuses = await asyncio.gather(*(_get_json(session, f"{url}/status") for url in self._worker_urls))
            engine = await self._engine_counters(session)
            open_requests = len(self._record.accepted) - len(self._record.results)
            known = [status for status in statuses if status is not None]
            running = sum(status["in_flight_requests"] for status in known)
            limited = tuple((status["limited_by"] or {}).get("signal") for status in known)
            look = Look(
                at_seconds=self._now(),
                waiting=max(0, open_requests - running),
                running=running,
                limits=tuple(status["limit_requests"] for status in known),
                limited_by=limited,
                engine=engine,
            )
            self._record.looks.append(look)
            if look.at_seconds >= say_at:
                say_at = look.at_seconds + 10.0
                by_tier = {tier.value: sum(s["tiers"][tier]["waiting"] for s in known) for tier in TIERS}
                self._say(
                    f"{look.at_seconds:4.0f} s  limits {look.limits} running {running} waiting {look.waiting} "
                    f"(in the lanes {by_tier}) limited by {limited}"
                )

    async def _engine_counters(self, session: aiohttp.ClientSession) -> tuple[float, float, float] | None:
        try:
            async with session.get(f"{self._engine_url}/metrics") as response:
                text = await response.text()
        except (aiohttp.ClientError, TimeoutError):
            return None
        values = {
            sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples
        }
        busy, prompt, output = (values[name] for name in _ENGINE_COUNTERS)
        return busy, prompt, output


async def _get_json(session: aiohttp.ClientSession, url: str) -> dict[str, Any] | None:
    try:
        async with session.get(url) as response:
            found: dict[str, Any] = await response.json()
            return found
    except (aiohttp.ClientError, TimeoutError):
        return None


def _payload(arrival: Arrival) -> dict[str, Any]:
    """A payload of the length that its tokens make. The engine's part lies in a field that the worker ignores."""
    return {
        "model": "qwen2.5-72b",
        "messages": [{"role": "user", "content": "x" * (BYTES_PER_TOKEN * arrival.prompt_tokens)}],
        "max_tokens": arrival.hint_max_tokens,
        "forebay_sandbox": {"prompt_tokens": arrival.prompt_tokens, "output_tokens": arrival.output_tokens},
    }
