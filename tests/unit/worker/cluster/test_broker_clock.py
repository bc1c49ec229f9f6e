"""The brokers' time: bounded by what brokers stamped, followed through wrong, stepped and drifting clocks."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, TIMESTAMP_NOT_AVAILABLE
from structlog.testing import capture_logs

from forebay_worker.cluster.broker_clock import (
    LOOK_SECONDS,
    PROBE_SECONDS,
    PROBE_SECONDS_MIN,
    WINDOW_SECONDS,
    BrokerClock,
    SkewEstimator,
)
from simulated.ports import NOW_MS, ManualClock

HOUR = 3_600.0
NEAR_MS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    """A delivery report, or a record that was read."""

    stamp_ms: int
    latency_seconds: float | None = 0.004
    kind: int = TIMESTAMP_LOG_APPEND_TIME

    def timestamp(self) -> tuple[int, int]:
        return (self.kind, self.stamp_ms)

    def latency(self) -> float | None:
        return self.latency_seconds


class Machine:
    """A machine whose wall clock is ``ahead_seconds`` before its broker's."""

    def __init__(self, ahead_seconds: float = 0.0) -> None:
        self.local = ManualClock()
        self.broker_ms = float(NOW_MS)
        self.local.step_wall(ahead_seconds)
        self.clock = BrokerClock(self.local)

    def advance(self, seconds: float) -> None:
        self.local.advance(seconds)
        self.broker_ms += seconds * 1000

    def receive(self, *, latency_seconds: float = 0.004) -> None:
        """A record is produced, stamped half-way and acknowledged."""
        self.advance(0.001 + latency_seconds / 2)
        stamp_ms = int(self.broker_ms)
        self.advance(latency_seconds / 2)
        self.clock.acknowledged(ProbeReport(stamp_ms=stamp_ms, latency_seconds=latency_seconds))

    def look(self) -> None:
        self.advance(LOOK_SECONDS)
        self.clock.look(self.local.monotonic())

    def suspend(self, seconds: float) -> None:
        """The machine stands still, its monotonic clock too; its wall clock is right afterwards."""
        self.local.step_wall(seconds)
        self.broker_ms += seconds * 1000

    @property
    def error_ms(self) -> float:
        """Time by which the clock is ahead of the broker's."""
        return self.clock.wall_ms() - self.broker_ms

    def wants_probe(self) -> bool:
        return self.clock.wants_probe(self.local.monotonic())


# Bounds


@pytest.mark.parametrize(
    ("samples", "bounds"),
    [
        # (sent, acked, stamp): seconds, seconds, milliseconds
        ([(1.000, 1.010, 5_000)], (3_990, 4_001)),
        ([(1.000, 1.010, 5_000), (2.000, 2.020, 6_010)], (3_990, 4_001)),
        ([(1.000, 1.010, 5_000), (2.000, 2.004, 5_997)], (3_993, 3_998)),
        ([(1.000, 9.000, 5_000), (9.000, 9.002, 13_001)], (3_999, 4_001)),
    ],
    ids=["one", "a wider one says nothing more", "a tighter one counts", "after a slow one"],
)
def test_each_record_bounds_the_skew_and_the_tightest_bounds_count(
    samples: list[tuple[float, float, int]], bounds: tuple[float, float]
) -> None:
    estimator = SkewEstimator()
    for sent, acked, stamp in samples:
        estimator.acknowledged(sent=sent, acked=acked, broker_ms=stamp)
    assert estimator.bounds_ms == pytest.approx(bounds)
    assert estimator.samples == len(samples)


def test_nothing_is_known_before_the_first_sample() -> None:
    estimator = SkewEstimator()
    assert (estimator.bounds_ms, estimator.floor_ms) == (None, None)


@pytest.mark.parametrize(
    ("later_ms", "seconds", "low_ms"),
    [(-500, 1.0, 3_490), (500, 1.0, 3_990), (500, 2.5 * WINDOW_SECONDS, 4_490)],
    ids=["set back: at once", "set on: not yet", "set on: when the window has passed"],
)
def test_brokers_that_disagree_count_by_the_earlier_time_for_a_window(
    later_ms: int, seconds: float, low_ms: float
) -> None:
    estimator = SkewEstimator()
    estimator.acknowledged(sent=100.0, acked=100.01, broker_ms=104_000)
    at = 100.0
    while at < 100.0 + seconds:
        at += 0.5
        estimator.acknowledged(sent=at, acked=at + 0.01, broker_ms=int(at * 1000) + 4_000 + later_ms)
    assert estimator.bounds_ms is not None
    assert estimator.bounds_ms[0] == pytest.approx(low_ms)


def test_a_drift_is_followed() -> None:
    estimator = SkewEstimator()
    at, broker_ms = 0.0, 5_000.0
    for _ in range(1_200):
        at += 0.5
        broker_ms += 500 * (1 + 100e-6)
        estimator.acknowledged(sent=at - 0.002, acked=at + 0.002, broker_ms=int(broker_ms))
    assert estimator.bounds_ms is not None
    assert sum(estimator.bounds_ms) / 2 == pytest.approx(broker_ms - at * 1000, abs=8)


def test_what_is_read_is_a_lower_bound_alone() -> None:
    estimator = SkewEstimator()
    estimator.read(at=10.0, broker_ms=14_000)
    estimator.read(at=11.0, broker_ms=14_500)
    assert (estimator.floor_ms, estimator.bounds_ms) == (4_000, None)
    estimator.read(at=10.0 + WINDOW_SECONDS, broker_ms=13_900 + int(WINDOW_SECONDS * 1000))
    assert estimator.floor_ms == 3_900, "an old one holds no longer than the window"


# The clock


@pytest.mark.parametrize("ahead_seconds", [HOUR, -HOUR, 2.0, -0.3])
def test_a_wrong_clock_is_right_after_one_answer(ahead_seconds: float) -> None:
    machine = Machine(ahead_seconds)
    assert machine.error_ms == pytest.approx(ahead_seconds * 1000)
    machine.receive()
    assert machine.error_ms == pytest.approx(0, abs=4)
    machine.advance(77.0)
    assert machine.error_ms == pytest.approx(0, abs=4)
    assert machine.clock.skew_ms == pytest.approx(ahead_seconds * 1000, abs=4)
    status = machine.clock.status()
    assert status["is_corrected"] is True
    assert status["samples"] == 1
    assert status["skew_ms"] == pytest.approx(ahead_seconds * 1000, abs=4)


@pytest.mark.parametrize("ahead_seconds", [0.04, -0.04, 0.0])
def test_a_clock_that_is_nearly_right_is_followed(ahead_seconds: float) -> None:
    machine = Machine(ahead_seconds)
    machine.receive()
    assert machine.error_ms == pytest.approx(ahead_seconds * 1000, abs=1)
    assert machine.clock.status()["is_corrected"] is False


def test_a_clock_that_a_slow_answer_does_not_contradict_is_followed() -> None:
    machine = Machine(0.9)
    machine.receive(latency_seconds=3.0)
    assert machine.error_ms == pytest.approx(900, abs=1)
    machine.receive()
    assert machine.error_ms == pytest.approx(0, abs=4)


@pytest.mark.parametrize(
    "report",
    [
        ProbeReport(stamp_ms=NOW_MS, kind=TIMESTAMP_CREATE_TIME),
        ProbeReport(stamp_ms=0, kind=TIMESTAMP_NOT_AVAILABLE),
        ProbeReport(stamp_ms=-1),
        ProbeReport(stamp_ms=NOW_MS, latency_seconds=None),
    ],
    ids=["the client's own stamp", "none", "none but its type", "no latency"],
)
def test_what_no_broker_stamped_says_nothing(report: ProbeReport) -> None:
    machine = Machine(HOUR)
    machine.clock.acknowledged(report)
    assert not machine.clock.is_known
    assert machine.clock.skew_ms is None
    assert machine.error_ms == pytest.approx(HOUR * 1000)
    assert machine.clock.status()["samples"] == 0


def test_what_is_read_sets_a_slow_clock_on_while_nothing_else_is_known() -> None:
    machine = Machine(-HOUR)
    machine.clock.read(ProbeReport(stamp_ms=NOW_MS - 20, kind=TIMESTAMP_CREATE_TIME))
    machine.look()
    assert machine.error_ms == pytest.approx(-HOUR * 1000)
    machine.clock.read(ProbeReport(stamp_ms=int(machine.broker_ms) - 20))
    machine.look()
    assert machine.error_ms == pytest.approx(-20, abs=2)
    machine.receive()
    assert machine.error_ms == pytest.approx(0, abs=4)


def test_while_nothing_else_is_known_what_was_read_counts_lest_a_fast_clock_expire_it() -> None:
    machine = Machine(HOUR)
    machine.clock.read(ProbeReport(stamp_ms=NOW_MS - 20))
    assert machine.error_ms == pytest.approx(-20, abs=2)
    machine.receive()
    assert machine.error_ms == pytest.approx(0, abs=4)


@pytest.mark.parametrize("latency_seconds", [0.004, 0.1, 5.0])
@pytest.mark.parametrize("ahead_seconds", [HOUR, -HOUR])
def test_a_clock_that_is_set_right_is_late_rather_than_early(ahead_seconds: float, latency_seconds: float) -> None:
    machine = Machine(ahead_seconds)
    machine.receive(latency_seconds=latency_seconds)
    assert -latency_seconds * 1000 <= machine.error_ms <= 0
    machine.clock.read(ProbeReport(stamp_ms=int(machine.broker_ms)))
    assert -2 <= machine.error_ms <= 0, "what is read makes it sharper"


def test_what_another_broker_stamped_does_not_set_it_on() -> None:
    machine = Machine(HOUR)
    machine.receive()
    machine.clock.read(ProbeReport(stamp_ms=int(machine.broker_ms) + 60_000))
    assert machine.error_ms == pytest.approx(0, abs=4)


# Steps


@pytest.mark.parametrize("step_seconds", [HOUR, -HOUR, 0.2])
def test_a_step_moves_no_deadline_and_is_asked_about_at_once(step_seconds: float) -> None:
    machine = Machine()
    machine.receive()
    machine.look()
    machine.local.step_wall(step_seconds)
    assert abs(machine.error_ms) < NEAR_MS
    machine.look()
    assert abs(machine.error_ms) < NEAR_MS
    assert machine.wants_probe()
    assert not machine.wants_probe(), "it was asked for"
    machine.receive()
    assert abs(machine.error_ms) < NEAR_MS
    assert machine.clock.skew_ms == pytest.approx(step_seconds * 1000, abs=4)


def test_an_answer_that_was_under_way_at_the_step_does_not_settle_it() -> None:
    machine = Machine()
    machine.receive()
    machine.look()
    sent_ms = int(machine.broker_ms)
    machine.suspend(HOUR)
    machine.look()
    machine.clock.acknowledged(ProbeReport(stamp_ms=sent_ms, latency_seconds=2 * LOOK_SECONDS))
    assert machine.wants_probe()
    machine.receive()
    assert abs(machine.error_ms) < NEAR_MS


def test_after_a_suspension_nothing_is_early_and_the_first_answer_sets_it_right() -> None:
    machine = Machine()
    machine.receive()
    machine.look()
    machine.suspend(HOUR)
    machine.look()
    assert machine.error_ms < NEAR_MS
    assert machine.wants_probe()
    machine.advance(PROBE_SECONDS_MIN)
    assert machine.wants_probe(), "until there is an answer"
    machine.receive()
    assert abs(machine.error_ms) < NEAR_MS


def test_without_answers_the_local_clock_is_followed_through_its_steps() -> None:
    machine = Machine()
    machine.look()
    machine.local.step_wall(5.0)
    machine.look()
    assert machine.error_ms == pytest.approx(5_000)


def test_brokers_are_asked_when_nothing_else_has_told_their_time_for_a_while() -> None:
    machine = Machine()
    assert machine.wants_probe()
    machine.receive()
    machine.advance(PROBE_SECONDS - 1)
    assert not machine.wants_probe()
    machine.receive()
    machine.advance(2)
    assert not machine.wants_probe(), "a result has told it"
    machine.advance(PROBE_SECONDS)
    assert machine.wants_probe()


def test_a_wrong_clock_is_told_once_and_so_is_its_end() -> None:
    machine = Machine(HOUR)
    with capture_logs() as logs:
        for _ in range(10):
            machine.receive()
            machine.look()
        machine.local.step_wall(-HOUR)
        machine.look()
        for _ in range(3):
            machine.receive()
            machine.look()
    assert [(line["event"], line["skew_seconds"]) for line in logs if "skew_seconds" in line] == [
        ("this machine's clock is wrong; going by the brokers'", pytest.approx(3_600, abs=0.01)),
        ("this machine's clock is right again", pytest.approx(0, abs=0.01)),
    ]
