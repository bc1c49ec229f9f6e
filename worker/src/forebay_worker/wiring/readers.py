"""All that reads Kafka on threads of its own: the intakes, the fetcher, the look through results, the follower of
coordination and control. Made here, started by lifecycle once the brokers are known to be usable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Protocol

from forebay_schemas.clock import MakeEvent
from forebay_schemas.contract.tiers import Tier, TierTimes
from forebay_schemas.contract.topics import RETRY_DELAYS_SECONDS, Pool
from forebay_schemas.formats.envelope_reader import EnvelopeReader
from forebay_schemas.formats.schema_fetcher import SchemaFetcher
from forebay_worker.bounds import Bounds
from forebay_worker.cluster.broker_clock import BrokerClock
from forebay_worker.cluster.startup import Cluster
from forebay_worker.cluster.topic_watch import TopicWatch
from forebay_worker.coordination.follower import Coordination
from forebay_worker.dispatch.dispatcher import Dispatcher
from forebay_worker.intake.fetcher import Fetcher
from forebay_worker.intake.intake import Intake
from forebay_worker.intake.results_reader import ResultsReader
from forebay_worker.outcome.announcer import Announcer
from forebay_worker.partition.sources import Source
from forebay_worker.wiring.clients import Clients
from forebay_worker.wiring.exchange import Exchange

RETRY_INTAKE = "retry"


class Loop(Protocol):
    """What a thread runs: ``step`` again and again, and ``close`` at the end."""

    def step(self) -> None: ...
    def close(self) -> None: ...


class Readers:
    """``intakes`` and ``coordination`` exist from `open` on; ``expected`` names the intakes that there will be."""

    def __init__(
        self,
        *,
        pool: Pool,
        worker_id: str,
        tiers: tuple[Tier, ...],
        tier_times: TierTimes,
        clients: Clients,
        cluster: Cluster,
        clock: BrokerClock,
        topics: TopicWatch,
        results: ResultsReader,
        schemas: SchemaFetcher | None,
        envelopes: EnvelopeReader,
        dispatcher: Dispatcher,
        announcer: Announcer,
        exchange: Exchange,
        intakes: dict[str, Intake],
        bounds: Bounds,
        make_event: MakeEvent,
    ) -> None:
        self.intakes = intakes
        self.coordination: Coordination | None = None
        self.expected = (*(tier.value for tier in tiers), RETRY_INTAKE)
        self._pool = pool
        self._worker_id = worker_id
        self._tiers = tiers
        self._tier_times = tier_times
        self._clients = clients
        self._cluster = cluster
        self._clock = clock
        self._topics = topics
        self._results = results
        self._schemas = schemas
        self._envelopes = envelopes
        self._dispatcher = dispatcher
        self._announcer = announcer
        self._exchange = exchange
        self._bounds = bounds
        self._make_event = make_event

    def open(self, partitions: Mapping[str, int]) -> Iterator[tuple[str, Loop]]:
        """Makes them one after the other, and gives what each thread is to run, with the thread's name, as it is made.

        A member of a group must be polled as soon as it has joined: with tokens the next client takes a second to make.
        ``partitions``: how many each topic has.
        """
        coordination = self.coordination = self._follow(partitions)
        fetcher = Fetcher(make_consumer=self._clients.fetcher, clock=self._clock, make_event=self._make_event)
        for name in self.expected:
            intake = self.intakes[name] = self._take_in(name, coordination, fetcher)
            yield f"intake-{name}", intake
        yield "topics", self._topics
        yield "fetcher", fetcher
        yield "results", self._results
        yield "coordination", coordination
        if self._schemas is not None:
            yield "schemas", self._schemas

    @property
    def following_troubles(self) -> list[str]:
        """Why coordination or control cannot be read now. From any thread."""
        return [] if self.coordination is None else self.coordination.troubles

    def _follow(self, partitions: Mapping[str, int]) -> Coordination:
        exchange = self._exchange
        return Coordination(
            consumer=self._clients.follower(),
            topic=self._pool.coordination,
            control_topic=self._pool.control,
            partitions=partitions,
            worker_id=self._worker_id,
            clock=self._clock,
            topic_ids=self._topics,
            receive=exchange.receive,
            receive_controls=exchange.receive_controls,
            has_room=self._dispatcher.controls.has_room,
            receive_capacity=exchange.receive_capacity,
            send=self._announcer.send_notice,
            explain=self._cluster.explain_following,
            make_event=self._make_event,
        )

    def _take_in(self, name: str, coordination: Coordination, fetcher: Fetcher) -> Intake:
        exchange = self._exchange
        return Intake(
            name=name,
            make_consumer=partial(self._clients.member, name),
            sources=self._retry_sources() if name == RETRY_INTAKE else [self._source(Tier(name))],
            envelopes=self._envelopes,
            clock=self._clock,
            deliver=exchange.deliver,
            hand_over=exchange.hand_over,
            peers=coordination,
            topic_ids=self._topics,
            explain=partial(self._cluster.explain_reading, name),
            fetcher=fetcher,
            look=self._results.look,
            answer=exchange.answer,
            quiet=self._dispatcher.quiet,
            default_ttl_ms=self._tier_times.ttl_ms,
            bounds=self._bounds,
        )

    def _source(self, tier: Tier) -> Source:
        credit = self._dispatcher.lookahead.credits[tier]
        return Source(topic=self._pool.requests(tier), tier=tier, retry_delay_seconds=0, credit=credit)

    def _retry_sources(self) -> list[Source]:
        credit_of = self._dispatcher.lookahead.retry_credits
        return [
            Source(topic=self._pool.retry(tier, delay), tier=tier, retry_delay_seconds=delay, credit=credit_of[tier])
            for tier in self._tiers
            for delay in RETRY_DELAYS_SECONDS
        ]
