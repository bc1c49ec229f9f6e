"""The chart's own unit tests, helm/forebay/tests, run by helm-unittest."""

from __future__ import annotations

import subprocess
from pathlib import Path

from chart.rendered import CHART


def test_the_templates_pass_their_unit_tests(helm_unittest: Path) -> None:
    done = subprocess.run([helm_unittest, CHART, "--strict"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
