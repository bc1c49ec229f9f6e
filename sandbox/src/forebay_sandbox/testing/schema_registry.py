"""A real Schema Registry (Apicurio, which speaks Confluent's API) on this machine, for tests. Starts and ends a JVM."""

from __future__ import annotations

import http.client
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from forebay_sandbox.engine.process import call
from forebay_sandbox.errors import SandboxError
from forebay_sandbox.kafka.jars import REGISTRY_JAR, registry_home
from forebay_sandbox.kafka.java import find_java
from forebay_sandbox.kafka.local import free_port
from forebay_sandbox.process import RunRecord, Watchdog, clean_up_after_crashed_runs, new_token, token_option

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

JAVA_VERSION_MIN = 21
# 8 to 13 s were measured.
START_SECONDS_MAX = 120
_API = "/apis/ccompat/v7"
_LOG_LINES = 20


class RegistryStartError(SandboxError):
    """The registry ended, or did not answer in time. The message ends with its last log lines."""

    reason = "registry_start_failed"


class LocalRegistry:
    """A running registry, its schemas in memory."""

    def __init__(self, *, command: list[str], port: int, log_path: Path) -> None:
        self.url = f"http://127.0.0.1:{port}{_API}"
        """What FOREBAY_SCHEMA_REGISTRY_URL takes."""
        self._root = f"http://127.0.0.1:{port}"
        self._command = command
        self._log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, once, and return when it answers."""
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                tail = "\n".join(self._log_path.read_text(errors="replace").splitlines()[-_LOG_LINES:])
                raise RegistryStartError(f"the Schema Registry at {self.url} does not answer:\n{tail}")
            time.sleep(0.1)

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _answers(self) -> bool:
        try:
            return call(self._root, "GET", f"{_API}/subjects")[0] == 200
        except (OSError, http.client.HTTPException):
            return False


@contextmanager
def running_registry(*, log_dir: Path) -> Iterator[LocalRegistry]:
    """A registry that answers, ended with the block, and with this process however it ends.

    Raises PrerequisiteMissingError, JarsError, RegistryStartError.
    """
    clean_up_after_crashed_runs()
    java = find_java(JAVA_VERSION_MIN)
    home = registry_home(java)
    port, management_port = free_port(), free_port()
    token = new_token()
    command = [
        str(java.executable),
        "-Xmx384m",
        "-XX:TieredStopAtLevel=1",
        token_option(token),
        "-Dquarkus.http.host=127.0.0.1",
        f"-Dquarkus.http.port={port}",
        # Without these two it would listen on all addresses.
        "-Dquarkus.management.host=127.0.0.1",
        f"-Dquarkus.management.port={management_port}",
        "-jar",
        str(home / REGISTRY_JAR),
    ]
    watchdog = Watchdog(RunRecord.of_this_process(token=token, folders_to_delete=()))
    registry = LocalRegistry(command=command, port=port, log_path=log_dir / "schema-registry.log")
    try:
        registry.start()
        yield registry
    finally:
        registry.kill()
        watchdog.close()
