"""An intake with all around it in memory, step by step. No threads, no I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

from confluent_kafka import KafkaError

from forebay_schemas.contract.control import ControlAction, ControlOutcome
from forebay_schemas.contract.coordination import Notice, NoticeKind
from forebay_schemas.contract.offsets_metadata import CommitMetadata, decode_metadata, encode_metadata
from forebay_schemas.contract.tiers import DEFAULT_TTL_MS, Tier
from forebay_schemas.formats.avro_process import ForeignReader
from forebay_schemas.formats.envelope_reader import EnvelopeReader, NoSchemas, SchemaSource
from forebay_worker.bounds import BOUNDS, Bounds
from forebay_worker.intake.commits import COMMIT_SECONDS
from forebay_worker.intake.fetcher import Fetched
from forebay_worker.intake.intake import Intake
from forebay_worker.intake.last_words import HandedOver
from forebay_worker.partition.assignment import Assignment
from forebay_worker.partition.credit import Credit
from forebay_worker.partition.quiet import Quiet
from forebay_worker.partition.sources import Source
from forebay_worker.request.work import Work
from simulated.consumer import ScriptedConsumer
from simulated.ports import Key, ManualClock, MemoryPeers, MemoryRecord, MemoryTopics, plain
from simulated.works import POOL, envelope

TIER = Tier.MID
TOPIC = POOL.requests(TIER)
P0, P1 = (TOPIC, 0), (TOPIC, 1)
MANY_BYTES = 1 << 40
RUNNING, FINISHED, RELEASED = NoticeKind.RUNNING, NoticeKind.FINISHED, NoticeKind.RELEASED
BROKEN = KafkaError(KafkaError._TRANSPORT)
REFUSED = KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS)


class ManualCredit(Credit):
    """Waits by moving the clock."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(capacity_records=1)
        self._clock = clock

    def wait(self, seconds: float) -> None:
        self._clock.advance(seconds)


class ManualFetcher:
    """Keeps what it is asked for until a test answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[Assignment, int, deque[Fetched]]] = []

    def fetch(self, assignment: Assignment, offset: int, answers: deque[Fetched]) -> None:
        self.asked.append((assignment, offset, answers))

    def answer(self, record: MemoryRecord | None, *, begins_at: int | None = None) -> None:
        assignment, offset, answers = self.asked.pop(0)
        answers.append(Fetched(assignment, offset, record, begins_at))


@dataclass(slots=True)
class ManualLook:
    """A look through the results. Over at once, unless a test says otherwise."""

    since_ms: int
    ended: set[tuple[str, int]]
    is_over: bool = True

    def has(self, request_id: str, replay_count: int) -> bool:
        assert self.is_over, "what is not over tells nothing"
        return (request_id, replay_count) in self.ended


class ManualLooks:
    """Keeps what it is asked for. ``ended``: the requests whose outcomes are on the results topic."""

    def __init__(self) -> None:
        self.asked: list[ManualLook] = []
        self.ended: set[tuple[str, int]] = set()
        self.take_time = False

    def look(self, since_ms: int) -> ManualLook:
        self.asked.append(ManualLook(since_ms, self.ended, not self.take_time))
        return self.asked[-1]


class Bay:
    """An intake over logs in memory; ``handed``: what it gave to dispatch, and when (monotonic seconds);
    ``handed_over``: what it let go of.

    It reads one tier's requests, or, with ``delays_seconds``, its retries of these delays.
    """

    def __init__(
        self,
        *,
        capacity: int = 1_000_000,
        capacity_bytes: int = MANY_BYTES,
        delays_seconds: tuple[int, ...] = (0,),
        schemas: SchemaSource | None = None,
        foreign: ForeignReader | None = None,
        default_ttl_ms: Mapping[Tier, int] = DEFAULT_TTL_MS,
        bounds: Bounds = BOUNDS,
    ) -> None:
        self.clock = ManualClock()
        self.schemas = schemas or NoSchemas()
        self.foreign = foreign
        self.default_ttl_ms = default_ttl_ms
        self.bounds = bounds
        self.consumer = ScriptedConsumer(clock=self.clock)
        self.peers = MemoryPeers()
        self.quiet = Quiet()
        self.topics = MemoryTopics()
        self.credit = ManualCredit(self.clock)
        self.allow(capacity, total_bytes=capacity_bytes)
        self.sources = [
            Source(
                topic=POOL.retry(TIER, delay) if delay else TOPIC,
                tier=TIER,
                retry_delay_seconds=delay,
                credit=self.credit,
            )
            for delay in delays_seconds
        ]
        self.handed: list[Work] = []
        self.handed_at: list[float] = []
        self.handed_over: list[HandedOver] = []
        self.fetcher = ManualFetcher()
        self.looks = ManualLooks()
        self.answers: list[tuple[ControlAction, str, ControlOutcome]] = []
        self.intake = self.start()

    def start(self) -> Intake:
        return Intake(
            name="mid",
            explain=plain,
            make_consumer=self.consumer.connect,
            sources=self.sources,
            envelopes=EnvelopeReader(self.schemas, foreign=self.foreign),
            clock=self.clock,
            deliver=self._deliver,
            hand_over=self.handed_over.append,
            peers=self.peers,
            topic_ids=self.topics,
            fetcher=self.fetcher,
            look=self.looks.look,
            answer=lambda *answer: self.answers.append(answer),
            quiet=self.quiet,
            default_ttl_ms=self.default_ttl_ms,
            bounds=self.bounds,
        )

    def _deliver(self, batch: list[Work]) -> None:
        self.handed += batch
        self.handed_at += [self.clock.monotonic()] * len(batch)

    def allow(self, total: int, *, capacity: int | None = None, total_bytes: int = MANY_BYTES) -> None:
        """Allows ``total`` records in all since the start."""
        self.credit.allow(total, total_bytes, capacity_records=capacity or total, capacity_bytes=MANY_BYTES)

    def fill(self, key: Key, *offsets: int) -> None:
        for offset in offsets:
            self.consumer.append(
                MemoryRecord(
                    topic_name=key[0],
                    partition_number=key[1],
                    offset_number=offset,
                    value_bytes=envelope(f"{key[1]}-{offset}"),
                )
            )

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.intake.step()

    def offsets(self, key: Key = P0) -> list[int]:
        """Offsets of a partition that were given to dispatch, in order."""
        return [work.offset for work in self.handed if _key_of(work) == key]

    def finish(self, *offsets: int, key: Key = P0) -> None:
        """The outcomes of these were delivered."""
        for offset in offsets:
            work = next(each for each in reversed(self.handed) if (_key_of(each), each.offset) == (key, offset))
            work.assignment.done.append(offset)

    def assigned(self) -> list[int]:
        return self.intake.assigned.get(TOPIC, [])

    def is_paused(self, key: Key = P0) -> bool:
        return self.consumer.log_of(key).paused

    def settle(self) -> None:
        """Long enough for a commit to be made and answered."""
        self.clock.advance(COMMIT_SECONDS)
        self.step(2)

    def committed(self, key: Key = P0) -> int | None:
        return self.consumer.committed_by_group[key][0] if key in self.consumer.committed_by_group else None


def _key_of(work: Work) -> Key:
    return work.assignment.topic, work.assignment.partition


def bay_with(*offsets: int, key: Key = P0) -> Bay:
    """A bay that has taken these records."""
    bay = Bay()
    bay.fill(key, *offsets)
    bay.consumer.assign(key)
    bay.step(2)
    assert bay.offsets(key) == list(offsets)
    return bay


def said_by(offset: int, text: str | None) -> CommitMetadata | None:
    """A commit's metadata, without its times."""
    metadata = decode_metadata(offset, text)
    return None if metadata is None else replace(metadata, outcomes_since_ms=None, owned_since_ms=None)


def explode(*_: object, **__: object) -> None:
    raise RuntimeError("odd")


def says(kind: NoticeKind, *offsets: int) -> Notice:
    """Another worker's notice about partition 0."""
    return Notice(kind=kind, worker="other", topic=TOPIC, partition=0, offsets=list(offsets))


def last_commit(committed: int, metadata: CommitMetadata) -> Notice:
    return Notice(
        kind=NoticeKind.LAST_COMMIT,
        worker="other",
        topic=TOPIC,
        partition=0,
        committed=committed,
        metadata=encode_metadata(committed, metadata),
    )


def bay_before_assignment(
    *, committed: int = 0, metadata: CommitMetadata, records: int = 5, bounds: Bounds = BOUNDS
) -> Bay:
    """A bay that is about to be assigned a partition with this commit."""
    bay = Bay(bounds=bounds)
    bay.fill(P0, *range(records))
    bay.consumer.committed_by_group[P0] = (committed, encode_metadata(committed, metadata))
    bay.consumer.assign(P0)
    return bay
