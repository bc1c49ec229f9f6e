"""A stack that outlives the command that starts it: `forebay-sandbox up` and `down`. Its state is a file in its folder.

Starts and ends processes; touches none without the run's token. Kafka is that of `forebay-sandbox kafka`.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from forebay_sandbox.engine.process import call
from forebay_sandbox.errors import SandboxError
from forebay_sandbox.files import locked
from forebay_sandbox.kafka import service as kafka_service
from forebay_sandbox.kafka.access import KafkaAccess, kafka_from_environment
from forebay_sandbox.kafka.local import port_is_free
from forebay_sandbox.kafka.spec import HOST
from forebay_sandbox.process import end_all, new_token, processes_of
from forebay_sandbox.run_state import LOCK, StateFile
from forebay_sandbox.stack.stack import MODEL, Launcher, backend_settings
from forebay_schemas.kafka.connection import KafkaConnection

DEFAULT_FOLDER: Final = Path(".sandbox/stack")
_DEFAULT_POOL: Final = "default"
_LOCK_SECONDS_MAX: Final = 180.0
_SETTLE_SECONDS_MAX: Final = 20.0
"""For a complete stack: a worker is briefly not ready during each rebalance."""
_LOOK_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class StackStatus:
    """A stack that runs."""

    pool: str
    bootstrap_servers: str
    local_kafka: bool
    """Whether the cluster is the one of `forebay-sandbox kafka`."""
    engine_url: str
    worker_urls: tuple[str, ...]
    exporter_url: str
    log_dir: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """The content of the state file. ``status`` is None until all parts are ready."""

    token: str
    status: StackStatus | None


def _run_of(fields: Mapping[str, Any]) -> _Run:
    status = fields["status"]
    if status is not None:
        status = StackStatus(
            pool=str(status["pool"]),
            bootstrap_servers=str(status["bootstrap_servers"]),
            local_kafka=bool(status["local_kafka"]),
            engine_url=str(status["engine_url"]),
            worker_urls=tuple(map(str, status["worker_urls"])),
            exporter_url=str(status["exporter_url"]),
            log_dir=str(status["log_dir"]),
        )
    return _Run(token=str(fields["token"]), status=status)


_RUNS: Final = StateFile(of_fields=_run_of, processes="processes")


def up(*, folder: Path, warn: Callable[[str], None]) -> tuple[StackStatus, bool]:
    """Starts the stack unless it runs; returns its status, and whether this call started it.

    Calls ``warn`` with the reason before it ends processes of an earlier stack.

    Kafka is that of FOREBAY_BOOTSTRAP_SERVERS, else the one of `forebay-sandbox kafka up`, which is started when it
    does not run: on port 9092 where that is free. Raises ``ForebayError``.
    """
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / LOCK, wait_seconds=_LOCK_SECONDS_MAX):
        run = _RUNS.read(folder)
        given = kafka_from_environment()
        if given is not None and run is not None and _is_local(given, run.status):
            given = None
        kafka = given or _local_kafka(folder)
        pool = os.environ.get("FOREBAY_POOL", _DEFAULT_POOL)
        trouble = None
        if run is not None and processes_of(run.token):
            trouble = _trouble(run, run.status, kafka, pool=pool)
            if trouble is None and run.status is not None:
                return run.status, False
        if given is not None:
            # Checked before anything is ended: a running stack is worth more than an unreachable cluster.
            given.require_reachable()
        # A partial stack, or one at a lost cluster, is stopped before the whole is started.
        if trouble is not None:
            warn(f"{trouble}: restarting it as a whole, with a new engine at a new URL")
        _RUNS.end(folder)
        token = new_token()
        # Before the first process starts, so that `down` finds everything after a killed `up`.
        _RUNS.write(folder, _Run(token=token, status=None))
        try:
            launcher = Launcher(token=token, folder=folder, log_dir=folder)
            stack = launcher.start(kafka=kafka, pool=pool, engines=("engine",))
            exporter = launcher.start_exporter(kafka=kafka, pool=pool)
        except BaseException:
            end_all(token)
            raise
        status = StackStatus(
            pool=pool,
            bootstrap_servers=kafka.bootstrap_servers,
            local_kafka=given is None,
            engine_url=stack.engines[0].url,
            worker_urls=tuple(worker.url for worker in stack.workers),
            exporter_url=exporter.url,
            log_dir=str(folder),
        )
        _RUNS.write(folder, _Run(token=token, status=status))
        return status, True


def down(*, folder: Path) -> bool:
    """Stops the stack and its local Kafka tidily, and keeps the data. False if nothing ran."""
    folder = folder.resolve()
    if not folder.is_dir():
        return False
    with locked(folder / LOCK, wait_seconds=_LOCK_SECONDS_MAX):
        ended = _RUNS.end(folder)
        return kafka_service.down(data_dir=_kafka_folder(folder)) or ended


def running(*, folder: Path) -> tuple[StackStatus, KafkaAccess]:
    """The stack that `up` started, and its cluster. Raises ``SandboxError`` if none runs."""
    run = _RUNS.read(folder.resolve())
    if run is None or run.status is None or not processes_of(run.token):
        raise SandboxError("no stack runs here; start one with: make up")
    status = run.status
    given = None if status.local_kafka else kafka_from_environment()
    return status, given or KafkaAccess(KafkaConnection(bootstrap_servers=status.bootstrap_servers, properties={}))


def next_steps(status: StackStatus) -> str:
    """The next commands for the user."""
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 50})
    pool = "" if status.pool == _DEFAULT_POOL else f" FOREBAY_POOL={status.pool}"
    workers = " ".join(f"{url}/status" for url in status.worker_urls)
    metrics = " ".join(f"{url}/metrics" for url in (*status.worker_urls, status.exporter_url))
    worker = backend_settings(status.engine_url) | {"FOREBAY_OPS_HOST": HOST}
    settings = " ".join(f"{name}={value}" for name, value in worker.items())
    return f"""\
engine {status.engine_url}   workers {workers}
metrics {metrics}
Try:
  export FOREBAY_BOOTSTRAP_SERVERS={status.bootstrap_servers}{pool} PATH="{Path(sys.executable).parent}:$PATH"
  echo '{body}' | forebay submit - --tier high --wait
  forebay results
  forebay backlog
One more worker with the same settings, until Ctrl-C:
  {settings} forebay-worker run --ops-port 0
Stop it with: make down"""


def _kafka_folder(folder: Path) -> Path:
    return folder.parent / kafka_service.DEFAULT_DATA_DIR.name


def _is_local(given: KafkaAccess, before: StackStatus | None) -> bool:
    """Whether FOREBAY_BOOTSTRAP_SERVERS is what `up` printed. The cluster is then ours to restart."""
    return before is not None and before.local_kafka and given.bootstrap_servers == before.bootstrap_servers


def _local_kafka(folder: Path) -> KafkaAccess:
    data_dir = _kafka_folder(folder)
    status = kafka_service.status(data_dir=data_dir)
    if status.state is not kafka_service.State.RUNNING:
        port = kafka_service.DEFAULT_PORT if port_is_free(kafka_service.DEFAULT_PORT) else 0
        status, _ = kafka_service.up(data_dir=data_dir, port=port, brokers=None)
    return KafkaAccess(KafkaConnection(bootstrap_servers=status.bootstrap_servers, properties={}))


def _trouble(run: _Run, status: StackStatus | None, kafka: KafkaAccess, *, pool: str) -> str | None:
    """Why the running processes must be replaced; None if they are the whole stack."""
    if status is None:
        return "an earlier start was not finished"
    if (status.bootstrap_servers, status.pool) != (kafka.bootstrap_servers, pool):
        return f"the stack ran at {status.bootstrap_servers} with pool {status.pool}"
    urls = {"engine": f"{status.engine_url}/health"}
    urls |= {f"worker-{number}": f"{url}/readyz" for number, url in enumerate(status.worker_urls, 1)}
    urls["exporter"] = f"{status.exporter_url}/readyz"
    whole = len(processes_of(run.token)) == len(urls)
    deadline = time.monotonic() + (_SETTLE_SECONDS_MAX if whole else 0.0)
    while gone := [name for name, url in urls.items() if not _answers(url)]:
        if time.monotonic() >= deadline:
            return f"the stack was incomplete ({', '.join(gone)} gone or not ready)"
        time.sleep(_LOOK_SECONDS)
    return None if whole else "the stack was incomplete"


def _answers(url: str) -> bool:
    base, _, path = url.rpartition("/")
    try:
        return call(base, "GET", f"/{path}")[0] == 200
    except (OSError, http.client.HTTPException):
        return False
