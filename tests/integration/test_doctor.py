"""`forebay doctor` and `forebay-worker doctor` on a real broker: healthy, and with one thing after the other wrong."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs leave these names out
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from forebay_sandbox.kafka.local import free_port
from harness.doctor import Case, backend, black_hole, examine, examine_all
from harness.nvml_stub import DRIVER_NOT_LOADED, NvmlStub, gpu_state

if TYPE_CHECKING:
    from forebay_sandbox.kafka.access import KafkaAccess
    from forebay_sandbox.testing.schema_registry import LocalRegistry
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


def nobody() -> str:
    """An address at which nothing listens."""
    return f"127.0.0.1:{free_port()}"


def worker_of(backend_url: str, **more: str) -> Case:
    """No broker: what the backend is like is told all the same."""
    return Case(
        settings={"FOREBAY_BOOTSTRAP_SERVERS": nobody(), "FOREBAY_GPU": "none", "FOREBAY_BACKEND_URL": backend_url}
        | more
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_a_healthy_pool_is_told_from_one_without_topics_without_broker_and_a_wrong_clock(
    producer_pool: ProducerPool, package: str
) -> None:
    settings = settings_of(producer_pool, package)
    unmade = f"{producer_pool.name}-unmade"
    ahead_seconds = HOUR_SECONDS if package == "forebay_producer" else -HOUR_SECONDS
    examined = examine_all(
        package,
        {
            "healthy": Case(settings=settings),
            "no topics": Case(settings=settings | {"FOREBAY_POOL": unmade}),
            "no broker": Case(settings=settings | {"FOREBAY_BOOTSTRAP_SERVERS": nobody()}),
            "wrong clock": Case(settings=settings, wall_ahead_seconds=ahead_seconds),
            "no pool's name": Case(settings=settings | {"FOREBAY_POOL": "no pool"}),
        },
    )
    healthy = examined["healthy"]
    assert (healthy.code, healthy.wrong()) == (0, {})
    for check in ("kafka.connection", "kafka.brokers", "topics", "topics.settings", "topics.replicas", "clock"):
        assert healthy.status(check) == "ok"
    assert "no authorizer" in healthy.text("permissions")
    assert healthy.status("schema_registry") == "skipped"

    no_topics = examined["no topics"]
    assert (no_topics.code, no_topics.wrong()) == (1, {"topics": "failed"})
    assert f"forebay topics create --pool {unmade}" in no_topics.text("topics")
    assert no_topics.status("clock") == no_topics.status("topics.settings") == "skipped"

    no_broker = examined["no broker"]
    assert (no_broker.code, no_broker.wrong()) == (3, {"kafka.connection": "failed"})
    assert "connection refused" in no_broker.text("kafka.connection")
    assert no_broker.text("topics").startswith("needs kafka.connection")

    wrong_clock = examined["wrong clock"]
    assert (wrong_clock.code, wrong_clock.wrong()) == (0, {"clock": "warning"})
    said = wrong_clock.text("clock")
    assert float(said.split(" clock is ")[1].split(" s ")[0]) == pytest.approx(HOUR_SECONDS, abs=1)
    assert ("ahead of" if ahead_seconds > 0 else "behind") in said

    assert (examined["no pool's name"].code, examined["no pool's name"].findings) == (2, ())
    assert "FOREBAY_POOL" in examined["no pool's name"].err

    assert producer_pool.all_records() == []
    admin = producer_pool.kafka.admin()
    groups = admin.list_consumer_groups(request_timeout=30).result().valid
    assert [group.group_id for group in groups if producer_pool.name in group.group_id] == []


def test_a_backend_that_is_down_and_one_that_refuses_the_key_are_told_and_the_key_is_not() -> None:
    with backend(status=401, body=b'{"error": "no key-of-mine"}') as url:
        examined = examine_all(
            "forebay_worker",
            {
                "down": worker_of(f"http://{nobody()}"),
                "refused": worker_of(url, FOREBAY_BACKEND_API_KEY="key-of-mine"),
            },
        )
    down, refused = examined["down"], examined["refused"]
    assert down.status("backend") == refused.status("backend") == "failed"
    assert "connection refused" in down.text("backend")
    assert down.status("backend.metrics") == "skipped"
    assert "correct FOREBAY_BACKEND_API_KEY" in refused.text("backend")
    assert "key-of-mine" not in refused.out + refused.err


@pytest.mark.long
def test_drift_warns_and_names_the_setting_and_a_clock_that_is_not_stamped_cannot_be_told(
    producer_pool: ProducerPool,
) -> None:
    topics = producer_pool.topics
    set_config(producer_pool.kafka, topics.results, "retention.ms", "60000")
    set_config(producer_pool.kafka, topics.coordination, "message.timestamp.type", "CreateTime")
    examined = examine("forebay_producer", settings_of(producer_pool, "forebay_producer"))
    assert (examined.code, examined.wrong()) == (0, {"topics.settings": "warning"})
    assert f"{topics.results}: retention.ms is 60000, should be 604800000" in examined.text("topics.settings")
    assert examined.status("clock") == "skipped"
    assert "needs LogAppendTime" in examined.text("clock")


@pytest.mark.long
@pytest.mark.parametrize("package", PACKAGES)
def test_a_black_hole_exits_3_in_time(package: str) -> None:
    with black_hole() as servers:
        settings = {"FOREBAY_BOOTSTRAP_SERVERS": servers, "FOREBAY_SCHEMA_REGISTRY_URL": f"http://{servers}"}
        if "worker" in package:
            settings |= {"FOREBAY_BACKEND_URL": f"http://{servers}", "FOREBAY_GPU": "none"}
        examined = examine(package, settings)
    assert examined.code == 3
    assert "does not answer as a Kafka broker" in examined.text("kafka.connection")
    assert "no answer within" in examined.text("schema_registry")


@pytest.mark.long
def test_a_schema_registry_is_asked_where_one_is_configured(
    producer_pool: ProducerPool, registry: LocalRegistry
) -> None:
    for package in PACKAGES:
        settings = settings_of(producer_pool, package)
        examined = examine_all(
            package,
            {
                url: Case(settings=settings | {"FOREBAY_SCHEMA_REGISTRY_URL": url})
                for url in (registry.url, f"http://{nobody()}", registry.url.replace("/v7", "/nowhere"))
            },
        )
        right, down, wrong = examined.values()
        assert (right.code, right.wrong()) == (0, {})
        assert "answers and has" in right.text("schema_registry")
        assert (down.code, down.wrong()) == (wrong.code, wrong.wrong()) == (1, {"schema_registry": "failed"})
        assert "check FOREBAY_SCHEMA_REGISTRY_URL and that it runs" in down.text("schema_registry")
        assert "it may need a path" in wrong.text("schema_registry")


@pytest.mark.long
def test_what_the_brokers_port_does_not_speak_and_whom_it_does_not_know_is_no_unreachable_broker(
    producer_pool: ProducerPool, tmp_path: Path
) -> None:
    properties = {
        "kafka.tls": ["security.protocol=SSL"],
        "kafka.credentials": [
            *("security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN"),
            *("sasl.username=u", "sasl.password=hush-hush"),
        ],
        "nowhere": None,
    }
    cases: dict[str, Case] = {}
    for name, lines in properties.items():
        path = tmp_path / name
        if lines is not None:
            path.write_text("\n".join(lines), encoding="utf-8")
        settings = settings_of(producer_pool, "forebay_producer") | {"FOREBAY_KAFKA_PROPERTIES": str(path)}
        cases[name] = Case(settings=settings)
    examined = examine_all("forebay_producer", cases)
    for check, words in (("kafka.tls", "does not speak TLS"), ("kafka.credentials", "authentication failed")):
        found = examined[check]
        assert (found.code, found.wrong()) == (1, {check: "failed"})
        assert words in found.text(check)
        assert "hush-hush" not in found.out + found.err
    assert examined["nowhere"].code == 2
    assert "FOREBAY_KAFKA_PROPERTIES" in examined["nowhere"].err


@pytest.mark.long
def test_a_serving_engine_is_asked_for_a_token_and_its_metrics_are_known(served: Served) -> None:
    settings = {
        "FOREBAY_BOOTSTRAP_SERVERS": served.pool.kafka.bootstrap_servers,
        "FOREBAY_POOL": served.pool.name,
        "FOREBAY_BACKEND_URL": served.engine.url,
        "FOREBAY_GPU": "none",
    }
    cases = {"right": Case(settings=settings), "wrong": Case(settings=settings, options=("--model", "nobody-has-it"))}
    examined = examine_all("forebay_worker", cases)
    right, wrong = examined["right"], examined["wrong"]
    assert (right.code, right.wrong()) == (0, {})
    assert "/v1/chat/completions answered in" in right.text("backend")
    assert right.text("backend.metrics").startswith("vllm: ")
    assert (wrong.code, wrong.wrong()) == (1, {"backend": "failed"})
    assert "does not serve model nobody-has-it" in wrong.text("backend")


@pytest.mark.long
def test_what_is_no_backend_is_told_from_one_that_hangs_or_speaks_no_tls() -> None:
    words = {
        "welcome": "answers, but not as that API does",
        "missing": "no OpenAI-compatible API is there",
        "plain": "TLS handshake failed",
        "hanging": "connected, but no answer within",
    }
    with (
        backend(status=200, body=b"<html>welcome</html>") as welcome,
        backend(status=404, body=b"nothing here") as missing,
        black_hole() as hanging,
    ):
        plain = welcome.replace("http:", "https:")
        urls = {"welcome": welcome, "missing": missing, "plain": plain, "hanging": f"http://{hanging}"}
        examined = examine_all("forebay_worker", {name: worker_of(url) for name, url in urls.items()})
    for name, said in words.items():
        assert examined[name].status("backend") == "failed"
        assert said in examined[name].text("backend")


@pytest.mark.long
def test_a_handler_that_cannot_be_used_is_named() -> None:
    words = {
        "harness.no_such_module:f": "cannot be imported",
        "harness.handlers:TESTS_HAVE_NONE": "has no TESTS_HAVE_NONE",
        "os:getcwd": "is no async function",
    }
    settings = {"FOREBAY_BOOTSTRAP_SERVERS": nobody(), **HANDLER}
    examined = examine_all(
        "forebay_worker", {name: Case(settings=settings | {"FOREBAY_HANDLER": name}) for name in words}
    )
    for name, said in words.items():
        assert examined[name].status("handler") == "failed"
        assert said in examined[name].text("handler")


GPUS: tuple[tuple[str, dict[str, object] | None, str, str], ...] = (
    (
        "nvml",
        {"gpus": 2, "driver": "570.86", **gpu_state(0, product="H200"), **gpu_state(1, product="H200")},
        "ok",
        "driver 570.86: 2 device(s): 0 H200, 1 H200",
    ),
    ("auto", {"nvmlInitWithFlags.error": DRIVER_NOT_LOADED}, "failed", "Driver Not Loaded"),
    ("nvml", {"crash": "nvmlInitWithFlags"}, "failed", "ended with status -6"),
    ("nvml", {"hang": "nvmlInitWithFlags"}, "failed", "NVML hangs"),
    ("nvml", None, "failed", "NVML Shared Library Not Found"),
    ("auto", None, "ok", "no NVIDIA driver here"),
)


@pytest.mark.long
def test_gpus_are_told_with_driver_and_name_or_why_not(tmp_path: Path) -> None:
    cases: dict[str, Case] = {}
    for gpu, state, _, words in GPUS:
        folder = tmp_path / str(len(cases))
        folder.mkdir()
        if state is None:
            # A file that is no library stops the search, also where there is a driver.
            (folder / "libnvidia-ml.so.1").write_text("no library", encoding="utf-8")
            environment = {"LD_LIBRARY_PATH": str(folder)}
        else:
            stub = NvmlStub(folder)
            stub.answer(state)
            environment = stub.environment
        settings = {"FOREBAY_BOOTSTRAP_SERVERS": nobody(), **HANDLER, "FOREBAY_GPU": gpu, **environment}
        cases[words] = Case(settings=settings)
    examined = examine_all("forebay_worker", cases)
    for _, _, status, words in GPUS:
        assert (examined[words].status("gpu"), words in examined[words].text("gpu")) == (status, True)
