"""A real Apache Kafka cluster on this machine: formats its storage, starts and stops its JVMs on 127.0.0.1."""

from __future__ import annotations

import base64
import os
import random
import socket
import subprocess
import tempfile
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from forebay_sandbox.errors import BrokerStartError, PortTakenError
from forebay_sandbox.kafka.access import KafkaAccess, kafka_from_environment
from forebay_sandbox.kafka.broker import Broker, Launch
from forebay_sandbox.kafka.runtime import KafkaRuntime, kafka_runtime
from forebay_sandbox.kafka.spec import HOST, ClusterSpec, broker_properties, render_properties, with_ports
from forebay_sandbox.process import (
    RunRecord,
    Watchdog,
    clean_up_after_crashed_runs,
    end_all,
    kill_all,
    new_token,
    token_option,
)
from forebay_schemas.errors import UsageError
from forebay_schemas.kafka.connection import KafkaConnection

if TYPE_CHECKING:
    from collections.abc import Iterator

_FORMAT_SECONDS_MAX = 60
_PORT_ATTEMPTS = 5
_JAVA_ENDED_BY_SIGTERM = 143
# Below the range from which Linux gives ports to outgoing connections (32768 up): there, a client that reconnects to
# a broker that is down for a moment can be given the broker's own port, and the broker cannot come back.
_PORTS = range(15_000, 32_000)
_ports = random.SystemRandom()
_given: set[int] = set()


def free_port() -> int:
    """An unused port on 127.0.0.1. Returns no port twice in one process."""
    while True:
        port = _ports.choice(_PORTS)
        if port not in _given and port_is_free(port):
            _given.add(port)
            return port


def port_is_free(port: int) -> bool:
    """Whether a server could listen on this port of 127.0.0.1."""
    with socket.socket() as probe:
        # As servers do, so that connections in TIME_WAIT do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


class LocalKafka(KafkaAccess):
    """A cluster of our own. `start_kafka` and `running_kafka` make one."""

    def __init__(
        self,
        spec: ClusterSpec,
        *,
        runtime: KafkaRuntime,
        data_dir: Path,
        log_dir: Path,
        token: str,
        jvm_options: tuple[str, ...] = (),
    ) -> None:
        """``spec`` has all its ports. Starts nothing yet."""
        servers = [f"{HOST}:{broker.listeners[0].port}" for broker in spec.brokers]
        super().__init__(KafkaConnection(bootstrap_servers=",".join(servers), properties=dict(spec.client_properties)))
        self.spec = spec
        self.data_dir = data_dir
        self.token = token
        self._runtime = runtime
        self._jvm_options = (token_option(token), *jvm_options)
        self.brokers = tuple(
            self._broker(node_id, server=server, log_dir=log_dir) for node_id, server in enumerate(servers, start=1)
        )

    def bootstrap_of(self, listener: str) -> str:
        """The ``bootstrap.servers`` of another listener, by its advertised ports."""
        found = [one for broker in self.spec.brokers for one in broker.listeners if one.name == listener]
        return ",".join(f"{HOST}:{one.advertised_port or one.port}" for one in found)

    def start(self) -> None:
        """Formats new storage, starts all brokers, and waits until the metadata of each lists all others."""
        self._write_properties()
        self._format()
        for broker in self.brokers:
            broker.launch()
        for broker in self.brokers:
            broker.wait_ready(beside=self.brokers)

    def kill(self) -> None:
        """Sends SIGKILL to every broker."""
        kill_all(self.token)
        for broker in self.brokers:
            broker.reap()

    def stop(self) -> None:
        """Stops every broker tidily."""
        end_all(self.token)
        for broker in self.brokers:
            broker.reap()

    def _broker(self, node_id: int, *, server: str, log_dir: Path) -> Broker:
        spec = self.spec.brokers[node_id - 1]
        heap = (f"-Xmx{self.spec.heap_mib}m", "-XX:+ExitOnOutOfMemoryError")
        properties = str(self._properties_path(node_id))
        launch = Launch(
            node_id=node_id,
            command=self._runtime.command("kafka.Kafka", properties, options=(*heap, *self._jvm_options)),
            env=os.environ | dict(self.spec.env),
            folder=self.data_dir,
            log_path=log_dir / f"broker-{node_id}.log",
            connection=KafkaConnection(bootstrap_servers=server, properties=dict(self.spec.client_properties)),
        )
        return Broker(launch, ports={one.name: one.port for one in spec.listeners})

    def _properties_path(self, node_id: int) -> Path:
        return self.data_dir / f"broker-{node_id}.properties"

    def _storage(self, node_id: int) -> Path:
        return self.data_dir / f"broker-{node_id}"

    def _write_properties(self) -> None:
        for broker in self.brokers:
            properties = broker_properties(self.spec, broker.node_id, data_dir=self._storage(broker.node_id))
            path = self._properties_path(broker.node_id)
            # It may contain test passwords.
            path.touch(mode=0o600)
            path.write_text(render_properties(properties), encoding="ascii")

    def _format(self) -> None:
        """Formats the storage of brokers that have none. In parallel, as each takes a JVM and a second."""
        found = sorted(self.data_dir.glob("broker-*/meta.properties"))
        if found and len(found) != len(self.brokers):
            raise UsageError(
                "brokers",
                f"{self.data_dir} holds the data of {len(found)} broker(s), not {len(self.brokers)}",
                fix=f"ask for {len(found)}, choose another folder, or delete that one",
            )
        if found:
            return
        cluster_id = base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        # Marked like the brokers, so that it ends with them if this process is killed now.
        options = ("-Xmx128m", "-Dforebay.log.level=WARN", token_option(self.token))
        paths = [str(self._properties_path(broker.node_id)) for broker in self.brokers]
        runs = [
            subprocess.Popen(
                self._runtime.command(
                    "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", path, options=options
                ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for path in paths
        ]
        outputs = []
        try:
            outputs = [run.communicate(timeout=_FORMAT_SECONDS_MAX)[0] for run in runs]
        finally:
            for run in runs:
                with run:
                    run.kill()
        for run, output in zip(runs, outputs, strict=True):
            if run.returncode != 0:
                raise BrokerStartError(f"formatting the storage failed with status {run.returncode}:\n{output.strip()}")


def launch_kafka(spec: ClusterSpec, *, data_dir: Path, log_dir: Path, token: str) -> LocalKafka:
    """Starts a cluster and waits for it. Leaves nothing running on failure. The caller must stop it.

    Ports that were not asked for are picked again when someone else takes one in between.
    Raises PortTakenError for one that was asked for.
    """
    clean_up_after_crashed_runs()
    runtime = kafka_runtime()
    runtime.record_class_archive(lambda option: _run_once(runtime, option))
    return _launch(spec, runtime=runtime, data_dir=data_dir, log_dir=log_dir, token=token)


def _launch(
    spec: ClusterSpec,
    *,
    runtime: KafkaRuntime,
    data_dir: Path,
    log_dir: Path,
    token: str,
    jvm_options: tuple[str, ...] = (),
) -> LocalKafka:
    asked = {one.port for broker in spec.brokers for one in broker.listeners if one.port}
    for port in sorted(asked):
        if not port_is_free(port):
            raise PortTakenError(port, fix="free it, or choose another port")
    data_dir.mkdir(parents=True, exist_ok=True)
    log_dir.mkdir(parents=True, exist_ok=True)
    attempt = 1
    while True:
        cluster = LocalKafka(
            with_ports(spec, free_port),
            runtime=runtime,
            data_dir=data_dir,
            log_dir=log_dir,
            token=token,
            jvm_options=jvm_options,
        )
        try:
            cluster.start()
        except BaseException as error:
            cluster.kill()
            if isinstance(error, PortTakenError) and error.port not in asked and attempt < _PORT_ATTEMPTS:
                attempt += 1
                continue
            raise
        return cluster


def _run_once(runtime: KafkaRuntime, option: str) -> bool:
    """Runs a broker with one more JVM option until it answers; returns whether it stopped tidily."""
    with _ended_with_this_process(data_dir=None) as (token, folder):
        cluster = _launch(
            ClusterSpec(), runtime=runtime, data_dir=folder, log_dir=folder, token=token, jvm_options=(option,)
        )
        cluster.stop()
        return cluster.brokers[0].exit_status == _JAVA_ENDED_BY_SIGTERM


@contextmanager
def _ended_with_this_process(*, data_dir: Path | None) -> Iterator[tuple[str, Path]]:
    """A run's token and data folder. Its processes end with the block or this process; a folder of ours is deleted."""
    folder = Path(tempfile.mkdtemp(prefix="forebay-kafka-")) if data_dir is None else data_dir
    token = new_token()
    doomed = (folder,) if data_dir is None else ()
    watchdog = Watchdog(RunRecord.of_this_process(token=token, folders_to_delete=doomed))
    try:
        yield token, folder
    finally:
        watchdog.close()


@contextmanager
def local_kafka(
    spec: ClusterSpec | None = None, *, data_dir: Path | None = None, log_dir: Path | None = None
) -> Iterator[LocalKafka]:
    """A new cluster that ends with the block, or with this process, even after kill -9.

    Without ``data_dir`` the data lies in a temporary folder, which is deleted at the end; ``log_dir`` keeps the logs.
    """
    with _ended_with_this_process(data_dir=data_dir) as (token, folder):
        cluster = launch_kafka(spec or ClusterSpec(), data_dir=folder, log_dir=log_dir or folder, token=token)
        try:
            yield cluster
        finally:
            # The data is deleted, so it need not be closed tidily.
            if data_dir is None:
                cluster.kill()
            else:
                cluster.stop()


@contextmanager
def running_kafka(
    spec: ClusterSpec | None = None, *, data_dir: Path | None = None, log_dir: Path | None = None
) -> Iterator[KafkaAccess]:
    """The cluster of FOREBAY_BOOTSTRAP_SERVERS, which keeps running; without that variable, `local_kafka`."""
    if (given := kafka_from_environment()) is not None:
        yield given
        return
    with local_kafka(spec, data_dir=data_dir, log_dir=log_dir) as cluster:
        yield cluster
