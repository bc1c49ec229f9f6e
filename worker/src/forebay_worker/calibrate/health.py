"""When a calibration must stop to protect its backend: answers and engine readings go in, a cause comes out. Pure.

A calibration looks for the backend's limit, and must not bring the backend down.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from forebay_worker.calibrate.samples import Ended, Trouble
from forebay_worker.signals.readings import EngineReading

IN_A_ROW: Final = 5
"""Failures with no success between them. A crash cuts all requests in flight at once, so it is found soon."""
UNREACHED_IN_A_ROW: Final = 3
TIMED_OUT_MAX: Final = 2
LAST: Final = 50
SHARE_MAX: Final = 0.1
SHARE_OF_MIN: Final = 20
SILENT_SECONDS: Final = 30.0
KV_FULL: Final = 0.95
"""As in `slo_aimd`: the engine is about to preempt."""
KV_LOOKS: Final = 2
PREEMPTIONS_MAX: Final = 2
"""One may be chance. A preempted request is prefilled twice, so more of them show a load that is too high."""


class Health:
    """The backend's health during one calibration. All times are monotonic seconds."""

    def __init__(self, *, now: float) -> None:
        self._last: deque[bool] = deque(maxlen=LAST)
        self._in_a_row = 0
        self._unreached = 0
        self._timed_out = 0
        self._error = ""
        self._heard_at = now
        self._kv_looks = 0
        self._looked_at = now
        self._preemptions: float | None = None

    def received(self, now: float) -> None:
        """Notes a piece of an answer."""
        self._heard_at = now

    def ended(self, one: Ended) -> str | None:
        """Notes an ended request. Returns why to stop; None to go on."""
        self._heard_at = max(self._heard_at, one.ended)
        if one.trouble is None:
            self._in_a_row = self._unreached = 0
            self._last.append(True)
            return None
        self._error = one.error or one.trouble.value
        self._last.append(False)
        self._in_a_row += 1
        self._unreached = self._unreached + 1 if one.trouble is Trouble.UNREACHED else 0
        self._timed_out += one.trouble is Trouble.TIMED_OUT
        if self._unreached >= UNREACHED_IN_A_ROW:
            return f"the backend takes no connections: {self._error}"
        if self._timed_out >= TIMED_OUT_MAX:
            return f"{self._timed_out} requests timed out: {self._error}"
        if self._in_a_row >= IN_A_ROW:
            return f"{self._in_a_row} requests failed in a row, the last one: {self._error}"
        failures = self._last.count(False)
        if len(self._last) >= SHARE_OF_MIN and failures > SHARE_MAX * len(self._last):
            return f"{failures} of the last {len(self._last)} requests failed, the last one: {self._error}"
        return None

    def look(self, now: float, *, engine: EngineReading | None, in_flight: int) -> str | None:
        """Returns why to stop, by the engine's readings and by missing tokens; call it every second or so."""
        if not in_flight:
            self._heard_at = now
        elif now - self._heard_at > SILENT_SECONDS:
            return f"{in_flight} requests are in flight, and for {SILENT_SECONDS:.0f} s not a token came"
        if engine is None or engine.at <= self._looked_at:
            return None
        self._looked_at = engine.at
        self._kv_looks = self._kv_looks + 1 if (engine.kv_used_share or 0.0) > KV_FULL else 0
        if self._kv_looks >= KV_LOOKS:
            return f"the KV cache is {engine.kv_used_share:.0%} full"
        if engine.preemptions_total is not None:
            if self._preemptions is None or engine.preemptions_total < self._preemptions:
                self._preemptions = engine.preemptions_total
            grown = engine.preemptions_total - self._preemptions
            if grown > PREEMPTIONS_MAX:
                return f"the engine preempted {grown:.0f} requests: its KV cache is too small for so many at once"
        return None
