"""Between the coordination topic and dispatch: no record of another worker ends this one, and this one's records keep
to the bounds of the readers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from forebay_schemas.contract.coordination import Capacity, decode_capacity, encode_capacity
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.contract.worker_load import load_of
from forebay_worker.coordination.slot_sharing import SlotSharing
from forebay_worker.pacing.slots.sharing import Sharing
from simulated.dispatch import Stage
from simulated.works import make_assignment, make_work


class EchoingSharer(Stage):
    """A sharer whose records come back at once."""

    def __init__(self) -> None:
        super().__init__(limit=8)
        self.sharing = Sharing(
            worker="w", backend="b", minimum={}, reserve_share=0.0, incarnation=1, limit_min=1, limit_max=8
        )
        self.said: list[Capacity] = []
        self.sharer = SlotSharing(sharing=self.sharing, dispatcher=self.dispatcher, clock=self.clock, send=self._send)

    def _send(self, capacity: Capacity, on_delivery: Any) -> None:
        self.said.append(capacity)
        on_delivery(True)

    def run(self, seconds: float) -> None:
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end:
            received = len(self.said)
            self.sharer.step(self.clock.monotonic())
            for capacity in self.said[received:]:
                self.sharer.receive(capacity, 0.0)
            self.clock.advance(0.05)


def test_a_record_that_breaks_the_reading_ends_nothing_and_is_told_once() -> None:
    echo = EchoingSharer()
    echo.run(3)
    assert echo.dispatcher.gate.share_requests == 8
    # Past the decoder, which refuses it.
    poison = msgspec.structs.replace(echo.said[-1], worker="other", in_flight="many", sequence=9)
    with capture_logs() as logs:
        for _ in range(3):
            echo.sharer.receive(poison, 0.0)
            echo.run(0.2)
    assert [each["event"] for each in logs] == ["sharing failed; going on"]
    assert echo.dispatcher.gate.share_requests == 8


def test_while_following_fails_nothing_starts_and_after_that_all_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    echo = EchoingSharer()
    echo.run(3)

    def fail(*_: Any) -> None:
        raise OverflowError("int too large to convert to float")

    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr(echo.sharing, "step", fail)
        echo.run(1)
        assert echo.dispatcher.gate.share_requests == 0
    assert [each["event"] for each in logs] == ["sharing failed; going on"]
    echo.run(3)
    assert echo.dispatcher.gate.share_requests == 8


@pytest.mark.parametrize(("seconds", "said"), [(0.0, 1e-4), (2.0, 2.0), (1e9, 604_800.0)])
def test_what_a_worker_says_is_heard_however_short_or_long_its_requests_take(seconds: float, said: float) -> None:
    echo = EchoingSharer()
    echo.dispatcher.shedder.answered(seconds)
    echo.dispatcher.gate.model.start_from((seconds, seconds, seconds))
    echo.run(3)
    received = decode_capacity(encode_capacity(echo.said[-1]))
    assert received == echo.said[-1]
    assert received is not None
    assert received.service_seconds == said
    load = load_of(received)
    assert load is not None
    assert load.breaker.state == "closed"


def test_a_worker_publishes_what_waits_and_what_limits_it() -> None:
    echo = EchoingSharer()
    echo.run(3)
    assignment = make_assignment(Tier.MID)
    echo.accept(*(make_work(assignment, offset=number, ttl_ms=60_000) for number in range(60)))
    for _ in range(20):
        echo.dispatcher.shedder.answered(0.5)
        echo.dispatcher.shedder.estimates.answered(Tier.MID, 0.5)
    assert len(echo.take_all()) == 8
    echo.run(2)
    load = load_of(echo.said[-1])
    assert load is not None
    assert load.running_requests == {Tier.MID: 8}
    assert load.waiting_requests == {Tier.MID: 52}
    assert load.open_slots == {}
    assert load.limited_by is not None
    assert (load.limited_by.signal, load.limited_by.value, load.limited_by.threshold) == ("limit", 8, 8)
    assert load.work_seconds[Tier.MID] == pytest.approx(52 * 0.5 / 8)
    assert load.service_seconds[Tier.MID] == 0.5
    assert 60 / 2 * 0.5 / 8 <= load.arriving[Tier.MID] <= 60 * 0.5 / 8, "published in the last of two seconds"
    assert load.guaranteed_share == {Tier.MID: 0.05, Tier.LOW: 0.01}


def test_a_second_worker_of_the_same_id_is_warned_of_once() -> None:
    echo = EchoingSharer()
    echo.run(3)
    with capture_logs() as logs:
        for number in range(5):
            echo.sharer.receive(msgspec.structs.replace(echo.said[-1], incarnation=2, sequence=number + 1), 0.0)
            echo.run(1.1)
    assert [each["event"] for each in logs] == [
        "another worker of the same id is running; give each its own FOREBAY_WORKER_ID"
    ]
