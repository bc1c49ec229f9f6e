"""`forebay doctor` and `forebay-worker doctor` on a real broker: healthy, and with one thing after the other wrong."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs leave these names out
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from forebay_sandbox.kafka import free_port
from harness.doctor import Examined, backend, black_hole, examine
from harness.nvml_stub import DRIVER_NOT_LOADED, NvmlStub, gpu_state

if TYPE_CHECKING:
    from forebay_sandbox.kafka_access import KafkaAccess
    from harness.producer_pool import ProducerPool
    from harness.served import Served

PACKAGES = ("forebay_producer", "forebay_worker")
HANDLER = {"FOREBAY_HANDLER": "harness.handlers:obey", "FOREBAY_GPU": "none"}
HOUR_SECONDS = 3_600.0


def settings_of(pool: ProducerPool, package: str) -> dict[str, str]:
    settings = {"FOREBAY_BOOTSTRAP_SERVERS": pool.kafka.bootstrap_servers, "FOREBAY_POOL": pool.name}
    return settings if package == "forebay_producer" else {**settings, **HANDLER}


def set_config(kafka: KafkaAccess, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = kafka.admin()  # must outlive what it was asked
    admin.incremental_alter_configs([resource])[resource].result(30)


def worker_with(backend_url: str, *options: str, **more: str) -> Examined:
    """No broker: what the backend is like is told all the same."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        servers = f"127.0.0.1:{taken.getsockname()[1]}"
    settings = {"FOREBAY_BOOTSTRAP_SERVERS": servers, "FOREBAY_GPU": "none", "FOREBAY_BACKEND_URL": backend_url}
    return examine("forebay_worker", {**settings, **more}, *options)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_healthy_pool_exits_0_with_nothing_wrong(producer_pool: ProducerPool, package: str) -> None:
    examined = examine(package, settings_of(producer_pool, package))
    assert (examined.code, examined.wrong()) == (0, {})
    for check in ("kafka.connection", "kafka.brokers", "topics", "topics.settings", "topics.replicas", "clock"):
        assert examined.status(check) == "ok"
    assert "no authorizer" in examined.text("permissions")


def test_looking_leaves_no_request_and_no_group_behind(producer_pool: ProducerPool) -> None:
    for package in PACKAGES:
        assert examine(package, settings_of(producer_pool, package)).code == 0
    assert producer_pool.all_records() == []
    admin = producer_pool.kafka.admin()
    groups = admin.list_consumer_groups(request_timeout=30).result().valid
    assert [group.group_id for group in groups if producer_pool.name in group.group_id] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_missing_topics_fail_and_only_what_needs_them_is_skipped(
    unmade_producer_pool: ProducerPool, package: str
) -> None:
    examined = examine(package, settings_of(unmade_producer_pool, package))
    assert (examined.code, examined.wrong()) == (1, {"topics": "failed"})
    assert f"forebay topics create --pool {unmade_producer_pool.name}" in examined.text("topics")
    assert examined.status("clock") == examined.status("topics.settings") == "skipped"


def test_drift_warns_and_names_the_setting(producer_pool: ProducerPool) -> None:
    topic = producer_pool.topics.results
    set_config(producer_pool.kafka, topic, "retention.ms", "60000")
    examined = examine("forebay_producer", settings_of(producer_pool, "forebay_producer"))
    assert (examined.code, examined.wrong()) == (0, {"topics.settings": "warning"})
    assert f"{topic}: retention.ms is 60000, should be 604800000" in examined.text("topics.settings")


def test_where_the_broker_does_not_stamp_the_clock_cannot_be_told(producer_pool: ProducerPool) -> None:
    set_config(producer_pool.kafka, producer_pool.topics.coordination, "message.timestamp.type", "CreateTime")
    examined = examine("forebay_worker", settings_of(producer_pool, "forebay_worker"))
    assert examined.status("clock") == "skipped"
    assert "needs LogAppendTime" in examined.text("clock")


@pytest.mark.parametrize(
    ("package", "ahead_seconds"), [("forebay_producer", HOUR_SECONDS), ("forebay_worker", -HOUR_SECONDS)]
)
def test_a_wrong_clock_is_told_with_how_wrong_it_is(
    producer_pool: ProducerPool, package: str, ahead_seconds: float
) -> None:
    examined = examine(package, settings_of(producer_pool, package), wall_ahead_seconds=ahead_seconds)
    assert (examined.code, examined.wrong()) == (0, {"clock": "warning"})
    text = examined.text("clock")
    said_seconds = float(text.split(" clock is ")[1].split(" s ")[0])
    assert said_seconds == pytest.approx(HOUR_SECONDS, abs=1)
    assert ("ahead of" if ahead_seconds > 0 else "behind") in text


@pytest.mark.parametrize("package", PACKAGES)
def test_no_broker_exits_3_and_skips_what_needs_one(package: str) -> None:
    settings = {"FOREBAY_BOOTSTRAP_SERVERS": f"127.0.0.1:{free_port()}", **(HANDLER if "worker" in package else {})}
    examined = examine(package, settings)
    assert (examined.code, examined.wrong()) == (3, {"kafka.connection": "failed"})
    assert "connection refused" in examined.text("kafka.connection")
    assert examined.text("topics").startswith("needs kafka.connection")


@pytest.mark.long
@pytest.mark.parametrize("package", PACKAGES)
def test_a_black_hole_exits_3_in_time(package: str) -> None:
    with black_hole() as servers:
        settings = {"FOREBAY_BOOTSTRAP_SERVERS": servers}
        if "worker" in package:
            settings |= {"FOREBAY_BACKEND_URL": f"http://{servers}", "FOREBAY_GPU": "none"}
        examined = examine(package, settings)
    assert examined.code == 3
    assert "does not answer as a Kafka broker" in examined.text("kafka.connection")


def test_tls_on_a_plain_port_is_called_that(producer_pool: ProducerPool, tmp_path: Path) -> None:
    properties = tmp_path / "kafka.properties"
    properties.write_text("security.protocol=SSL\n", encoding="utf-8")
    settings = settings_of(producer_pool, "forebay_producer") | {"FOREBAY_KAFKA_PROPERTIES": str(properties)}
    examined = examine("forebay_producer", settings)
    assert (examined.code, examined.wrong()) == (1, {"kafka.tls": "failed"})
    assert "does not speak TLS" in examined.text("kafka.tls")


def test_authentication_that_fails_is_no_unreachable_broker(producer_pool: ProducerPool, tmp_path: Path) -> None:
    properties = tmp_path / "kafka.properties"
    lines = ("security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN", "sasl.username=u", "sasl.password=hush-hush")
    properties.write_text("\n".join(lines), encoding="utf-8")
    settings = settings_of(producer_pool, "forebay_producer") | {"FOREBAY_KAFKA_PROPERTIES": str(properties)}
    examined = examine("forebay_producer", settings)
    assert (examined.code, examined.wrong()) == (1, {"kafka.credentials": "failed"})
    assert "authentication failed" in examined.text("kafka.credentials")
    assert "hush-hush" not in examined.out + examined.err


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"FOREBAY_POOL": "no pool"}, "FOREBAY_POOL"),
        ({"FOREBAY_KAFKA_PROPERTIES": "/nowhere/kafka.properties"}, "FOREBAY_KAFKA_PROPERTIES"),
    ],
)
@pytest.mark.parametrize("package", PACKAGES)
def test_a_setting_that_cannot_be_used_exits_2(package: str, settings: Mapping[str, str], words: str) -> None:
    examined = examine(package, {**settings, **(HANDLER if "worker" in package else {})})
    assert examined.code == 2
    assert words in examined.err


def test_a_serving_engine_is_asked_for_a_token_and_its_metrics_are_known(served: Served) -> None:
    kafka = served.pool.kafka
    settings = {
        "FOREBAY_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "FOREBAY_POOL": served.pool.name,
        "FOREBAY_BACKEND_URL": served.engine.url,
        "FOREBAY_GPU": "none",
    }
    examined = examine("forebay_worker", settings)
    assert (examined.code, examined.wrong()) == (0, {})
    assert "/v1/chat/completions answered in" in examined.text("backend")
    assert examined.text("backend.metrics").startswith("vllm: ")
    wrong = examine("forebay_worker", settings, "--model", "nobody-has-it")
    assert (wrong.code, wrong.wrong()) == (1, {"backend": "failed"})
    assert "does not serve model nobody-has-it" in wrong.text("backend")


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        pytest.param(401, b'{"error": "no key-of-mine"}', "correct FOREBAY_BACKEND_API_KEY", id="refused-key"),
        pytest.param(200, b"<html>welcome</html>", "answers, but with no choices", id="no-completions-server"),
        pytest.param(404, b"nothing here", "no OpenAI-compatible API is there", id="wrong-path"),
    ],
)
def test_what_is_wrong_with_a_backend_is_named_and_its_key_is_not(status: int, body: bytes, words: str) -> None:
    with backend(status=status, body=body) as url:
        examined = worker_with(url, FOREBAY_BACKEND_API_KEY="key-of-mine")
    assert examined.status("backend") == "failed"
    assert words in examined.text("backend")
    assert "key-of-mine" not in examined.out + examined.err


@pytest.mark.long
def test_a_backend_that_is_down_is_told_from_one_that_hangs_or_speaks_no_tls() -> None:
    down = worker_with(f"http://127.0.0.1:{free_port()}")
    assert "connection refused" in down.text("backend")
    assert down.status("backend.metrics") == "skipped"
    with backend(status=200, body=b"{}") as url:
        plain = worker_with(url.replace("http:", "https:"))
    assert "TLS handshake failed" in plain.text("backend")
    with black_hole() as address:
        hanging = worker_with(f"http://{address}")
    assert "connected, but no answer within" in hanging.text("backend")


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        ("harness.no_such_module:f", "cannot be imported"),
        ("harness.handlers:TESTS_HAVE_NONE", "is no async function"),
        ("os:getcwd", "is no async function"),
    ],
)
def test_a_handler_that_cannot_be_used_is_named(handler: str, words: str) -> None:
    settings = {"FOREBAY_BOOTSTRAP_SERVERS": f"127.0.0.1:{free_port()}", **HANDLER, "FOREBAY_HANDLER": handler}
    examined = examine("forebay_worker", settings)
    assert examined.status("handler") == "failed"
    assert words in examined.text("handler")


@pytest.mark.parametrize(
    ("gpu", "state", "status", "words"),
    [
        pytest.param(
            "nvml",
            {"gpus": 2, "driver": "570.86", **gpu_state(0, product="H200"), **gpu_state(1, product="H200")},
            "ok",
            "driver 570.86: 2 device(s): 0 H200, 1 H200",
            id="present",
        ),
        pytest.param(
            "auto", {"nvmlInitWithFlags.error": DRIVER_NOT_LOADED}, "failed", "Driver Not Loaded", id="broken"
        ),
        pytest.param("nvml", {"crash": "nvmlInitWithFlags"}, "failed", "ended with status -6", id="crashing"),
        pytest.param(
            "nvml", {"hang": "nvmlInitWithFlags"}, "failed", "NVML hangs", id="hanging", marks=pytest.mark.long
        ),
        pytest.param("nvml", None, "failed", "NVML Shared Library Not Found", id="absent-but-asked-for"),
        pytest.param("auto", None, "ok", "no NVIDIA driver here", id="absent"),
    ],
)
def test_gpus_are_told_with_driver_and_name_or_why_not(
    tmp_path: Path, gpu: str, state: dict[str, object] | None, status: str, words: str
) -> None:
    if state is None:
        # A file that is no library stops the search, also where there is a driver.
        (tmp_path / "libnvidia-ml.so.1").write_text("no library", encoding="utf-8")
        environment = {"LD_LIBRARY_PATH": str(tmp_path)}
    else:
        stub = NvmlStub(tmp_path)
        stub.answer(state)
        environment = stub.environment
    settings = {"FOREBAY_BOOTSTRAP_SERVERS": f"127.0.0.1:{free_port()}", **HANDLER, "FOREBAY_GPU": gpu, **environment}
    examined = examine("forebay_worker", settings)
    assert examined.status("gpu") == status
    assert words in examined.text("gpu")
