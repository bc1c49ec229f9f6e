"""The CustomResourceDefinitions that are kept are those that the pinned versions make. Runs controller-gen."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from chart.strict import CRDS
from harness.tools_at_hand import at_hand

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

_MAKE = Path(__file__).parents[2] / "tools" / "make-crd-schemas"


def test_the_kept_definitions_are_what_the_pinned_versions_make(tmp_path: Path) -> None:
    at_hand("controller-gen")
    subprocess.run([_MAKE, tmp_path], check=True, timeout=600)

    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert made == {path.name: path.read_text() for path in CRDS}
