"""The tools that tests of the chart run. None is fetched here, where a test's time limit runs: `make tools` does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.tools_at_hand import at_hand

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def helm() -> Path:
    return at_hand("helm")


@pytest.fixture(scope="session")
def helm_unittest() -> Path:
    """helm-unittest as a program of its own: `helm-unittest CHART`."""
    return at_hand("helm-unittest")


@pytest.fixture(scope="session")
def promtool() -> Path:
    return at_hand("promtool")


@pytest.fixture(scope="session")
def prometheus() -> Path:
    return at_hand("prometheus")
