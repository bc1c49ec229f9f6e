"""A local Kafka that outlives the command that starts it: up, down, status. Its state is a file in its data folder.

Starts and ends JVMs; never touches a process without the run's token.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from forebay_sandbox.errors import BrokerStartError, PortTakenError
from forebay_sandbox.files import locked
from forebay_sandbox.kafka.broker import READY_SECONDS_MAX, wait_for_metadata
from forebay_sandbox.kafka.local import launch_kafka
from forebay_sandbox.kafka.spec import BrokerSpec, ClusterSpec, Listener
from forebay_sandbox.process import new_token, processes_of
from forebay_sandbox.run_state import LOCK, STATE, StateFile
from forebay_schemas.errors import UsageError
from forebay_schemas.kafka.connection import KafkaConnection

DEFAULT_DATA_DIR = Path(".sandbox/kafka")
DEFAULT_PORT = 9092
_ANSWER_SECONDS = 10.0


class State(StrEnum):
    """The state of a cluster."""

    RUNNING = "running"
    DEGRADED = "degraded"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The status of a cluster. ``pids``: of the running brokers. ``brokers``: how many the complete cluster has."""

    state: State
    bootstrap_servers: str
    brokers: int
    pids: tuple[int, ...]
    resident_bytes: int
    data_dir: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    token: str
    ports: tuple[int, ...]

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)


def _run_of(fields: Mapping[str, Any]) -> _Run:
    return _Run(token=str(fields["token"]), ports=tuple(int(port) for port in fields["ports"]))


_RUNS: Final = StateFile(of_fields=_run_of, processes="brokers")


def up(*, data_dir: Path, port: int | None, brokers: int | None) -> tuple[Status, bool]:
    """Starts the cluster of ``data_dir`` unless it runs; returns its status, and whether this call started it.

    ``port`` is the first broker's, the others take the next ones; 0 picks; None: what runs already, else 9092.
    ``brokers`` None: what runs already or the data was made for, else 1.
    Raises UsageError when what runs, or the data, is of another number or port; PortTakenError; BrokerStartError.
    """
    folder = data_dir.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / LOCK, wait_seconds=READY_SECONDS_MAX):
        now = status(data_dir=folder)
        if now.state is State.RUNNING:
            _require_same(now, port=port, brokers=brokers)
            return now, False
        # A partial cluster is stopped before the whole is started.
        _RUNS.end(folder)
        count = brokers or len(list(folder.glob("broker-*/meta.properties"))) or 1
        first = DEFAULT_PORT if port is None else port
        asked = [first + i if first else 0 for i in range(count)]
        spec = ClusterSpec(brokers=tuple(BrokerSpec(listeners=(Listener(name="DIRECT", port=p),)) for p in asked))
        run = _Run(token=new_token(), ports=tuple(asked))
        # Before the first process starts, so that `down` finds everything after a killed `up`.
        _RUNS.write(folder, run)
        try:
            cluster = launch_kafka(spec, data_dir=folder, log_dir=folder, token=run.token)
        except PortTakenError as error:
            raise PortTakenError(
                error.port, fix="stop that program, or choose another with --port (0 picks a free one)"
            ) from None
        _RUNS.write(folder, _Run(token=run.token, ports=tuple(broker.ports["DIRECT"] for broker in cluster.brokers)))
        return status(data_dir=folder), True


def down(*, data_dir: Path) -> bool:
    """Stops the cluster of ``data_dir`` tidily and keeps its data. False if nothing ran."""
    folder = data_dir.resolve()
    if not folder.is_dir():
        return False
    with locked(folder / LOCK, wait_seconds=READY_SECONDS_MAX):
        return _RUNS.end(folder)


def delete(*, data_dir: Path) -> None:
    """`down`, then deletes the data. Raises ``UsageError`` for a folder in which no cluster was started."""
    folder = data_dir.resolve()
    down(data_dir=folder)
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not (folder / LOCK).exists() or not (folder / STATE).exists():
        raise UsageError("data-dir", f"{folder} was not made by `kafka up`", fix="delete it by hand if you mean it")
    shutil.rmtree(folder)


def status(*, data_dir: Path) -> Status:
    """The status of the cluster of ``data_dir``. Running: every broker runs and answers."""
    folder = data_dir.resolve()
    run = _RUNS.read(folder)
    living = processes_of(run.token) if run else []
    state = State.STOPPED
    if run and living:
        state = State.RUNNING if len(living) == len(run.ports) and _answers(run) else State.DEGRADED
    return Status(
        state=state,
        bootstrap_servers=run.bootstrap_servers if run and state is not State.STOPPED else "",
        brokers=len(run.ports) if run else 0,
        pids=tuple(process.pid for process in living),
        resident_bytes=sum(process.memory_info().rss for process in living),
        data_dir=str(folder),
    )


def _answers(run: _Run) -> bool:
    try:
        wait_for_metadata(
            KafkaConnection(bootstrap_servers=run.bootstrap_servers, properties={}),
            expected=set(range(1, len(run.ports) + 1)),
            within_seconds=_ANSWER_SECONDS,
        )
    except BrokerStartError:
        return False
    return True


def _require_same(now: Status, *, port: int | None, brokers: int | None) -> None:
    first = int(now.bootstrap_servers.split(",")[0].rpartition(":")[2])
    fix = "run `forebay-sandbox kafka down` first, or leave the option out"
    if port and port != first:
        raise UsageError("port", f"the cluster of {now.data_dir} runs already, on port {first}", fix=fix)
    if brokers and brokers != now.brokers:
        raise UsageError("brokers", f"the cluster of {now.data_dir} runs already, with {now.brokers}", fix=fix)
