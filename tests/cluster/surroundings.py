"""A cluster before the chart comes: nodes, one of them with GPUs, and what belongs to them."""

from __future__ import annotations

GPU_NODE = "gpu-1"


def _node(name: str, zone: str, *, gpus: int = 0) -> dict[str, object]:
    size = {"cpu": "16", "memory": "64Gi", "pods": "110"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "topology.kubernetes.io/zone": zone}
    taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": [taint] if gpus else []},
        "status": {"capacity": size, "allocatable": size},
    }


SURROUNDINGS = [
    _node("cpu-1", "a"),
    _node("cpu-2", "b"),
    _node(GPU_NODE, "b", gpus=8),
    {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "nvidia"},
    {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "monitoring"}},
]
