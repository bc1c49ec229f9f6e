"""Runs helm on the chart and reads what it renders. Writes nothing."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "forebay"
EXAMPLES = {path.stem: path for path in sorted((CHART / "examples").glob("*.yaml"))}
NAMESPACE = "inference"

Manifest = dict[str, Any]


def run_helm(helm: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs helm, whatever it says."""
    return subprocess.run([helm, *arguments], capture_output=True, text=True, timeout=60, check=False)


def template(helm: Path, *arguments: str | Path, release: str = "forebay") -> subprocess.CompletedProcess[str]:
    """Runs `helm template` on the chart with these options."""
    return run_helm(helm, "template", release, CHART, "--namespace", NAMESPACE, *arguments)


def render(helm: Path, *arguments: str | Path, release: str = "forebay") -> list[Manifest]:
    """All objects, hooks and tests included. Fails with what helm said."""
    done = template(helm, *arguments, release=release)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if each]


def refusal(helm: Path, *arguments: str | Path) -> str:
    """Helm's error for these values."""
    done = template(helm, *arguments)
    assert done.returncode != 0, f"helm took {arguments}"
    return done.stderr


def pod_of(manifest: Manifest) -> Manifest | None:
    """The spec of the pods that an object makes; None for one that makes none."""
    match manifest["kind"]:
        case "Pod":
            return manifest["spec"]  # type: ignore[no-any-return]
        case "CronJob":
            return manifest["spec"]["jobTemplate"]["spec"]["template"]["spec"]  # type: ignore[no-any-return]
        case "Deployment" | "Job":
            return manifest["spec"]["template"]["spec"]  # type: ignore[no-any-return]
    return None


def pods(manifests: list[Manifest]) -> dict[str, Manifest]:
    """The specs of all pods, by kind and name of what makes them."""
    found = {f"{each['kind']}/{each['metadata']['name']}": pod_of(each) for each in manifests}
    return {name: pod for name, pod in found.items() if pod is not None}
