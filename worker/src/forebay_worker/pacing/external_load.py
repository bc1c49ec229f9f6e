"""External load: requests at the engine from clients other than the workers, by its own metrics. Pure."""

from __future__ import annotations

OTHERS_ALPHA = 0.3
"""A mean of about three readings: the other workers' numbers in flight change between readings."""


class ExternalLoad:
    """``requests``: mean of the last readings; 0 if the engine reports none.

    Only requests above the workers' recent maximum in flight count, so the figure is rather too low.
    """

    def __init__(self) -> None:
        self.requests = 0.0
        self._most = self._most_before = 0

    def note_in_flight(self, in_flight: int) -> None:
        """Notes a change of the number that all workers together have in flight."""
        self._most = max(self._most, in_flight)

    def read(self, engine_requests: float | None, *, is_new: bool, in_flight: int) -> None:
        """``engine_requests``: running and waiting, from the engine's last reading. ``is_new``: the reading was not
        seen before. ``in_flight``: of all workers now."""
        if engine_requests is None:
            self.requests = 0.0
        elif is_new:
            # A reading may show the engine as of a second or two ago.
            seen = max(0.0, engine_requests - max(self._most, self._most_before))
            self.requests += OTHERS_ALPHA * (seen - self.requests)
        self._most_before, self._most = self._most, in_flight
