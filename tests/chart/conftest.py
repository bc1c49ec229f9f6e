"""The tools that tests of the chart run. None is fetched here, where a test's time limit runs: `make tools` does."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


def at_hand(name: str) -> Path:
    """The tool's path. Where it is missing: a failure in CI, a skip elsewhere."""
    from forebay_sandbox import tools

    path = tools.at_hand(name)
    if path is not None:
        return path
    missing = f"{name} is not at hand: run `forebay-sandbox tools fetch {name}` ({tools.how(name)})"
    if os.environ.get("CI") == "true":
        pytest.fail(missing)
    pytest.skip(missing)


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
