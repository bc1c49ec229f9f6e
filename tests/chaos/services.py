"""The services whose requests these are: they cancel and expedite some, by the plan. Threads; talks to the brokers."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from chaos.acts import Ask, Order
from chaos.commands import Commands
from chaos.load import Accepted, Load
from forebay_producer import Producer
from forebay_producer.client.sender import Submitted
from forebay_sandbox.kafka.access import KafkaAccess
from forebay_schemas.contract.control import ControlAction
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.contract.topics import Pool
from forebay_schemas.errors import ForebayError
from harness.background import Background

_AT_ONCE_MAX = 3
"""Orders that wait for a worker's answer at a time. Further ones come late then, which does no harm."""


class Services(Background):
    """Carries out ``orders`` while the block runs. ``answers``: what workers said, to the last such order of a request.
    ``failed``: orders that the brokers did not confirm, in words."""

    def __init__(
        self, kafka: KafkaAccess, pool: Pool, *, orders: Sequence[Order], load: Load, commands: Commands
    ) -> None:
        super().__init__("services")
        self.answers: dict[tuple[Ask, str], str] = {}
        self.failed: list[str] = []
        self._kafka = kafka
        self._pool = pool
        self._orders = orders
        self._load = load
        self._commands = commands
        self._local = threading.local()
        self._producers: list[Producer] = []
        self._under_way: list[Future[None]] = []
        self._executor = ThreadPoolExecutor(_AT_ONCE_MAX, thread_name_prefix="service")

    def _close(self) -> None:
        self._executor.shutdown(cancel_futures=True)
        for producer in self._producers:
            producer.close()
        for future in self._under_way:
            if not future.cancelled():
                future.result()

    def _work(self) -> None:
        started = time.monotonic()
        last: Accepted | None = None
        for order in self._orders:
            if self._stop.wait(max(0.0, order.at_seconds - (time.monotonic() - started))):
                return
            meant = last if order.again and last is not None else self._accepted(order)
            if meant is not None:
                last = meant
                self._under_way.append(self._executor.submit(self._carry_out, order, meant))

    def _accepted(self, order: Order) -> Accepted | None:
        """The request that is as old as the order says; to expedite, one that is not in the high tier."""
        then = time.monotonic() - order.age_seconds
        fit = [each for each in list(self._load.recent) if order.ask is Ask.CANCEL or each.tier is not Tier.HIGH]
        return min(fit, key=lambda each: abs(each.at_seconds - then), default=None)

    def _carry_out(self, order: Order, meant: Accepted) -> None:
        topic = self._pool.requests(meant.tier)
        if order.by_command:
            at = f"{topic}:{meant.partition}:{meant.offset}"
            self._commands.run(order.ask.value, meant.request_id, "--at", at, "--wait", f"{order.wait_seconds:g}s")
            return
        handle = Submitted(
            request_id=meant.request_id,
            topic=topic,
            partition=meant.partition,
            offset=meant.offset,
            enqueued_at=meant.enqueued_ms,
        )
        action = ControlAction(order.ask.value)
        try:
            [answer] = self._producer().control_batch(action, [handle], wait_seconds=order.wait_seconds)
        except ForebayError as error:
            self.failed.append(f"{order.ask} of {meant.request_id}: {error}")
            return
        if answer.outcome is not None:
            self.answers[order.ask, meant.request_id] = answer.outcome.value

    def _producer(self) -> Producer:
        """The client is asked by one thread at a time: each has its own."""
        if not hasattr(self._local, "producer"):
            self._local.producer = Producer(bootstrap_servers=self._kafka.bootstrap_servers, pool=self._pool.name)
            self._producers.append(self._local.producer)
        producer: Producer = self._local.producer
        return producer
