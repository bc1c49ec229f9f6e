"""The rendered chart: Kubernetes takes it, and Forebay's own commands and settings know its words."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from chart.rendered import CHART, EXAMPLES, ROOT, Manifest, pods, render, run_helm
from chart.strict import validate
from forebay_producer.cli import app as forebay
from forebay_schemas.runtime.settings import ENV_PREFIX, KNOWN_VARIABLES
from forebay_worker import cli as forebay_worker

VERSIONS = ("1.29", "1.31", "1.34", "1.37")
VALUES: dict[str, list[str | Path]] = {"defaults": [], **{name: ["--values", path] for name, path in EXAMPLES.items()}}


@pytest.fixture(scope="module")
def rendered(helm: Path) -> dict[str, list[Manifest]]:
    """All objects, with the default values and with each example's."""
    return {name: render(helm, *arguments) for name, arguments in VALUES.items()}


def test_helm_lint_has_nothing_to_say(helm: Path) -> None:
    for arguments in VALUES.values():
        done = run_helm(helm, "lint", "--strict", CHART, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "[WARNING]" not in done.stdout


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_and_the_operators_take_every_object(rendered: dict[str, list[Manifest]], version: str) -> None:
    for manifests in rendered.values():
        validate(manifests, version)


def test_the_examples_have_every_kind_that_the_chart_has(rendered: dict[str, list[Manifest]]) -> None:
    texts = [path.read_text(encoding="utf-8") for path in (CHART / "templates").rglob("*.yaml")]
    kinds = {kind for text in texts for kind in re.findall(r"^kind: (\w+)$", text, re.MULTILINE)}
    assert kinds - {manifest["kind"] for manifests in rendered.values() for manifest in manifests} == set()


@pytest.mark.parametrize("name", VALUES)
def test_every_variable_is_a_setting(rendered: dict[str, list[Manifest]], name: str) -> None:
    text = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    for owner, pod in pods(rendered[name]).items():
        for container in pod["containers"]:
            names = [variable["name"] for variable in container["env"]]
            ours = {each for each in names if each.startswith(ENV_PREFIX)}
            assert len(names) == len(set(names)), f"{owner} sets a variable twice"
            assert ours - KNOWN_VARIABLES == set(), owner
            assert {each for each in ours if f"`{each}`" not in text} - {
                "FOREBAY_GATEWAY_PORT",
                "FOREBAY_EXPORTER_PORT",
            } == set(), owner


@pytest.mark.parametrize("name", VALUES)
def test_the_commands_know_their_words(rendered: dict[str, list[Manifest]], name: str) -> None:
    for owner, pod in pods(rendered[name]).items():
        for container in pod["containers"]:
            words = container["args"]
            worker = container["name"] in {"worker", "doctor"}
            try:
                parse(forebay_worker.app if worker else forebay.app, words)
            except Exception as error:
                raise AssertionError(f"{owner}: {' '.join(words)}: {error}") from error


def parse(app: typer.Typer, words: list[str]) -> None:
    """Lets the command's own parser read the words."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("forebay", list(words))
    while hasattr(command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)


@pytest.mark.parametrize("name", VALUES)
def test_every_pod_is_locked_down(rendered: dict[str, list[Manifest]], name: str) -> None:
    for owner, pod in pods(rendered[name]).items():
        assert pod["automountServiceAccountToken"] is False, owner
        assert pod["securityContext"]["runAsNonRoot"] is True, owner
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, owner
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, owner
            assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"], owner  # noqa: S108
            assert "nvidia.com/gpu" not in json.dumps(container["resources"]), owner


@pytest.mark.parametrize("name", VALUES)
def test_selectors_select_their_own_pods_alone(rendered: dict[str, list[Manifest]], name: str) -> None:
    deployments = [each for each in rendered[name] if each["kind"] == "Deployment"]
    for one in deployments:
        wanted = one["spec"]["selector"]["matchLabels"].items()
        selected = [
            each["metadata"]["name"]
            for each in deployments
            if wanted <= each["spec"]["template"]["metadata"]["labels"].items()
        ]
        assert selected == [one["metadata"]["name"]]


def test_names_stay_short_and_distinct_with_the_longest_names(helm: Path) -> None:
    pools = [f"a-pool-with-quite-a-long-nam-{letter}" for letter in "ab"]
    assert {len(name) for name in pools} == {30}
    sets = ",".join(f"pools.{name}.autoscaling.kind=keda" for name in pools)
    manifests = render(
        helm, "--set", sets, "--set", "podMonitor.enabled=true,dashboards.enabled=true", release="r" * 53
    )
    names = [(each["kind"], each["metadata"]["name"]) for each in manifests]
    assert len(names) == len(set(names))
    assert max(len(name) for kind, name in names if kind != "ServiceAccount") <= 52
    labels = [value for each in manifests for value in each["metadata"]["labels"].values()]
    assert max(map(len, labels)) <= 63


def rule_groups(manifests: list[Manifest]) -> list[dict[str, Any]]:
    [rule] = [each for each in manifests if each["kind"] == "PrometheusRule"]
    return rule["spec"]["groups"]  # type: ignore[no-any-return]


def test_for_every_pool_the_chart_renders_the_plain_rule_file(helm: Path) -> None:
    """Whoever has no Helm has the same rules, with the default numbers."""
    own = yaml.safe_load((CHART / "rules" / "forebay.yaml").read_text(encoding="utf-8"))
    everything = "prometheusRule.enabled=true,prometheusRule.everyPool=true"
    assert rule_groups(render(helm, "--set", everything)) == own["groups"]


def test_rules_speak_of_the_release_s_own_pools(rendered: dict[str, list[Manifest]]) -> None:
    for group in rule_groups(rendered["many-pools"]):
        for rule in group["rules"]:
            if rule.get("alert") == "ForebayScalerFailing":
                # KEDA knows no pools.
                assert 'scaledObject=~"forebay-worker-qwen"' in rule["expr"]
                continue
            own = re.findall(r'pool=~"([^"]+)"', rule["expr"])
            assert own, rule["expr"]
            if "record" in rule:
                assert set(own) == {"SDXL_Turbo|qwen|rerank"}


def test_pools_with_equal_numbers_share_their_alerts(rendered: dict[str, list[Manifest]]) -> None:
    shared = {
        tuple(re.findall(r'pool=~"([^"]+)"', rule["expr"])[:1])
        for group in rule_groups(rendered["many-pools"])
        for rule in group["rules"]
        if rule.get("alert") == "ForebayClockSkew"
    }
    assert shared == {("SDXL_Turbo",), ("qwen|rerank",)}


def test_a_pool_s_alerts_can_be_left_out_and_given_more_time(helm: Path) -> None:
    alerts = "pools.a.alerts.disabled.ForebayGpuSick=true,pools.b.alerts.for.ForebayGpuSick=20m"
    manifests = render(helm, "--set", f"prometheusRule.enabled=true,{alerts},pools.c.partitions=6")
    sick = {
        re.findall(r'pool=~"([^"]+)"', rule["expr"])[0]: rule["for"]
        for group in rule_groups(manifests)
        for rule in group["rules"]
        if rule.get("alert") == "ForebayGpuSick"
    }
    assert sick == {"b": "20m", "c": "3m"}


@pytest.mark.parametrize("release", ["forebay", "prod", "a-release-with-quite-a-long-name-indeed"])
def test_two_releases_share_a_grafana(helm: Path, release: str) -> None:
    """A uid is taken once, a title once in a folder; the release that is called forebay has the files' own."""

    def boards(name: str) -> dict[str, str]:
        manifests = render(helm, "--set", "dashboards.enabled=true", release=name)
        maps = [each for each in manifests if each["metadata"]["name"].startswith(name) and "dashboard" in str(each)]
        documents = [json.loads(text) for each in maps if each["kind"] == "ConfigMap" for text in each["data"].values()]
        return {document["uid"]: document["title"] for document in documents}

    own, other = boards(release), boards("second")
    assert len(own) == 3
    assert max(map(len, own)) <= 40
    assert not set(own) & set(other)
    assert not set(own.values()) & set(other.values())
    if release == "forebay":
        assert own["forebay-overview"] == "Forebay / Overview"


@pytest.mark.parametrize(
    ("values", "missing"),
    [
        ("exporter.enabled=false", {"ForebayExporterGone", "ForebayScalerFailing"}),
        ("pools.a.autoscaling.kind=hpa", {"ForebayScalerFailing"}),
        ("pools.a.autoscaling.kind=keda", set[str]()),
    ],
)
def test_what_a_release_has_not_cannot_be_missed(helm: Path, values: str, missing: set[str]) -> None:
    def alerts(*more: str) -> set[str]:
        manifests = render(helm, "--set", ",".join(["prometheusRule.enabled=true", *more]))
        return {rule["alert"] for group in rule_groups(manifests) for rule in group["rules"] if "alert" in rule}

    assert alerts("prometheusRule.everyPool=true") - alerts(values) == missing


def test_runbooks_and_labels_are_put_into_the_alerts(rendered: dict[str, list[Manifest]]) -> None:
    alerts = [each for group in rule_groups(rendered["many-pools"]) for each in group["rules"] if "alert" in each]
    for alert in alerts:
        expected = f"https://git.example.com/inference/forebay/blob/main/docs/runbooks/{alert['alert']}.md"
        assert alert["annotations"]["runbook_url"] == expected
        assert alert["labels"]["team"] == "inference"
        assert alert["labels"]["severity"] in {"page", "ticket"}
    seconds = [each for each in alerts if each["labels"].get("promise") == "seconds" and "> 20\n" in each["expr"]]
    assert [each["annotations"]["summary"].endswith("(20s are promised)") for each in seconds] == [True]


def test_an_example_s_notes_say_what_is_capped_and_what_is_missing(helm: Path) -> None:
    done = run_helm(
        helm, "install", "forebay", CHART, "--dry-run=client", "--values", EXAMPLES["many-pools"], "--hide-secret"
    )
    assert done.returncode == 0, done.stderr
    notes = done.stdout.partition("NOTES:")[2]
    assert "NOTE: pool qwen gets 16 workers at most, not 20" in notes
    assert not re.search("WARNING", notes), notes


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ((), ("placeholder kafka:9092", "placeholder http://engine:8000", "forebay-worker, without a registry")),
        (("pools.a.autoscaling.kind=keda",), ("never scales",)),
        (("pools.a.autoscaling.kind=keda", "pools.a.autoscaling.minReplicas=0"), ("KEDA starts none",)),
        (("dashboards.enabled=true",), ("panels of recorded series stay empty",)),
        (("prometheusRule.enabled=true",), ("runbookUrl is empty",)),
        (("podMonitor.enabled=true",), ("the exporter (backlog, age, risk) is not",)),
        (
            ("poolDefaults.resources.limits.memory=500M", "pools.a.settings.max_retries=1"),
            ("pool a may take 576 MiB, and resources.limits.memory is 500M",),
        ),
        (
            ("pools.a.settings.in_flight_bytes_max=1073741824", "pools.b.settings.buffer_bytes_max=800000000"),
            ("pool a may take 1344 MiB, and resources.limits.memory is 1Gi", "pool b may take 1274 MiB"),
        ),
    ],
)
def test_notes_warn_of_placeholders_and_of_switches_that_need_others(
    helm: Path, values: tuple[str, ...], words: tuple[str, ...]
) -> None:
    given = [word for value in values for word in ("--set", value)]
    done = run_helm(helm, "install", "forebay", CHART, "--dry-run=client", *given)
    notes = done.stdout.partition("NOTES:")[2]
    for word in words:
        assert word in notes, notes


@pytest.mark.parametrize(
    "value",
    [
        "poolDefaults.resources.limits.memory=576Mi",
        "poolDefaults.resources.limits.memory=605000k",
        "poolDefaults.resources.limits.memory=0.61G",
        "poolDefaults.resources.limits.memory=700000000",
        "poolDefaults.resources.limits=null",
    ],
)
def test_notes_are_silent_on_memory_that_will_do(helm: Path, value: str) -> None:
    done = run_helm(
        helm, "install", "forebay", CHART, "--dry-run=client", "--set", value, "--set", "pools.a.replicas=1"
    )
    assert done.returncode == 0, done.stderr
    assert "MiB" not in done.stdout.partition("NOTES:")[2]
