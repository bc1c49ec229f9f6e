"""One broker process of a local cluster: start, signals, log, restart on the same ports and data.

Starts a JVM and sends it signals; reads its log file; asks it for metadata.
"""

from __future__ import annotations

import re
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil
from confluent_kafka import KafkaException

from forebay_sandbox.errors import BrokerStartError, PortTakenError, SandboxError
from forebay_sandbox.process import END_SECONDS_MAX
from forebay_schemas.kafka.clients import make_admin
from forebay_schemas.kafka.connection import KafkaConnection

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence, Set
    from pathlib import Path

# 3 s were measured on two idle cores.
READY_SECONDS_MAX = 90
_LOG_LINES = 20
_LOG_ERRORS = 3
_PORT_TAKEN = re.compile(r"failed to bind to \S*?:(\d+)\b.*Address already in use")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The inputs of a broker's start. ``connection`` reaches this broker alone, by its first listener."""

    node_id: int
    command: Sequence[str]
    env: Mapping[str, str]
    folder: Path
    log_path: Path
    connection: KafkaConnection


class Broker:
    """A broker of a local cluster: start, signals, log. Not thread-safe."""

    def __init__(self, launch: Launch, *, ports: Mapping[str, int]) -> None:
        self._launch = launch
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self.node_id = launch.node_id
        self.ports = dict(ports)
        """The port of each listener, by the listener's name."""
        self.log_path = launch.log_path

    @property
    def pid(self) -> int | None:
        """The process id; None when the broker does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def exit_status(self) -> int | None:
        """The exit status as in subprocess: negative for a signal. None before the first start and while it runs."""
        return self._process.poll() if self._process is not None else None

    def launch(self) -> None:
        """Starts the process and returns at once. It must not be running."""
        if self.pid is not None:
            raise SandboxError(f"broker {self.node_id} is already running (process {self.pid})")
        with self.log_path.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                self._launch.command,
                cwd=self._launch.folder,
                env=self._launch.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C in the terminal is for the owner, who then stops the brokers in its own order.
                start_new_session=True,
            )

    def wait_ready(self, *, beside: Sequence[Broker] = ()) -> None:
        """Returns once the broker's metadata lists it and the brokers in ``beside``.

        Raises PortTakenError or BrokerStartError, also if one of those ended.
        """
        awaited = {self, *beside}

        def check() -> None:
            for broker in awaited:
                broker._raise_if_ended()

        wait_for_metadata(
            self._launch.connection,
            expected={broker.node_id for broker in awaited},
            check=check,
            describe=self.log_tail,
        )

    def start(self) -> None:
        """Starts it on its ports and data, and waits until it answers."""
        self.launch()
        self.wait_ready()

    def stop(self) -> None:
        """Sends SIGTERM, so that it moves its leaderships and closes its files; SIGKILL if that takes too long."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        # A paused broker would not see the signal.
        self._process.send_signal(signal.SIGCONT)
        try:
            self._process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Sends SIGKILL: nothing is flushed, and the broker does not unregister."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(END_SECONDS_MAX)

    def pause(self) -> None:
        """Sends SIGSTOP: its connections stay open and nothing answers."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Sends SIGCONT, after `pause`."""
        self._running().send_signal(signal.SIGCONT)

    def resident_bytes(self) -> int:
        """Memory in use by the process."""
        return int(psutil.Process(self._running().pid).memory_info().rss)

    def log_tail(self) -> str:
        """The first errors and the last lines of its log since the last launch."""
        lines = self._log().splitlines()
        # The cause is often followed by pages about the shutdown.
        errors = [line for line in lines[:-_LOG_LINES] if " ERROR " in line]
        return "\n".join([*errors[:_LOG_ERRORS], *lines[-_LOG_LINES:]])

    def reap(self) -> None:
        """Collects the exit status after something else has ended the process."""
        if self._process is not None:
            self._process.wait(END_SECONDS_MAX)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise SandboxError(f"broker {self.node_id} is not running; see {self.log_path}")
        return self._process

    def _log(self) -> str:
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def _raise_if_ended(self) -> None:
        if self._process is None or self._process.poll() is None:
            return
        if taken := _PORT_TAKEN.search(self._log()):
            raise PortTakenError(int(taken.group(1)), fix="free it, or choose another port")
        raise BrokerStartError(
            f"broker {self.node_id} ended with status {self._process.returncode} (log: {self.log_path}):\n"
            + self.log_tail()
        )


def wait_for_metadata(
    connection: KafkaConnection,
    *,
    expected: Set[int],
    check: Callable[[], None] = lambda: None,
    describe: Callable[[], str] = str,
    within_seconds: float = READY_SECONDS_MAX,
) -> None:
    """Returns once the metadata lists the ``expected`` node ids.

    Calls ``check`` in each round, which may raise. After ``within_seconds``, raises a BrokerStartError whose message
    ends with ``describe()``.
    """
    quick = {"reconnect.backoff.ms": "20", "reconnect.backoff.max.ms": "100"}
    admin = make_admin(
        KafkaConnection(bootstrap_servers=connection.bootstrap_servers, properties={**quick, **connection.properties}),
        client_id="forebay-sandbox-ready",
    )
    deadline = time.monotonic() + within_seconds
    seen: set[int] = set()
    while time.monotonic() < deadline:
        check()
        try:
            seen = set(admin.list_topics(timeout=0.5).brokers)
        except KafkaException:
            continue
        if seen >= expected:
            return
        time.sleep(0.05)
    raise BrokerStartError(
        f"{connection.bootstrap_servers} did not answer for brokers {sorted(expected)} within {within_seconds:.0f} s "
        f"(answered for: {sorted(seen) or 'none'})\n{describe()}"
    )
