"""A real Kubernetes API server with nodes that kwok plays, and releases of the chart in namespaces of their own."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING

import pytest

from chart.strict import CRDS
from cluster.surroundings import SURROUNDINGS
from harness.helm_release import HelmRelease
from harness.tools_at_hand import at_hand

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay_sandbox.testing.kubernetes import LocalKubernetes


@pytest.fixture(scope="session")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKubernetes]:
    """The cluster, with KEDA's and the Prometheus operator's definitions, but without what acts on them."""
    from forebay_sandbox.testing.kubernetes import running_kubernetes

    for name in ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok", "kubectl"):
        at_hand(name)
    with running_kubernetes(folder=tmp_path_factory.mktemp("kubernetes")) as cluster:
        for path in CRDS:
            cluster.kubectl("create", "--filename", str(path))
        everything = {"apiVersion": "v1", "kind": "List", "items": SURROUNDINGS}
        cluster.kubectl("create", "--filename=-", stdin=json.dumps(everything))
        cluster.kubectl("wait", "crd", "--all", "--for=condition=Established", "--timeout=60s")
        cluster.kubectl("wait", "node", "--all", "--for=condition=Ready", "--timeout=60s")
        yield cluster


@pytest.fixture
def release(kubernetes: LocalKubernetes) -> Iterator[HelmRelease]:
    """The chart's release-to-be: an empty namespace."""
    namespace = f"forebay-{secrets.token_hex(4)}"
    kubernetes.kubectl("create", "namespace", namespace)
    release = HelmRelease(cluster=kubernetes, helm=at_hand("helm"), namespace=namespace)
    yield release
    kubernetes.check()
    release.uninstall()
    kubernetes.kubectl("delete", "namespace", namespace, "--wait=false")
