"""The brokers' time, independent of this machine's clock: brokers set deadlines by their clocks, so workers keep them
by those.

`SkewEstimator` is pure. `BrokerClock` reads the machine's clocks. The event loop's thread updates it; any thread may
ask it the time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

import structlog
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME

from forebay_schemas.clock import Clock

WINDOW_SECONDS: Final = 30.0
"""The tightest bounds of one to two windows count: clocks that drift by 100 ppm part by 6 ms in that time."""

TOLERATED_MS: Final = 50.0
"""A local clock within this error is followed: with NTP it is better than the measurements of a busy event loop."""

STEP_MS: Final = 50.0
READING_SECONDS_MAX: Final = 0.01
LOOK_SECONDS: Final = 0.1
PROBE_SECONDS: Final = 30.0
PROBE_SECONDS_MIN: Final = 1.0
WRONG_MS: Final = 1_000.0
"""From this error on the log warns, once, and again when it is over."""

log = structlog.get_logger("forebay.clock")


class Stamped(Protocol):
    """The part of a read record that is used here."""

    def timestamp(self) -> Any: ...


class Acknowledged(Stamped, Protocol):
    """The part of a delivered record that is used here. ``latency``: seconds from the produce to this moment."""

    def latency(self) -> float | None: ...


class SkewEstimator:
    """Bounds of the brokers' epoch milliseconds less this machine's monotonic ones, from records that brokers stamped.

    A broker stamps a record between its produce and its acknowledgement. Stamps are compared with monotonic time,
    because a wall clock may be stepped between the two. If brokers disagree, the earlier time counts until it was not
    seen for a window: a late deadline costs some work, an early one costs a request.
    """

    __slots__ = ("_current", "_floor", "_floor_at", "_previous", "_started_at", "samples")

    def __init__(self) -> None:
        self.samples = 0
        self._current: tuple[float, float] | None = None
        self._previous: tuple[float, float] | None = None
        self._started_at = 0.0
        self._floor: float | None = None
        self._floor_at = 0.0

    def acknowledged(self, *, sent: float, acked: float, broker_ms: int) -> None:
        """Learns from a record produced at ``sent`` and acknowledged at ``acked`` (monotonic seconds)."""
        if acked - self._started_at >= WINDOW_SECONDS:
            self._previous = self._current if acked - self._started_at < 2 * WINDOW_SECONDS else None
            self._current, self._started_at = None, acked
        # A stamp is cut to the millisecond.
        self._current = _earlier(self._current, (broker_ms - acked * 1000, broker_ms + 1 - sent * 1000))
        self.samples += 1

    def read(self, *, at: float, broker_ms: int) -> None:
        """Learns from a record readable at ``at``: the brokers' time was at least its stamp."""
        floor = broker_ms - at * 1000
        if self._floor is None or floor > self._floor or at - self._floor_at >= WINDOW_SECONDS:
            self._floor, self._floor_at = floor, at

    def forget(self) -> None:
        """Forgets all: the monotonic clock may have stood still."""
        self._current = self._previous = self._floor = None

    @property
    def bounds_ms(self) -> tuple[float, float] | None:
        """Lower and upper bound; None before the first acknowledgement."""
        if self._current is None:
            return None
        low, high = _earlier(self._previous, self._current)
        return (self._floor if self._floor is not None and low < self._floor <= high else low), high

    @property
    def floor_ms(self) -> float | None:
        """Lower bound from read records alone; None before the first."""
        return self._floor


def _earlier(known: tuple[float, float] | None, new: tuple[float, float]) -> tuple[float, float]:
    """The range that both allow; if there is none, the earlier of the two."""
    if known is None:
        return new
    low, high = max(known[0], new[0]), min(known[1], new[1])
    return (low, high) if low <= high else min(known, new)


class BrokerClock:
    """A `Clock` that follows the brokers' wall clock: the local clock while it is within ``TOLERATED_MS`` of the known
    bounds, else the earliest time within them, so that nothing expires early. Before anything is known it is the local
    clock.

    A step of the local clock has no effect until it was compared with the bounds, so it never moves a deadline.
    """

    def __init__(self, local: Clock) -> None:
        # Bound methods of the local clock: they are called several times for each request.
        self.monotonic: Callable[[], float] = local.monotonic
        self.sleep: Callable[[float], None] = local.sleep
        self._local = local
        self._estimator = SkewEstimator()
        self._offset_ms: float | None = None
        self._local_offset_ms = local.wall_ms() - local.monotonic() * 1000
        self._is_corrected = False
        self._doubted_since: float | None = None
        self._look_at = 0.0
        self._read_at = 0.0
        self._probed_at = float("-inf")
        self._sampled_at = float("-inf")
        self._is_wrong = False

    def wall_ms(self) -> int:
        """Epoch milliseconds on the brokers' clock."""
        offset_ms = self._offset_ms
        if offset_ms is None:
            return self._local.wall_ms()
        return int(self.monotonic() * 1000 + offset_ms)

    def acknowledged(self, record: Acknowledged) -> None:
        """Learns from a delivery report without an error that has just arrived. Ignores stamps that are not a
        broker's."""
        kind, stamp_ms = record.timestamp()
        latency = record.latency()
        if kind != TIMESTAMP_LOG_APPEND_TIME or stamp_ms <= 0 or latency is None:
            return
        now = self.monotonic()
        self._note_step(now)
        sent = now - latency
        if self._doubted_since is not None:
            if sent < self._doubted_since:
                return  # the clock may have changed meanwhile
            self._doubted_since = None
            self._estimator.forget()
        self._estimator.acknowledged(sent=sent, acked=now, broker_ms=stamp_ms)
        self._sampled_at = now
        self._choose()

    def read(self, record: Stamped) -> None:
        """Learns from a record that was just read, a few times a second at most."""
        now = self.monotonic()
        if now < self._read_at:
            return
        self._read_at = now + LOOK_SECONDS
        kind, stamp_ms = record.timestamp()
        if kind == TIMESTAMP_LOG_APPEND_TIME and stamp_ms > 0:
            self._estimator.read(at=now, broker_ms=stamp_ms)
            self._choose()

    def look(self, now: float) -> None:
        """Compares the local clocks with each other and with the bounds. Call it many times a second."""
        if now < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        self._note_step(self.monotonic())
        self._choose()

    def wants_probe(self, now: float) -> bool:
        """Whether to probe a broker: no other record has shown its time for a while, or the local clock was stepped.

        A caller that gets True is expected to send the probe.
        """
        if self._doubted_since is not None:
            if now - self._probed_at < PROBE_SECONDS_MIN:
                return False
        elif now - max(self._probed_at, self._sampled_at) < PROBE_SECONDS:
            return False
        self._probed_at = now
        return True

    @property
    def is_known(self) -> bool:
        """Whether any broker's time is known."""
        return self._estimator.bounds_ms is not None

    @property
    def skew_ms(self) -> float | None:
        """How far the local clock is ahead of the brokers'; None if unknown."""
        bounds = self._estimator.bounds_ms
        return None if bounds is None else self._local_offset_ms - sum(bounds) / 2

    def status(self) -> dict[str, Any]:
        """For /status: ``skew_ms`` is right to ``uncertainty_ms``; corrected: the local clock is not followed."""
        bounds, skew_ms = self._estimator.bounds_ms, self.skew_ms
        return {
            "skew_ms": None if skew_ms is None else round(skew_ms),
            "uncertainty_ms": None if bounds is None else round((bounds[1] - bounds[0]) / 2, 1),
            "samples": self._estimator.samples,
            "sample_age_seconds": round(self.monotonic() - self._sampled_at, 1) if bounds is not None else None,
            "is_corrected": self._is_corrected,
        }

    def _note_step(self, now: float) -> None:
        wall_ms = self._local.wall_ms()
        if self.monotonic() - now > READING_SECONDS_MAX:
            return  # another thread ran between the two
        before_ms, self._local_offset_ms = self._local_offset_ms, wall_ms - now * 1000
        step_ms = self._local_offset_ms - before_ms
        if self.is_known and abs(step_ms) > STEP_MS:
            # The clock was set, or the machine was suspended together with its monotonic clock: only a broker knows the
            # time.
            self._doubted_since = now
            log.warning("this machine's clock was stepped; asking the brokers", step_seconds=round(step_ms / 1000, 3))

    def _choose(self) -> None:
        if self._doubted_since is not None:
            return
        local = self._local_offset_ms
        bounds, floor = self._estimator.bounds_ms, self._estimator.floor_ms
        if bounds is not None:
            self._is_corrected = not bounds[0] - TOLERATED_MS <= local <= bounds[1] + TOLERATED_MS
            self._offset_ms = bounds[0] if self._is_corrected else local
            self._log_skew(local - sum(bounds) / 2 if self._is_corrected else 0.0)
        elif floor is not None:
            # The local clock is neither contradicted nor confirmed.
            self._is_corrected = abs(floor - local) > TOLERATED_MS
            self._offset_ms = floor if self._is_corrected else local

    def _log_skew(self, skew_ms: float) -> None:
        if not self._is_wrong and abs(skew_ms) > WRONG_MS:
            self._is_wrong = True
            log.warning("this machine's clock is wrong; going by the brokers'", skew_seconds=round(skew_ms / 1000, 3))
        elif self._is_wrong and abs(skew_ms) < WRONG_MS / 2:
            self._is_wrong = False
            log.info("this machine's clock is right again", skew_seconds=round(skew_ms / 1000, 3))
