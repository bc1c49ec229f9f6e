"""Set-up of every test of the coordination: a log that prints nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Tracebacks in colour take longer than the tests."""
    with capture_logs():
        yield
