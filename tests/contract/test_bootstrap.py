"""`tools/bootstrap`, with a Python that only records its calls: the order of installed lists, and the output."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from contract.test_images import asked_for, pins

ROOT = Path(__file__).parents[2]
PACKAGES = ("schemas", "producer", "worker", "sandbox")

PYTHON = """#!/bin/bash
case "$*" in
--version) echo Python 3.11.9 ;;
"-m venv .venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python && echo "#!$PWD/.venv/bin/python" > .venv/bin/pip ;;
-c*version\\)) echo 3.11.9 ;;
-c*) ;;
*) echo "$*" >> installed; if [ -e broken ]; then echo no such wheel; exit 1; fi ;;
esac
"""


class Clone:
    """A folder with what the script reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for path in ("tools/bootstrap", "requirements/run.txt", "requirements/dev.txt"):
            (folder / path).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / path, folder / path)
        for package in PACKAGES:
            (folder / package).mkdir()
            (folder / package / "pyproject.toml").write_text(package, encoding="utf-8")
        python = folder / "python"
        python.write_text(PYTHON, encoding="utf-8")
        python.chmod(0o755)

    def bootstrap(self, *arguments: str, code: int = 0) -> tuple[str, list[str]]:
        """Its output, and the lists that it installs."""
        done = subprocess.run(
            [self.folder / "tools/bootstrap", *arguments],
            env={**os.environ, "PYTHON": str(self.folder / "python")},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        log = self.folder / "installed"
        lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return done.stderr, [line.rpartition("/")[2] for line in lines if "--require-hashes" in line]


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def test_what_a_demo_needs_comes_first_and_the_tools_are_added_to_it(clone: Clone) -> None:
    said, installed = clone.bootstrap("run")
    assert installed == ["run.txt"]
    stages = said.splitlines()
    assert len(stages) == 4
    assert all(line.startswith("bootstrap: ") and line.endswith(" s") for line in stages), "each with its time"
    assert clone.bootstrap("run") == ("", [])
    made = (clone.folder / ".venv/bin/python").stat().st_ino
    _, installed = clone.bootstrap()
    assert installed == ["dev.txt"]
    assert (clone.folder / ".venv/bin/python").stat().st_ino == made, "the environment was kept"
    assert clone.bootstrap() == ("", [])
    assert clone.bootstrap("run") == ("", []), "who has everything has that too"


def test_what_has_changed_is_installed_anew(clone: Clone) -> None:
    clone.bootstrap()
    (clone.folder / "worker/pyproject.toml").write_text("changed", encoding="utf-8")
    assert clone.bootstrap("run")[1] == ["run.txt"]
    assert clone.bootstrap()[1] == ["dev.txt"]


def test_an_environment_of_another_place_is_made_anew(clone: Clone) -> None:
    clone.bootstrap("run")
    (clone.folder / ".venv/bin/pip").write_text("#!/elsewhere/.venv/bin/python\n", encoding="utf-8")
    (clone.folder / ".venv/stamp-run").unlink()
    said, _ = clone.bootstrap("run")
    assert "a virtual environment in .venv" in said


def test_what_fails_is_said_and_tried_again(clone: Clone) -> None:
    broken = clone.folder / "broken"
    broken.touch()
    said, _ = clone.bootstrap("run", code=1)
    assert said.endswith("failed\nno such wheel\n")
    broken.unlink()
    assert clone.bootstrap("run")[1] == ["run.txt"]
    assert clone.bootstrap("all", code=2)[1] == []


def test_a_demo_gets_the_versions_that_the_tests_run_with_and_no_tools_of_theirs() -> None:
    tested, run = pins("dev.txt"), pins("run.txt")
    assert {package: tested.get(package) for package in run} == run
    assert run.keys() & {"pytest", "ruff", "mypy", "hypothesis", "scipy", "xllamacpp", "kubernetes-validate"} == set()
    # Traces are an extra, which a demo does without.
    needed = {name for name in asked_for("worker") | asked_for("sandbox") if not name.startswith("opentelemetry")}
    assert needed - run.keys() == set()
