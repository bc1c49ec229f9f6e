"""Changes of a running release: upgrades, rollbacks, scaling, evictions; ready workers are counted meanwhile."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from forebay_sandbox.testing.kubernetes import KubectlError
from harness.helm_release import HelmError, HelmRelease
from harness.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forebay_sandbox.testing.kubernetes import LocalKubernetes

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

_WORKERS = 3
_DEPLOYMENT = "deployment/forebay-worker-default"
_THREE = {"poolDefaults.replicas": _WORKERS}


def fewest_ready(release: HelmRelease, act: Callable[[], object]) -> int:
    """The least number of ready workers while ``act`` runs. Raises what it raises."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        acting = pool.submit(act)
        seen = [len(release.ready_workers())]
        while not acting.done():
            seen.append(len(release.ready_workers()))
        acting.result()
    return min(seen)


def test_an_upgrade_replaces_all_workers_and_never_has_fewer_ready(release: HelmRelease) -> None:
    release.install(settings=_THREE)
    old = set(release.wait_for_workers(_WORKERS))
    another = _THREE | {"poolDefaults.podAnnotations": {"reviewed": "yes"}}
    fewest = fewest_ready(release, lambda: release.upgrade(settings=another))

    assert fewest >= _WORKERS
    assert old.isdisjoint(release.wait_for_workers(_WORKERS))
    assert release.history() == ["superseded", "deployed"]


def test_an_upgrade_to_pods_that_never_become_ready_leaves_the_old_ones_and_can_be_rolled_back(
    release: HelmRelease,
) -> None:
    release.install(settings=_THREE)
    old = set(release.wait_for_workers(_WORKERS))
    broken = _THREE | {"image.worker.tag": "missing"}
    with pytest.raises(HelmError, match="forebay-worker-default"):
        release.upgrade(settings=broken, wait_seconds=15)
    assert set(release.ready_workers()) == old
    assert len(release.workers()) > _WORKERS
    assert release.history()[-1] == "failed"

    assert fewest_ready(release, lambda: release.rollback(1)) >= _WORKERS
    assert set(release.wait_for_workers(_WORKERS)) == old
    assert release.history()[-1] == "deployed"


def test_workers_are_scaled_by_hand_up_and_down(release: HelmRelease) -> None:
    release.install()
    for number in (5, 1, 2):
        release.kubectl("scale", _DEPLOYMENT, f"--replicas={number}")
        release.wait_for_workers(number)


@pytest.mark.parametrize("kind", ["keda", "hpa"])
def test_an_upgrade_leaves_the_number_that_an_autoscaler_gave(release: HelmRelease, kind: str) -> None:
    scaled = {"poolDefaults.autoscaling.kind": kind}
    release.install(settings=scaled)
    release.kubectl("scale", _DEPLOYMENT, "--replicas=5")
    release.wait_for_workers(5)
    release.upgrade(settings=scaled | {"poolDefaults.podAnnotations": {"reviewed": "yes"}})

    release.wait_for_workers(5)


@pytest.fixture
def full(kubernetes: LocalKubernetes) -> Iterator[Callable[[bool], None]]:
    """A function that says whether the nodes are full for new pods; at the test's end they are not."""
    nodes = [node["metadata"]["name"] for node in kubernetes.get("nodes")["items"]]

    def say(full: bool) -> None:
        kubernetes.kubectl("cordon" if full else "uncordon", *nodes)

    yield say
    say(False)


def test_an_eviction_beyond_the_budget_is_refused_until_another_worker_is_ready(
    release: HelmRelease, full: Callable[[bool], None]
) -> None:
    release.install(settings=_THREE)
    first, second, _ = release.wait_for_workers(_WORKERS)
    wait_until("the budget has counted the workers", lambda: _disruptions_allowed(release) == 1)
    full(True)
    _evict(release, first)
    with pytest.raises(KubectlError, match="violate the pod's disruption budget"):
        _evict(release, second)
    assert second in release.ready_workers()

    full(False)
    release.wait_for_workers(_WORKERS)
    wait_until("the budget has counted the new worker", lambda: _disruptions_allowed(release) == 1)
    _evict(release, second)
    assert second not in release.wait_for_workers(_WORKERS)


def _disruptions_allowed(release: HelmRelease) -> int:
    [budget] = release.get("poddisruptionbudgets")
    allowed: int = budget["status"].get("disruptionsAllowed", 0)
    return allowed


def _evict(release: HelmRelease, pod: str) -> None:
    """Sends the eviction of `kubectl drain`. KubectlError: the server answered 429, Too Many Requests."""
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": release.namespace},
    }
    path = f"/api/v1/namespaces/{release.namespace}/pods/{pod}/eviction"
    release.kubectl("create", "--raw", path, "--filename=-", stdin=json.dumps(eviction))
