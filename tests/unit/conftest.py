"""Set-up of every unit test: logging as it is before a command configures it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import structlog


@pytest.fixture(autouse=True)
def logging_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A test that runs a command configures structlog; with cached loggers `capture_logs` sees nothing from then on."""
    configure = structlog.configure

    def configure_uncached(**options: Any) -> None:
        configure(**options | {"cache_logger_on_first_use": False})

    monkeypatch.setattr(structlog, "configure", configure_uncached)
    yield
    structlog.reset_defaults()
