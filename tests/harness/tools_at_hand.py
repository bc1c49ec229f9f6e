"""Programs of others for tests: helm and the like. Fetches none, as a test's time limit runs: `make` targets do."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from forebay_sandbox.testing import tools

if TYPE_CHECKING:
    from pathlib import Path


def at_hand(name: str) -> Path:
    """The tool's path. Where it is missing: a failure in CI, a skip elsewhere."""
    path = tools.at_hand(name)
    if path is not None:
        return path
    missing = f"{name} is not at hand: run `forebay-sandbox tools fetch {name}` ({tools.how(name)})"
    if os.environ.get("CI") == "true":
        pytest.fail(missing)
    pytest.skip(missing)
