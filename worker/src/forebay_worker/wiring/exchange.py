"""What the worker's threads hand each other: batches to dispatch, notices and controls to the intakes.

Its methods are called on the thread that has something to hand over; they only put it where the other thread finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from forebay_schemas.contract.control import Control, ControlAction, ControlOutcome
from forebay_schemas.contract.coordination import Capacity, Notice
from forebay_worker.cluster.broker_clock import BrokerClock
from forebay_worker.coordination.handover import HandOvers
from forebay_worker.coordination.slot_sharing import SlotSharing
from forebay_worker.dispatch.dispatcher import Dispatcher
from forebay_worker.execution.executor import Executor
from forebay_worker.intake.early_control import ReceivedControl
from forebay_worker.intake.intake import Intake
from forebay_worker.intake.last_words import HandedOver
from forebay_worker.outcome.reporter import Reporter
from forebay_worker.request.controls import RECENT_MS
from forebay_worker.request.work import Work

Post = Callable[..., Any]
"""Has the event loop's thread call a function with these arguments, soon."""


class Exchange:
    """Between the event loop's thread, the intakes and the follower of coordination and control."""

    def __init__(
        self,
        *,
        post: Post,
        clock: BrokerClock,
        dispatcher: Dispatcher,
        executor: Executor,
        reporter: Reporter,
        sharer: SlotSharing,
        hand_overs: HandOvers,
        intakes: Mapping[str, Intake],
    ) -> None:
        """``intakes`` may be filled later."""
        self._post = post
        self._clock = clock
        self._dispatcher = dispatcher
        self._executor = executor
        self._reporter = reporter
        self._sharer = sharer
        self._hand_overs = hand_overs
        self._intakes = intakes

    # From the intakes.

    def deliver(self, batch: list[Work]) -> None:
        """Hands a batch to dispatch."""
        self._post(self._accept, batch)

    def hand_over(self, over: HandedOver) -> None:
        """A partition was released while requests of it run on."""
        self._post(self._hand_overs.add, over)

    def answer(self, action: ControlAction, request_id: str, outcome: ControlOutcome) -> None:
        """Publishes what became of a cancel or an expedite."""
        self._post(self._reporter.answer_control, action, request_id, outcome)

    def _accept(self, batch: list[Work]) -> None:
        self._clock.read(batch[-1].record)
        self._dispatcher.accept(batch)
        self._executor.start_runnable()

    # From the follower of coordination and control.

    def receive(self, notice: Notice, age_seconds: float) -> None:
        """A notice of another worker."""
        for intake in self._intakes.values():
            intake.receive(notice, age_seconds)

    def receive_capacity(self, capacity: Capacity, age_seconds: float) -> None:
        """What another worker publishes of its share of the backend."""
        self._post(self._sharer.receive, capacity, age_seconds)

    def receive_controls(self, controls: list[tuple[Control, int]]) -> None:
        """Cancels and expedites, each with the broker's stamp (epoch milliseconds)."""
        # Dispatch first: what an intake hands it for one of them must find it there.
        self._dispatcher.controls.received.extend(controls)
        since_ms = self._clock.wall_ms() - RECENT_MS
        received = [ReceivedControl(control, stamped_ms, stamped_ms > since_ms) for control, stamped_ms in controls]
        for intake in self._intakes.values():
            intake.received_controls.extend(received)
