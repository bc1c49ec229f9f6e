"""The chart on a real API server: it takes every example whole, and refuses wrong ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from cluster.surroundings import GPU_NODE
from forebay_sandbox.testing.kubernetes import KubectlError
from harness.helm_release import CHART, HelmError, HelmRelease
from harness.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))
MANY_POOLS = CHART / "examples" / "many-pools.yaml"
GPU = CHART / "examples" / "gpu-node.yaml"

_STRICTLY = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "--filename=-")


@pytest.mark.parametrize("values", [None, *EXAMPLES], ids=lambda path: path.stem if path else "defaults")
def test_the_server_takes_what_is_rendered_strictly(release: HelmRelease, values: Path | None) -> None:
    manifests = _in_one_namespace(release, [values] if values else [])
    # The server refuses pods of an account that is not there, and a dry run leaves none.
    _create_accounts(release, manifests)
    release.kubectl(*_STRICTLY, stdin=yaml.safe_dump_all(manifests))


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        ("Deployment", lambda spec: spec.update(replicsa=2), r"replicsa"),
        ("Deployment", lambda spec: spec["template"]["spec"].update(hostNetwork="no"), r"hostNetwork"),
        ("ScaledObject", lambda spec: spec.update(minReplicas=2), r"minReplicas"),
        ("ScaledObject", lambda spec: spec.update(maxReplicaCount="4"), r"maxReplicaCount"),
        ("ScaledObject", lambda spec: spec.update(minReplicaCount=999), r"minReplicaCount must be less than"),
        ("PodMonitor", lambda spec: spec.update(endpoints=[]), r"endpoints"),
        ("PrometheusRule", lambda spec: spec["groups"][0].update(interval="often"), r"interval"),
    ],
)
def test_the_server_refuses_what_is_wrong(
    release: HelmRelease, kind: str, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    manifest = next(one for one in _in_one_namespace(release, [MANY_POOLS]) if one["kind"] == kind)
    release.kubectl(*_STRICTLY, stdin=json.dumps(manifest))
    change(manifest["spec"])

    with pytest.raises(KubectlError, match=said):
        release.kubectl(*_STRICTLY, stdin=json.dumps(manifest))


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("poolDefaults.replicas", "two", r"replicas"),
        ("poolDefaults.replica", 2, r"replica"),
        ("pools.qwen.drainSeconds", "long", r"drainSeconds"),
        ("kafka.bootstrapServers", ["a:9092"], r"bootstrapServers"),
    ],
)
def test_a_wrong_value_is_refused_before_anything_is_sent(
    release: HelmRelease, path: str, value: object, said: str
) -> None:
    with pytest.raises(HelmError, match=said):
        release.install(settings={path: value})
    assert json.loads(release.helm("list", "--output=json")) == []
    assert release.left() == []


def test_an_installation_is_ready_and_made_its_topics_first(release: HelmRelease) -> None:
    release.install([MANY_POOLS])

    assert release.history() == ["deployed"]
    deployments = {one["metadata"]["name"]: one["status"] for one in release.get("deployments")}
    assert set(deployments) == {f"forebay-worker-{pool}" for pool in ("qwen", "sdxl", "rerank")} | {"forebay-exporter"}
    assert all(one["readyReplicas"] == one["replicas"] for one in deployments.values())
    assert {one["metadata"]["name"] for one in release.get("scaledobjects")} == {"forebay-worker-qwen"}
    assert {one["metadata"]["name"] for one in release.get("horizontalpodautoscalers")} == {"forebay-worker-sdxl"}
    assert len(release.get("poddisruptionbudgets")) == 3
    # The events remember the hook's jobs, which are deleted once they have succeeded.
    events = release.get("events", "--field-selector=involvedObject.kind=Job,reason=Completed")
    ended = {one["involvedObject"]["name"]: one for one in events if "-topics" in one["involvedObject"]["name"]}
    assert set(ended) == {"forebay-topics"}
    first_worker = min(pod["metadata"]["creationTimestamp"] for pod in release.workers())
    assert max(one["lastTimestamp"] for one in ended.values()) <= first_worker


def test_workers_stand_beside_an_engine_that_has_claimed_all_gpus(release: HelmRelease) -> None:
    engine = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "vllm-llama", "labels": {"app": "vllm-llama"}},
        "spec": {
            "containers": [
                {"name": "vllm", "image": "vllm", "resources": {"limits": {"nvidia.com/gpu": 8, "memory": "8Gi"}}}
            ],
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        },
    }
    release.kubectl("create", "--filename=-", stdin=json.dumps(engine))
    release.kubectl("wait", "pod", "vllm-llama", "--for=condition=Ready", "--timeout=60s")
    release.install([GPU])

    assert {pod["spec"]["nodeName"] for pod in release.workers()} == {GPU_NODE}


@pytest.mark.parametrize("values", EXAMPLES, ids=lambda path: path.stem)
def test_an_uninstall_leaves_nothing(release: HelmRelease, values: Path) -> None:
    # The workers of one example wait for an engine's pod to stand beside; what is to be removed need not be ready.
    release.helm("install", "forebay", str(CHART), f"--values={values}")
    assert len(release.left()) > 3
    release.uninstall()

    wait_until("nothing is left", lambda: release.left() + release.left("monitoring") == [])
    assert release.helm("list", "--output=json").strip() == "[]"


def _in_one_namespace(release: HelmRelease, values: list[Path]) -> list[dict[str, Any]]:
    """The rendered manifests, all in the release's namespace, so that one `kubectl --namespace` can send them."""
    manifests = [one for one in yaml.safe_load_all(release.template(values)) if one]
    for manifest in manifests:
        manifest["metadata"]["namespace"] = release.namespace
    return manifests


def _create_accounts(release: HelmRelease, manifests: list[dict[str, Any]]) -> None:
    accounts = [one for one in manifests if one["kind"] == "ServiceAccount"]
    release.kubectl("create", "--filename=-", stdin=yaml.safe_dump_all(accounts))
