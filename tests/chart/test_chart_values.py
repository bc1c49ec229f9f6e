"""The chart's values: each has a description and a type, and a wrong one is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from chart.derived import README_PATH, VALUES, definitions, readme_table, resolved, schema
from chart.rendered import CHART, EXAMPLES, refusal
from forebay_worker.settings import WorkerSettings

SCHEMA = schema()


def described(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every value that can be given, by path; `<name>` stands for a key of a map."""
    node = resolved(node, SCHEMA["definitions"])
    if path:
        yield path, node
    children = dict(node.get("properties", {}))
    if isinstance(node.get("additionalProperties"), dict) and "properties" not in node:
        children["<name>"] = node["additionalProperties"]
    for name, child in children.items():
        yield from described(child, f"{path}.{name}".removeprefix("."))


def test_every_value_has_a_description() -> None:
    without = [path for path, node in described(SCHEMA) if not node.get("description") and ".<name>" not in path[-7:]]
    assert without == []


def test_the_defaults_and_examples_keep_to_the_schema() -> None:
    validator = jsonschema.Draft7Validator(SCHEMA)
    for values in [VALUES, *(yaml.safe_load(path.read_text(encoding="utf-8")) for path in EXAMPLES.values())]:
        assert [f"{error.json_path}: {error.message}" for error in validator.iter_errors(values)] == []


def test_every_value_that_can_be_given_stands_in_values_yaml() -> None:
    def keys(values: Any, path: str = "") -> Iterator[str]:
        for name, value in values.items() if isinstance(values, dict) else ():
            yield f"{path}.{name}".removeprefix(".")
            yield from keys(value, f"{path}.{name}".removeprefix("."))

    given = set(keys(VALUES))
    free = ("global", "enabled", "pools.", "jobs.", "producerSettings.", "kafka.files.", "poolDefaults.settings.")
    missing = [
        path
        for path, _ in described(SCHEMA)
        if path not in given and "<name>" not in path and ".kafka." not in path and not path.startswith(free)
    ]
    assert missing == []


def test_settings_have_the_types_and_meanings_that_the_code_gives_them() -> None:
    wanted = definitions()
    there = {name: SCHEMA["definitions"][name] for name in wanted}
    assert there == wanted, "run tools/make-chart-values"


def test_the_readme_lists_every_value() -> None:
    assert readme_table(SCHEMA) in README_PATH.read_text(encoding="utf-8"), "run tools/make-chart-values"


def test_the_limit_that_caps_replicas_is_the_worker_s_default() -> None:
    text = (CHART / "templates" / "_pools.tpl").read_text(encoding="utf-8")
    assert f'(list . "limit_max" {WorkerSettings.model_fields["limit_max"].default})' in text


WRONG = {
    "misspelt": (["--set", "poolDefaults.drainSecond=30"], ["poolDefaults", "drainSecond"]),
    "misspelt at the top": (["--set", "exproter.enabled=false"], ["exproter"]),
    "mistyped": (["--set", "pools.qwen.drainSeconds=30s"], ["qwen", "drainSeconds", "integer"]),
    "a setting that there is not": (["--set", "pools.qwen.settings.limit_mxa=8"], ["qwen", "settings", "limit_mxa"]),
    "a setting out of bounds": (["--set", "pools.qwen.settings.limit_max=0"], ["qwen", "limit_max"]),
    "a deadline of no tier": (["--set", "pools.qwen.settings.tier_ttl_ms.urgent=9"], ["qwen", "tier_ttl_ms", "urgent"]),
    "both scalers": (["--set", "pools.qwen.autoscaling.kind=keda+hpa"], ["qwen", "autoscaling", "kind", "keda", "hpa"]),
    "a pool that Kubernetes cannot name": (["--set", "pools.Qwen_72B.replicas=1"], ["Qwen_72B"]),
    "a list for a map": (["--set", "poolDefaults.tolerations={a}"], ["tolerations", "object"]),
    "an address without a port": (["--set", "kafka.bootstrapServers=kafka"], ["kafka", "bootstrapServers"]),
    "two backends": (["--set", "pools.qwen.handler=a:b"], ["pools.qwen", "backend.url", "handler"]),
    "no backend": (["--set", "pools.qwen.backend.url="], ["pools.qwen", "backend.url", "handler"]),
    "more workers than partitions": (
        ["--set", "pools.qwen.replicas=13"],
        ["pools.qwen.replicas is 13", "12 partitions"],
    ),
    "a minimum above the cap": (
        ["--set", "pools.qwen.autoscaling.kind=keda,pools.qwen.autoscaling.minReplicas=13"],
        ["pools.qwen.autoscaling.minReplicas is 13", "12"],
    ),
    "an HPA from nothing": (
        ["--set", "pools.qwen.autoscaling.kind=hpa,pools.qwen.autoscaling.minReplicas=0"],
        ["pools.qwen.autoscaling.minReplicas is 0", "keda"],
    ),
    "scaling on a metric that nobody shows": (
        ["--set", "pools.qwen.autoscaling.kind=keda,exporter.enabled=false"],
        ["pools.qwen.autoscaling.kind is keda", "exporter.enabled"],
    ),
    "a secret in a ConfigMap": (
        ["--set", "kafka.properties.sasl\\.password=hunter2"],
        ["sasl.password", "Secret", "${directory:"],
    ),
    "two properties files": (
        ["--set", "kafka.propertiesFile=/a,kafka.properties.security\\.protocol=SSL"],
        ["kafka.properties", "kafka.propertiesFile"],
    ),
    "a setting by extraEnv": (
        ["--set-string", "pools.qwen.extraEnv.FOREBAY_LIMIT_MAX=8"],
        ["pools.qwen.extraEnv", "FOREBAY_LIMIT_MAX", "settings"],
    ),
    "a config that is not TOML": (["--set", "pools.qwen.config=limit_max"], ["pools.qwen.config is not TOML"]),
    "the drain in the config": (
        ["--set", "pools.qwen.config=drain_seconds = 5"],
        ["pools.qwen.config sets drain_seconds"],
    ),
    "a config of a handler for an engine": (
        ["--set", 'pools.qwen.config=handler = "a:b"'],
        ["pools.qwen.config is for a handler", "pools.qwen.handler"],
    ),
    "a job of no pool": (
        ["--set", "pools.a.replicas=1,pools.b.replicas=1", "--set", "jobs.look.args={doctor}"],
        ["jobs.look.pool is missing", "a, b"],
    ),
    "two pools that are one in Kafka": (
        ["--set", "pools.chat.name=secret,pools.secret.replicas=1"],
        ["pools.chat", "pools.secret", "both the pool secret"],
    ),
    "one cluster for the exporter of pools on two": (
        ["--set", "pools.a.replicas=1,pools.b.kafka.bootstrapServers=k2:9092,exporter.kafka.bootstrapServers=k3:9092"],
        ["exporter.kafka.bootstrapServers", "kafka:9092; k2:9092"],
    ),
    "one cluster for the topics of pools on two": (
        ["--set", "pools.a.replicas=1,pools.b.kafka.bootstrapServers=k2:9092,topics.kafka.bootstrapServers=k3:9092"],
        ["topics.kafka.bootstrapServers", "kafka:9092; k2:9092"],
    ),
    "an alert that there is not": (
        ["--set", "prometheusRule.disabled.ForebayNoSuch=true"],
        ["prometheusRule.disabled.ForebayNoSuch is no alert", "ForebayGpuSick"],
    ),
    "a pool's alert that there is not": (
        ["--set", "pools.a.alerts.for.ForebayNoSuch=5m"],
        ["pools.a.alerts.for.ForebayNoSuch is no alert", "ForebayGpuSick"],
    ),
    "a number that no rule has": (
        ["--set", "pools.a.alerts.endToEndSeconds.urgent=3"],
        ["alerts/endToEndSeconds", "urgent"],
    ),
    "a pool in capitals": (["--set", "pools.Qwen.replicas=2"], ["pools.Qwen", "lower-case", "pools.<key>.name"]),
    "a label of the chart's own": (
        ["--set", "commonLabels.app\\.kubernetes\\.io/name=mine"],
        ["commonLabels sets app.kubernetes.io/name"],
    ),
    "lag of a secured Kafka without credentials": (
        [
            "--set",
            "kafka.properties.security\\.protocol=SASL_SSL"
            ",pools.qwen.autoscaling.kind=keda,pools.qwen.autoscaling.keda.kafkaLag.enabled=true",
        ],
        ["pools.qwen.autoscaling.keda.kafkaLag.enabled", "kafkaLag.authentication"],
    ),
    "a tag in the repository": (["--set", "image.worker.repository=reg/x:1"], ["image", "repository"]),
    "an image of no name": (["--set", "image.producer.repository="], ["image", "repository"]),
    "a job without words": (["--set", "jobs.look.pool=default"], ["jobs.look.args"]),
}


@pytest.mark.parametrize(("arguments", "words"), WRONG.values(), ids=WRONG)
def test_a_wrong_value_is_refused_with_its_name(helm: Path, arguments: list[str], words: list[str]) -> None:
    said = refusal(helm, *arguments)
    assert [word for word in words if word not in said] == [], said
