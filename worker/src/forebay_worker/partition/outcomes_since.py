"""The time from which a partition may have outcomes that its group's commits do not name. Pure; epoch milliseconds."""

from __future__ import annotations

from forebay_schemas.contract.offsets_metadata import LONG_AGO_MS, CommitMetadata

LATE_SECONDS = 60.0
"""For this long after a take-over without a hand-over, the former owner's outcomes may still arrive: one that was cut
off lives on, and delivers them when it is back. Commits keep the time from which to look for them."""


class OutcomesSince:
    """``former_ms``: from a former owner's commit. ``late_ms``: when this owner last looked for a former owner's
    outcomes, which may still arrive later; None for never."""

    __slots__ = ("_said", "former_ms", "late_ms")

    def __init__(self, former_ms: int | None) -> None:
        self.former_ms = former_ms
        self.late_ms: int | None = None
        self._said: tuple[int, CommitMetadata, int | None] | None = None

    def of(self, position: int, metadata: CommitMetadata, now_ms: int | None, *, is_unsettled: bool) -> int | None:
        """The time for a commit: now, unless a former owner left unnamed outcomes. An unchanged commit keeps its time,
        so that no commit is sent for the time alone.

        ``is_unsettled``: a former owner's requests are not known to have ended.
        """
        if now_ms is None:
            return None
        if is_unsettled:
            now_ms = LONG_AGO_MS if self.former_ms is None else self.former_ms
        elif (late_ms := self.late(now_ms)) is not None:
            now_ms = late_ms
        elif self._said is not None and self._said[:2] == (position, metadata):
            return self._said[2]
        self._said = (position, metadata, now_ms)
        return now_ms

    def late(self, now_ms: int | None) -> int | None:
        """The time from which a former owner's outcomes may have come after the search for them; None if none can."""
        if self.late_ms is not None and now_ms is not None and now_ms > self.late_ms + LATE_SECONDS * 1000:
            self.late_ms = None
        return self.late_ms
