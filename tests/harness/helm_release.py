"""One release of the chart in a namespace of its own on a real API server. Runs helm and kubectl."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forebay_sandbox.testing.kubernetes import LocalKubernetes

CHART = Path(__file__).parents[2] / "helm" / "forebay"
# Far more than a rollout of pods that kwok plays takes, also on a busy machine.
WAIT_SECONDS = 120
_OF_EVERY_NAMESPACE = {("ServiceAccount", "default"), ("ConfigMap", "kube-root-ca.crt")}
_SELECTOR = "app.kubernetes.io/component=worker"


class HelmError(Exception):
    """Helm ended with a status that is not 0; ``str(error)`` is what it said."""


class HelmRelease:
    """The release `forebay` in ``namespace``, which exists."""

    def __init__(self, *, cluster: LocalKubernetes, helm: Path, namespace: str) -> None:
        self.namespace = namespace
        self._cluster = cluster
        self._helm = helm

    def install(self, values: Sequence[Path] = (), *, settings: Mapping[str, object] | None = None) -> None:
        """Install, and wait until all is ready. ``settings``: paths of values and what they are, beating ``values``."""
        self.helm("install", "forebay", str(CHART), *self._wait(), *_given(values, settings))

    def upgrade(
        self,
        values: Sequence[Path] = (),
        *,
        settings: Mapping[str, object] | None = None,
        wait_seconds: int = WAIT_SECONDS,
    ) -> None:
        """Upgrade, and wait until all is ready. HelmError: not so within ``wait_seconds``."""
        self.helm("upgrade", "forebay", str(CHART), *self._wait(wait_seconds), *_given(values, settings))

    def rollback(self, revision: int) -> None:
        """Go back to a revision, and wait until all is ready."""
        self.helm("rollback", "forebay", str(revision), *self._wait())

    def uninstall(self) -> None:
        """Delete what the release made, and wait until it is gone. Nothing happens when there is none."""
        self.helm("uninstall", "forebay", "--ignore-not-found", *self._wait())

    def template(self, values: Sequence[Path] = ()) -> str:
        """The rendered manifests, hooks included."""
        return self.helm("template", "forebay", str(CHART), *_given(values, None))

    def helm(self, *args: str) -> str:
        """Output of a helm command. Raises HelmError."""
        done = subprocess.run(
            [self._helm, *args, "--namespace", self.namespace],
            env=self._cluster.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=2 * WAIT_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise HelmError(done.stderr.strip())
        return done.stdout

    def history(self) -> list[str]:
        """The status of each revision, oldest first."""
        return [one["status"] for one in json.loads(self.helm("history", "forebay", "--output=json"))]

    def kubectl(self, *args: str, stdin: str | None = None) -> str:
        """Output of a kubectl command in the release's namespace. Raises KubectlError."""
        return self._cluster.kubectl(*args, "--namespace", self.namespace, stdin=stdin)

    def get(self, kind: str, *args: str) -> list[Any]:
        """All objects of a kind in the release's namespace."""
        items: list[Any] = self._cluster.get(kind, *args, "--namespace", self.namespace)["items"]
        return items

    def workers(self) -> list[Any]:
        """The pods of all workers, those that are ending too."""
        return self.get("pods", "--selector", _SELECTOR)

    def ready_workers(self) -> list[str]:
        """The names of the workers' pods that are ready and not ending."""
        return [pod["metadata"]["name"] for pod in self.workers() if is_ready(pod)]

    def wait_for_workers(self, number: int) -> list[str]:
        """Waits until ``number`` workers are ready; returns their names."""

        def settled() -> list[str]:
            pods = self.workers()
            names = [pod["metadata"]["name"] for pod in pods if is_ready(pod)]
            return names if len(names) == len(pods) == number else []

        return wait_until(f"{number} workers are ready", settled)

    def left(self, namespace: str | None = None) -> list[str]:
        """Objects in a namespace, by default the release's. Events and objects that every namespace has are left
        out."""
        listed = self._cluster.kubectl("api-resources", "--namespaced", "--verbs=list,delete", "--output=name").split()
        kinds = ",".join(kind for kind in listed if not kind.startswith("events"))
        items = self._cluster.get(kinds, "--namespace", namespace or self.namespace)["items"]
        found = [(one["kind"], one["metadata"]["name"]) for one in items]
        return [f"{kind}/{name}" for kind, name in found if (kind, name) not in _OF_EVERY_NAMESPACE]

    def _wait(self, seconds: int = WAIT_SECONDS) -> tuple[str, ...]:
        return ("--wait", f"--timeout={seconds}s")


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Whether the pod is ready and not ending."""
    conditions = pod["status"].get("conditions", [])
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


def _given(values: Sequence[Path], settings: Mapping[str, object] | None) -> list[str]:
    files = [f"--values={path}" for path in values]
    return [*files, *(f"--set-json={path}={json.dumps(value)}" for path, value in (settings or {}).items())]
