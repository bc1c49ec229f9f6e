"""The sandbox's Kafka goes when its owner goes, or outlives the command that started it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from forebay_sandbox.process import processes_of
from harness.records import one_broker, values_of
from harness.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_COMMAND = [sys.executable, "-c", "from forebay_sandbox.cli import main; main()", "kafka"]
_OWNER = """
import sys, time
from forebay_sandbox.kafka.local import local_kafka
with local_kafka() as cluster:
    print(cluster.token, cluster.data_dir, flush=True)
    time.sleep(600)
"""


@pytest.mark.long
def test_a_killed_owner_leaves_no_broker_and_no_data_even_if_the_broker_is_paused() -> None:
    with subprocess.Popen([sys.executable, "-c", _OWNER], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        token, data_dir = owner.stdout.readline().split()
        assert Path(data_dir).is_dir()
        (broker,) = processes_of(token)
        broker.suspend()
        owner.kill()

    wait_until("the broker is killed", lambda: not processes_of(token))
    wait_until("its data is deleted", lambda: not Path(data_dir).exists())


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Runs `forebay-sandbox kafka` with arguments in a folder of its own; at the end nothing of it is left."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}

    def run(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*_COMMAND, *args],
            cwd=tmp_path,
            env=environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    with ExitStack() as stack:
        stack.callback(run, "down", "--delete")
        yield run


@pytest.mark.long
def test_a_kafka_that_is_up_outlives_the_command_and_keeps_its_data(
    service: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    nothing = service("status")
    assert nothing.returncode == 1
    assert nothing.stderr.startswith(f"looked in {tmp_path / '.sandbox/kafka'};")
    first = service("up", "--port", "0")
    assert (first.returncode, first.stderr) == (0, f"Kafka is up; logs and data: {tmp_path / '.sandbox/kafka'}\n")
    servers = first.stdout.strip()
    again = service("up", "--output", "json")
    assert again.returncode == 0
    assert json.loads(again.stdout)["started"] is False
    assert json.loads(again.stdout)["bootstrap_servers"] == servers

    topic = one_broker(int(servers.rpartition(":")[2])).create_topic()
    assert service("tool", "console-producer", "--topic", topic, stdin="kept\n").returncode == 0
    answer = service("status", "--output", "json")
    assert answer.returncode == 0
    (pid,) = json.loads(answer.stdout)["pids"]

    psutil.Process(pid).kill()
    wait_until("the death is noticed", lambda: service("status").returncode == 1)
    assert service("up", "--port", servers.rpartition(":")[2]).stdout.strip() == servers
    assert values_of(one_broker(int(servers.rpartition(":")[2])), topic) == [b"kept"]

    assert service("down").stdout == "stopped\n"
    assert service("down").stdout.startswith(f"was not running; looked in {tmp_path / '.sandbox/kafka'}")
    assert (tmp_path / ".sandbox/kafka/broker-1.log").stat().st_size > 0
    assert service("down", "--delete").returncode == 0
    assert not (tmp_path / ".sandbox/kafka").exists()


def test_up_refuses_what_cannot_be(service: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        refused = service("up", "--port", str(port))
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"forebay-sandbox: port {port} on 127.0.0.1 is in use")
    assert "--port" in refused.stderr

    refused = service("up", "--brokers", "2")
    assert refused.returncode == 2
    assert refused.stderr == "forebay-sandbox: --brokers: 2 is not possible; give 1 or 3\n"

    refused = service("tool", "topik")
    assert refused.returncode == 2
    assert "did you mean topics?" in refused.stderr


def test_a_folder_that_is_not_ours_is_not_deleted(
    service: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()

    refused = service("down", "--delete", "--data-dir", "precious")

    assert refused.returncode == 2
    assert (tmp_path / "precious" / "file").exists()
