"""The strict validation refuses what a server would: each case is a manifest with one thing wrong."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from chart.strict import VERSIONS, InvalidManifestsError, validate

_DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "worker", "labels": {"pool": "default"}},
    "spec": {
        "replicas": 2,
        "selector": {"matchLabels": {"pool": "default"}},
        "template": {
            "metadata": {"labels": {"pool": "default"}},
            "spec": {"containers": [{"name": "worker", "image": "forebay-worker:0.1.0"}]},
        },
    },
}
_SCALED_OBJECT = {
    "apiVersion": "keda.sh/v1alpha1",
    "kind": "ScaledObject",
    "metadata": {"name": "worker"},
    "spec": {
        "scaleTargetRef": {"name": "worker"},
        "minReplicaCount": 1,
        "maxReplicaCount": 4,
        "fallback": {"failureThreshold": 3, "replicas": 2},
        "triggers": [{"type": "prometheus", "metadata": {"query": "up", "threshold": "1"}}],
    },
}
_TRIGGER_AUTHENTICATION = {
    "apiVersion": "keda.sh/v1alpha1",
    "kind": "TriggerAuthentication",
    "metadata": {"name": "kafka"},
    "spec": {"secretTargetRef": [{"parameter": "password", "name": "kafka", "key": "password"}]},
}
_POD_MONITOR = {
    "apiVersion": "monitoring.coreos.com/v1",
    "kind": "PodMonitor",
    "metadata": {"name": "worker"},
    "spec": {
        "selector": {"matchLabels": {"pool": "default"}},
        "podMetricsEndpoints": [{"port": "ops", "interval": "15s"}],
    },
}
_SERVICE_MONITOR = {
    "apiVersion": "monitoring.coreos.com/v1",
    "kind": "ServiceMonitor",
    "metadata": {"name": "exporter"},
    "spec": {"selector": {"matchLabels": {"pool": "default"}}, "endpoints": [{"port": "ops"}]},
}
_PROMETHEUS_RULE = {
    "apiVersion": "monitoring.coreos.com/v1",
    "kind": "PrometheusRule",
    "metadata": {"name": "forebay"},
    "spec": {"groups": [{"name": "forebay", "rules": [{"alert": "Down", "expr": "up == 0", "for": "5m"}]}]},
}
_ALL = (_DEPLOYMENT, _SCALED_OBJECT, _TRIGGER_AUTHENTICATION, _POD_MONITOR, _SERVICE_MONITOR, _PROMETHEUS_RULE)


def changed(manifest: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """The manifest with another value at a path of names and numbers."""
    copy = deepcopy(manifest)
    *way, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    place: Any = copy
    for step in way:
        place = place[step]
    place[last] = value
    return copy


@pytest.mark.parametrize("version", VERSIONS[-6:])
def test_what_is_right_passes(version: str) -> None:
    validate(_ALL, version)


@pytest.mark.parametrize(
    ("manifest", "problem"),
    [
        (changed(_DEPLOYMENT, "spec.replicsa", 2), r"^Deployment/worker: \$\.spec: .*'replicsa' was unexpected"),
        (changed(_DEPLOYMENT, "spec.replicas", "2"), r"\$\.spec\.replicas: '2' is not of type"),
        (changed(_DEPLOYMENT, "metadata.lables", {}), r"\$\.metadata: .*'lables' was unexpected"),
        (changed(_DEPLOYMENT, "apiVersion", "apps/v1beta1"), r"know no Deployment of apps/v1beta1"),
        (changed(_DEPLOYMENT, "apiVersion", "apps.example.com/v1"), r"is not one of \['apps/v1'\]"),
        (changed(_DEPLOYMENT, "kind", "deployment"), r"is not one of \['Deployment'\]"),
        (changed(_SCALED_OBJECT, "spec.minReplicas", 1), r"^ScaledObject/worker: .*'minReplicas' was unexpected"),
        (changed(_SCALED_OBJECT, "spec.maxReplicaCount", "4"), r"\$\.spec\.maxReplicaCount: '4' is not of type"),
        (changed(_SCALED_OBJECT, "spec.triggers.0.metadata.threshold", 1), r"metadata\.threshold: 1 is not of type"),
        (changed(_SCALED_OBJECT, "spec.triggers", None), r"\$\.spec\.triggers: None is not of type"),
        (changed(_SCALED_OBJECT, "metadata.label", {}), r"\$\.metadata: .*'label' was unexpected"),
        (changed(_TRIGGER_AUTHENTICATION, "spec.secretTargetRef.0.secret", "x"), r"'secret' was unexpected"),
        (changed(_POD_MONITOR, "spec.podMetricsEndpoints.0.interval", "15 seconds"), r"interval: .*does not match"),
        (changed(_POD_MONITOR, "spec.endpoints", []), r"^PodMonitor/worker: .*'endpoints' was unexpected"),
        (changed(_SERVICE_MONITOR, "spec.endpoints.0.ports", "ops"), r"'ports' was unexpected"),
        (changed(_SERVICE_MONITOR, "spec", {"endpoints": []}), r"'selector' is a required property"),
        (changed(_PROMETHEUS_RULE, "spec.groups.0.rules.0.severity", "page"), r"'severity' was unexpected"),
        (changed(_PROMETHEUS_RULE, "apiVersion", "monitoring.coreos.com/v2"), r"know no PrometheusRule"),
        (
            {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "a"}},
            r"know no Thing of example.com/v1",
        ),
        ({"metadata": {"name": "a"}}, r"know no None"),
    ],
)
def test_what_is_wrong_is_refused(manifest: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidManifestsError, match=problem) as raised:
        validate([*_ALL, manifest], "1.34")
    assert len(str(raised.value).splitlines()) == 1


def test_a_version_without_schemas_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"no schemas of Kubernetes 1\.3; there are 1\.25\.0, "):
        validate(_ALL, "1.3")
