"""Progress of a scan: shown on a terminal once it takes long, and erased afterwards."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from forebay_producer.cli.progress import QUIET_SECONDS, ScanProgress
from forebay_schemas.clock import SystemClock


class _Clock(SystemClock):
    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = 50.0

    def monotonic(self) -> float:
        return self.seconds


@pytest.mark.parametrize(
    ("live", "seconds", "said"),
    [(True, QUIET_SECONDS - 0.1, False), (True, QUIET_SECONDS, True), (False, 60.0, False)],
)
def test_a_scan_says_how_far_it_is_once_it_takes_long(live: bool, seconds: float, said: bool) -> None:
    shown, clock = StringIO(), _Clock()
    with ScanProgress(live=live, console=Console(file=shown, force_terminal=True, width=80), clock=clock) as progress:
        progress.show(500, 40_000)
        clock.seconds += seconds
        progress.show(12_000, 40_000)
    text = shown.getvalue()
    assert ("12,000 of 40,000 read" in text) is said
    # The line is erased at last, and the cursor is back.
    assert text.endswith("\x1b[2K") or not said
