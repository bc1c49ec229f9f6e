"""External load: requests of nobody known that the engine has, by its own metrics. Pure."""

from __future__ import annotations

OTHERS_ALPHA = 0.3
"""Three readings make a mean: what other workers have in flight changes from one to the next."""


class ExternalLoad:
    """``requests``: on the average of the last readings; 0 when the engine does not say.

    Only what is above all that the workers lately had in flight counts, so it is rather too small.
    """

    def __init__(self) -> None:
        self.requests = 0.0
        self._most = self._most_before = 0

    def note_in_flight(self, in_flight: int) -> None:
        """What all workers together have in flight has changed."""
        self._most = max(self._most, in_flight)

    def read(self, engine_requests: float | None, *, is_new: bool, in_flight: int) -> None:
        """``engine_requests``: running and waiting, as the engine's last reading has them; ``is_new``: it was not seen
        before. ``in_flight``: of all workers now."""
        if engine_requests is None:
            self.requests = 0.0
        elif is_new:
            # A reading may be so old that it saw what the workers had in flight a second or two ago.
            seen = max(0.0, engine_requests - max(self._most, self._most_before))
            self.requests += OTHERS_ALPHA * (seen - self.requests)
        self._most_before, self._most = self._most, in_flight
