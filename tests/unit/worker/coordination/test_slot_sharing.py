"""Between the coordination topic and dispatch: nothing that another worker says ends this one, and what this one says
is within the bounds that are heard."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from forebay_schemas.contract.coordination import Capacity, decode_capacity, encode_capacity
from forebay_worker.coordination.slot_sharing import Sharer
from forebay_worker.dispatch.dispatcher import Dispatcher
from forebay_worker.dispatch.overload import OverloadLadder
from forebay_worker.lanes.lanes import Lanes
from forebay_worker.lanes.order import LaneOrder
from forebay_worker.outcome.reporter import Reporter
from forebay_worker.pacing.gate import Gate
from forebay_worker.pacing.policies.fixed import FixedLimit
from forebay_worker.pacing.slots.sharing import Sharing
from forebay_worker.telemetry.stats import Stats
from simulated.ports import ManualClock, MemoryProducer
from simulated.works import POOL


class Stage:
    """A sharer whose records come back at once, unless it is deaf."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        stats = Stats()
        reporter = Reporter(producer=MemoryProducer(), pool=POOL, worker_id="w", clock=self.clock, stats=stats)
        self.dispatcher = Dispatcher(
            clock=self.clock,
            gate=Gate(policy=FixedLimit(limit_requests=8), prefill_seconds_max=math.inf),
            predictor=None,
            lanes=Lanes(order=LaneOrder.FIFO),
            overload=OverloadLadder(),
            read_signals=lambda _: (None, None),
            reporter=reporter,
            stats=stats,
            buffer_bytes_max=1_000_000,
            retries_max=0,
        )
        self.sharing = Sharing(
            worker="w", backend="b", minimum={}, reserve_share=0.0, incarnation=1, limit_min=1, limit_max=8
        )
        self.said: list[Capacity] = []
        self.sharer = Sharer(sharing=self.sharing, dispatcher=self.dispatcher, clock=self.clock, send=self._send)

    def _send(self, capacity: Capacity, on_delivery: Any) -> None:
        self.said.append(capacity)
        on_delivery(True)

    def run(self, seconds: float) -> None:
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end:
            heard = len(self.said)
            self.sharer.step(self.clock.monotonic())
            for capacity in self.said[heard:]:
                self.sharer.hear(capacity, 0.0)
            self.clock.advance(0.05)


def test_a_record_that_breaks_the_reading_ends_nothing_and_is_told_once() -> None:
    stage = Stage()
    stage.run(3)
    assert stage.dispatcher.gate.share_requests == 8
    # Past the decoder, which refuses it.
    poison = msgspec.structs.replace(stage.said[-1], worker="other", in_flight="many", sequence=9)
    with capture_logs() as logs:
        for _ in range(3):
            stage.sharer.hear(poison, 0.0)
            stage.run(0.2)
    assert [each["event"] for each in logs] == ["sharing failed; going on"]
    assert stage.dispatcher.gate.share_requests == 8


def test_while_following_fails_nothing_starts_and_after_that_all_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    stage.run(3)

    def fail(*_: Any) -> None:
        raise OverflowError("int too large to convert to float")

    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr(stage.sharing, "step", fail)
        stage.run(1)
        assert stage.dispatcher.gate.share_requests == 0
    assert [each["event"] for each in logs] == ["sharing failed; going on"]
    stage.run(3)
    assert stage.dispatcher.gate.share_requests == 8


@pytest.mark.parametrize(("seconds", "said"), [(0.0, 1e-4), (2.0, 2.0), (1e9, 604_800.0)])
def test_what_a_worker_says_is_heard_however_short_or_long_its_requests_take(seconds: float, said: float) -> None:
    stage = Stage()
    stage.dispatcher.shedder.answered(seconds)
    stage.dispatcher.gate.model.start_from((seconds, seconds, seconds))
    stage.run(3)
    heard = decode_capacity(encode_capacity(stage.said[-1]))
    assert heard == stage.said[-1]
    assert heard is not None
    assert heard.service_seconds == said


def test_a_second_worker_of_the_same_id_is_warned_of_once() -> None:
    stage = Stage()
    stage.run(3)
    with capture_logs() as logs:
        for number in range(5):
            stage.sharer.hear(msgspec.structs.replace(stage.said[-1], incarnation=2, sequence=number + 1), 0.0)
            stage.run(1.1)
    assert [each["event"] for each in logs] == [
        "another worker of the same id is running; give each its own FOREBAY_WORKER_ID"
    ]
