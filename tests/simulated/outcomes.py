"""A reporter over a producer in memory. No threads, no I/O."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import KafkaError

from forebay_schemas.contract.reasons import Reason
from forebay_schemas.contract.results import Result, decode_result
from forebay_worker.outcome.reporter import Reporter
from forebay_worker.request.work import Answer, Failure, Work
from forebay_worker.telemetry.stats import Stats
from forebay_worker.telemetry.tracing import NO_TRACING, Tracing
from simulated.ports import ManualClock, MemoryProducer, MemoryRecord, plain
from simulated.works import POOL

GONE = KafkaError(KafkaError._MSG_TIMED_OUT)
NO_PARTITION = KafkaError(KafkaError._UNKNOWN_PARTITION)
FAILED = Failure(reason=Reason.BACKEND_ERROR, error="HTTP 500: no")


class Outcomes:
    """A reporter over a producer in memory."""

    def __init__(
        self, *, clock: ManualClock | None = None, tracing: Tracing = NO_TRACING, answers_rejected: bool = False
    ) -> None:
        self.clock = clock or ManualClock()
        self.producer = MemoryProducer()
        self.stats = Stats()
        self.reporter = Reporter(
            producer=self.producer,
            pool=POOL,
            worker_id="worker-1",
            clock=self.clock,
            stats=self.stats,
            tracing=tracing,
            explain=plain,
            answers_rejected=answers_rejected,
        )

    def poll(self, seconds: float = 0.0) -> None:
        self.clock.advance(seconds)
        self.reporter.delivery.poll()

    def accepts(self) -> bool:
        return self.reporter.delivery.accepts(self.clock.monotonic())

    def complete(self, work: Work, body: object = None) -> None:
        self.reporter.completed(work, Answer(body={"ok": True} if body is None else body), service_seconds=0.5)

    def results(self) -> list[Result]:
        return [decode_result(record.value()) for record in self.producer.delivered_to(POOL.results)]

    def settled(self) -> bool:
        return (self.reporter.delivery.undelivered_records, self.reporter.delivery.undelivered_bytes) == (0, 0)


def is_finished(work: Work) -> bool:
    return work.offset in work.assignment.done


def failing(times: int, error: KafkaError = GONE) -> Callable[[MemoryRecord], KafkaError | None]:
    """Fails that many deliveries and then no more."""
    left = iter([error] * times)
    return lambda _: next(left, None)
