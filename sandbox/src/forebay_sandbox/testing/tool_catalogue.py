"""The foreign programs that tests run: versions, sources, and how to ask for a version. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


_KUBERNETES = "1.34.1"

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GoSource:
    """How `go build` makes a program: a folder of `resources/go` with go.mod and go.sum, and the package in it."""

    module: str
    package: str
    stamps: tuple[str, ...] = ()
    """What the linker writes into variables, `variable=value`: a release build does, a plain one has no version."""
    seconds: int
    """Duration of a first build on two busy cores; shown to people only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DebianSource:
    """Which Debian package has the program, and where in it."""

    package: str
    program: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One program."""

    name: str
    version: str
    """What is built; for a Debian package the least version, as the distribution has its own."""
    below: Version | None
    """A program on PATH must have at least `version` and be below this. None: it reports no version, and PATH is not
    searched."""
    source: GoSource | DebianSource
    ask: tuple[str, ...] = ("--version",)
    """The arguments that make the program print its version."""


def _kubernetes(name: str, *, seconds: int, ask: tuple[str, ...] = ("--version",)) -> Tool:
    stamped = "k8s.io/component-base/version"
    major, minor, _ = _KUBERNETES.split(".")
    return Tool(
        name=name,
        version=_KUBERNETES,
        below=(int(major), int(minor) + 1),
        source=GoSource(
            module="kubernetes",
            package=f"k8s.io/kubernetes/cmd/{name}",
            stamps=(
                f"{stamped}.gitVersion=v{_KUBERNETES}",
                f"{stamped}.gitMajor={major}",
                f"{stamped}.gitMinor={minor}",
            ),
            seconds=seconds,
        ),
        ask=ask,
    )


TOOLS: Mapping[str, Tool] = {
    tool.name: tool
    for tool in (
        Tool(
            name="helm",
            version="4.3.1",
            below=(5,),
            source=GoSource(
                module="helm",
                package="helm.sh/helm/v4/cmd/helm",
                stamps=("helm.sh/helm/v4/internal/version.version=v4.3.1",),
                seconds=190,
            ),
            ask=("version", "--short"),
        ),
        Tool(
            name="helm-unittest",
            version="1.1.2",
            below=None,
            source=GoSource(
                module="helm-unittest",
                package="github.com/helm-unittest/helm-unittest/cmd/helm-unittest",
                seconds=65,
            ),
        ),
        Tool(
            name="promtool",
            version="2.42.0",
            below=(4,),
            source=DebianSource(package="prometheus", program="usr/bin/promtool"),
        ),
        Tool(
            name="prometheus",
            version="2.42.0",
            below=(4,),
            source=DebianSource(package="prometheus", program="usr/bin/prometheus"),
        ),
        Tool(
            name="etcd",
            version="3.4.0",
            below=(4,),
            source=DebianSource(package="etcd-server", program="usr/bin/etcd"),
        ),
        Tool(
            name="compose-spec",
            version="2.9.0",
            below=None,
            source=GoSource(module="compose", package="github.com/compose-spec/compose-go/v2/cmd", seconds=90),
        ),
        Tool(
            name="actionlint",
            version="1.7.12",
            below=(2,),
            source=GoSource(
                module="actionlint",
                package="github.com/rhysd/actionlint/cmd/actionlint",
                stamps=("github.com/rhysd/actionlint.version=1.7.12",),
                seconds=30,
            ),
        ),
        Tool(
            name="cosign",
            version="2.6.5",
            below=(3,),
            source=GoSource(
                module="cosign",
                package="github.com/sigstore/cosign/v2/cmd/cosign",
                stamps=("sigs.k8s.io/release-utils/version.gitVersion=v2.6.5",),
                seconds=480,
            ),
            ask=("version",),
        ),
        Tool(
            name="docker-registry",
            version="2.8.0",
            below=(3,),
            source=DebianSource(package="docker-registry", program="usr/bin/docker-registry"),
        ),
        _kubernetes("kube-apiserver", seconds=442),
        _kubernetes("kube-controller-manager", seconds=101),
        _kubernetes("kube-scheduler", seconds=8),
        _kubernetes("kubectl", seconds=47, ask=("version", "--client")),
        Tool(
            name="kwok",
            version="0.8.0",
            below=(0, 9),
            source=GoSource(module="kwok", package="sigs.k8s.io/kwok/cmd/kwok", seconds=166),
        ),
        Tool(
            name="controller-gen",
            version="0.21.0",
            below=(0, 22),
            source=GoSource(module="crds", package="sigs.k8s.io/controller-tools/cmd/controller-gen", seconds=25),
        ),
    )
}
