"""deploy/compose.yaml says what the real commands take, and mounts what is there. Runs promtool; asks a real broker."""

from __future__ import annotations

import re
import shutil
import socket
import struct
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer
import yaml

from forebay_producer.cli import app as forebay
from forebay_producer.settings import ProducerSettings
from forebay_sandbox import cli as forebay_sandbox
from forebay_sandbox.kafka.local import free_port
from forebay_sandbox.testing import tools
from forebay_schemas.runtime.settings import ENV_PREFIX, load_settings
from forebay_worker import cli as forebay_worker
from forebay_worker.settings import WorkerSettings

if TYPE_CHECKING:
    from forebay_sandbox.kafka.access import KafkaAccess

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPOSE = DEPLOY / "compose.yaml"
APPS = {"producer": forebay.app, "worker": forebay_worker.app, "sandbox": forebay_sandbox.app}


def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
    return found


def ours() -> dict[str, dict[str, Any]]:
    """The services that run an image of ours."""
    return {name: service for name, service in services().items() if "build" in service}


def deployable(service: dict[str, Any]) -> str:
    return Path(service["build"]["dockerfile"]).name.partition(".")[0]


def words_of(service: dict[str, Any]) -> list[str]:
    """The words behind the entry point: the service's command, else the image's."""
    if "command" in service:
        return list(service["command"])
    text = (DEPLOY.parent / service["build"]["dockerfile"]).read_text(encoding="utf-8")
    return list(yaml.safe_load(re.findall(r"^CMD (\[.*\])$", text, re.MULTILINE)[-1]))


@pytest.mark.parametrize("name", ours())
def test_the_commands_are_ones_that_ours_understand(name: str) -> None:
    service = ours()[name]
    command: Any = typer.main.get_command(APPS[deployable(service)])
    words = words_of(service)
    context = command.make_context(name, list(words))
    while hasattr(command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        sub_name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(sub_name, rest, parent=context)


def test_the_settings_are_accepted() -> None:
    for service in ours().values():
        environ = service.get("environment", {})
        assert all(name.startswith(ENV_PREFIX) for name in environ)
        if deployable(service) == "worker":
            settings = load_settings(WorkerSettings, flags={}, config=None, environ=environ)
            drain = float(service["stop_grace_period"].removesuffix("s"))
            assert drain >= settings.drain_seconds + 25
        elif environ:
            load_settings(ProducerSettings, flags={}, config=None, environ=environ)


def test_ours_run_with_a_read_only_root_and_no_capability() -> None:
    for service in ours().values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]


def test_what_is_mounted_is_there_and_read_only() -> None:
    mounts = [mount.split(":") for service in services().values() for mount in service.get("volumes", [])]
    assert len(mounts) >= 5
    for source, _, mode in mounts:
        assert mode == "ro"
        assert (DEPLOY / source).exists(), source


def kafka_is_asked(port: int) -> subprocess.CompletedProcess[bytes]:
    """Kafka's health check against a broker of this machine; Compose writes $ for $$."""
    program, *words = services()["kafka"]["healthcheck"]["test"][1:]
    script = words[-1].replace("$$", "$").replace("/9092", f"/{port}")
    return subprocess.run([program, *words[:-1], script], capture_output=True, timeout=30, check=False)


def test_kafka_is_healthy_when_it_names_a_broker_and_is_asked_without_a_java(kafka: KafkaAccess) -> None:
    port = int(kafka.bootstrap_servers.rpartition(":")[2])
    done = kafka_is_asked(port)
    assert (done.returncode, done.stderr) == (0, b"")
    assert kafka_is_asked(free_port()).returncode != 0

    check = services()["kafka"]["healthcheck"]
    assert check["test"][:3] == ["CMD", "bash", "-c"]
    assert ".sh" not in check["test"][-1]
    # Seldom once it runs, often while it starts.
    assert check["interval"] == "30s"
    assert check["start_interval"] == "1s"


def test_a_broker_that_names_none_yet_is_not_healthy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                # The size, the correlation id, no broker, no topic.
                asked = connection.recv(64)
                connection.sendall(struct.pack(">iiii", 12, *struct.unpack_from(">i", asked, 8), 0, 0))

        thread = threading.Thread(target=answer)
        thread.start()
        assert kafka_is_asked(server.getsockname()[1]).returncode == 1
        thread.join()


def test_images_of_others_are_of_one_release() -> None:
    images = [service["image"] for service in services().values() if "build" not in service]
    assert len(images) == 3
    for image in images:
        assert re.fullmatch(r"\$\{[A-Z]+_IMAGE:-[a-z/]+:v?\d+\.\d+\.\d+\}", image)


def test_nothing_listens_beyond_this_machine() -> None:
    ports = [port for service in services().values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_promtool_accepts_the_configuration_with_the_chart_s_rules(promtool: Path, tmp_path: Path) -> None:
    shutil.copy(DEPLOY / "compose/prometheus.yaml", tmp_path / "prometheus.yml")
    shutil.copytree(DEPLOY / "../helm/forebay/rules", tmp_path / "rules")
    done = subprocess.run(
        [promtool, "check", "config", tmp_path / "prometheus.yml"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rules found" in done.stdout


@pytest.mark.long
@pytest.mark.timeout(900)
def test_compose_s_own_reader_accepts_the_file(tmp_path: Path) -> None:
    def read(path: Path) -> subprocess.CompletedProcess[str]:
        command = [tools.tool("compose-spec"), path]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    done = read(COMPOSE)
    assert done.returncode == 0, done.stderr
    whole = yaml.safe_load(done.stdout)
    assert whole["services"]["worker"]["depends_on"]["topics"]["condition"] == "service_completed_successfully"

    wrong = tmp_path / "compose.yaml"
    wrong.write_text(COMPOSE.read_text(encoding="utf-8").replace("read_only:", "read_onely:"), encoding="utf-8")
    assert "read_onely" in read(wrong).stderr
