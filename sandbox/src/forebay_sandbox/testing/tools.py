"""Programs of others that tests run: helm, Prometheus, parts of Kubernetes, a registry. Found, or made once per user.

One on PATH comes first when its version fits. Else `go` builds it from pinned modules, or apt brings its Debian
package. Runs those programs; writes to the user's cache.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from forebay_sandbox.errors import PrerequisiteMissingError, SandboxError
from forebay_sandbox.fetched import complete, fetched
from forebay_sandbox.files import cache_root, resource
from forebay_schemas.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# The longest, kube-apiserver, took 442 s on two busy cores with nothing compiled before.
BUILD_SECONDS_MAX = 3600
_GO_BUILD = ("go", "build", "-mod=readonly", "-buildvcs=false", "-trimpath")
_ASK_SECONDS_MAX = 20
_ERROR_LINES = 15
_KUBERNETES = "1.34.1"

Version = tuple[int, ...]


class ToolUnavailableError(SandboxError):
    """Go or apt ran, but did not bring the program."""

    reason = "tool_unavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class GoSource:
    """How `go build` makes a program: a folder of `resources/go` with go.mod and go.sum, and the package in it."""

    module: str
    package: str
    stamps: tuple[str, ...] = ()
    """What the linker writes into variables, `variable=value`: a release build does, a plain one has no version."""
    seconds: int
    """How long a first build took on two busy cores; only said to people."""


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
    """One on PATH has at least `version` and is below this. None: it tells no version; PATH is not looked at."""
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


def helm() -> Path:
    """Helm 4. Like all of these: fetched first when it is missing, which can take minutes. See `tool`."""
    return tool("helm")


def helm_unittest() -> Path:
    """helm-unittest as a program of its own: `helm-unittest CHART`. It brings a Helm, no plugin is installed."""
    return tool("helm-unittest")


def promtool() -> Path:
    """Prometheus' tool that checks and tests rules."""
    return tool("promtool")


def prometheus() -> Path:
    """The Prometheus server."""
    return tool("prometheus")


def etcd() -> Path:
    """The store below the Kubernetes API server."""
    return tool("etcd")


def kube_apiserver() -> Path:
    """The Kubernetes API server."""
    return tool("kube-apiserver")


def kube_controller_manager() -> Path:
    """What makes ReplicaSets of Deployments and pods of ReplicaSets."""
    return tool("kube-controller-manager")


def kube_scheduler() -> Path:
    """What gives pods their nodes."""
    return tool("kube-scheduler")


def kubectl() -> Path:
    """The client, of the API server's own minor version."""
    return tool("kubectl")


def kwok() -> Path:
    """What plays the nodes: pods become ready and end, no container runs."""
    return tool("kwok")


def controller_gen() -> Path:
    """What makes CustomResourceDefinitions of Go types."""
    return tool("controller-gen")


def tool(name: str) -> Path:
    """The program, fetched first when it is not at hand.

    Safe to call from several processes at once: one fetches, the others wait. UsageError: no such tool.
    PrerequisiteMissingError: Go or apt is needed and missing. ToolUnavailableError: they ran and failed.
    """
    wanted = _known(name)
    if (path := at_hand(name)) is not None:
        return path
    folder = _folder(wanted)
    fetched(folder, lambda partial: _make(wanted, partial), wait_seconds=BUILD_SECONDS_MAX)
    return folder / _program(wanted)


def at_hand(name: str) -> Path | None:
    """The program where nothing needs to be fetched, else None."""
    wanted = _known(name)
    if (path := _on_path(wanted)) is not None:
        return path
    folder = _folder(wanted)
    return folder / _program(wanted) if complete(folder) else None


def how(name: str) -> str:
    """How the program would be fetched, in words."""
    wanted = _known(name)
    match wanted.source:
        case GoSource(seconds=seconds):
            return f"built with Go, once; about {seconds} s"
        case DebianSource(package=package):
            return f"Debian package {package}, unpacked into the cache"


def _known(name: str) -> Tool:
    if name not in TOOLS:
        raise UsageError(name, "is no tool of the sandbox", fix=f"give one of {', '.join(TOOLS)}")
    return TOOLS[name]


def _folder(wanted: Tool) -> Path:
    match wanted.source:
        case GoSource(module=module, package=go_package, stamps=stamps):
            # Another recipe has another folder, so nobody runs what another checkout pinned.
            recipe = hashlib.sha256(repr((_GO_BUILD, go_package, stamps)).encode())
            for file in ("go.mod", "go.sum"):
                recipe.update(resource(f"go/{module}/{file}").read_bytes())
            return cache_root() / f"tool-{wanted.name}-{wanted.version}-{recipe.hexdigest()[:8]}"
        case DebianSource(package=package):
            return cache_root() / f"tool-{package}-debian"


def _program(wanted: Tool) -> str:
    return wanted.source.program if isinstance(wanted.source, DebianSource) else wanted.name


def _on_path(wanted: Tool) -> Path | None:
    found = shutil.which(wanted.name)
    if found is None or wanted.below is None:
        return None
    try:
        said = subprocess.run(
            [found, *wanted.ask],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_ASK_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = version_in(said.stdout)
    least = version_in(wanted.version)
    fits = version is not None and least is not None and least[:2] <= version < wanted.below
    return Path(found) if fits else None


def version_in(text: str) -> Version | None:
    """The first version of three numbers in what a program says of itself."""
    match = re.search(r"(\d+)\.(\d+)\.(\d+)", text)
    return tuple(int(number) for number in match.groups()) if match else None


def _make(wanted: Tool, partial: Path) -> Path:
    match wanted.source:
        case GoSource() as source:
            return _build(wanted, source, partial)
        case DebianSource() as source:
            return _unpack(wanted, source, partial)


def _build(wanted: Tool, source: GoSource, partial: Path) -> Path:
    needed = _go_needed(source)
    if shutil.which("go") is None:
        raise PrerequisiteMissingError(
            f"Go {needed} or later is needed once, to build {wanted.name}: install it, "
            f"or put {_fitting(wanted)} on PATH"
        )
    content = partial / "content"
    linker = " ".join(["-s", "-w", *(f"-X {stamp}" for stamp in source.stamps)])
    _run(
        [*_GO_BUILD, "-ldflags", linker, "-o", str(content / wanted.name), source.package],
        folder=resource(f"go/{source.module}"),
        # Without C no compiler for it is needed; the user's own flags and workspaces are about the user's own code.
        variables={"CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"},
        what=f"Go could not build {wanted.name} {wanted.version} (it needs Go {needed} or later)",
    )
    return content


def _go_needed(source: GoSource) -> str:
    [needed] = re.findall(r"^go (\d+\.\d+)", resource(f"go/{source.module}/go.mod").read_text("utf-8"), re.MULTILINE)
    return str(needed)


def _unpack(wanted: Tool, source: DebianSource, partial: Path) -> Path:
    apt, dpkg = shutil.which("apt-get"), shutil.which("dpkg-deb")
    if apt is None or dpkg is None:
        raise PrerequisiteMissingError(
            f"{wanted.name} comes as the Debian package {source.package}, and there is no apt-get here: "
            f"put {_fitting(wanted)} on PATH"
        )
    what = f"apt-get could not bring the Debian package {source.package} with {wanted.name}"
    download = [apt, "download", "--quiet", source.package]
    try:
        _run(download, folder=partial, what=what)
    except ToolUnavailableError as error:
        if os.geteuid() != 0:
            fix = f"run `apt-get update` as root and try again, or put {_fitting(wanted)} on PATH"
            raise ToolUnavailableError(f"{error}\n{fix}") from None
        # Fresh machines and images have no lists of packages.
        _run([apt, "update", "--quiet"], folder=partial, what="apt-get could not fetch its lists of packages")
        _run(download, folder=partial, what=what)
    [archive] = partial.glob("*.deb")
    content = partial / "content"
    _run([dpkg, "--extract", str(archive), str(content)], folder=partial, what=f"dpkg-deb could not unpack {archive}")
    if not (content / source.program).exists():
        raise ToolUnavailableError(f"the Debian package {source.package} has no {source.program}")
    return content


def _fitting(wanted: Tool) -> str:
    if wanted.below is None:
        return f"{wanted.name} {wanted.version}"
    below = ".".join(map(str, wanted.below))
    return f"{wanted.name} {wanted.version.rpartition('.')[0]} or later (below {below})"


def _run(command: Sequence[str], *, folder: Path, what: str, variables: Mapping[str, str] | None = None) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=os.environ | (variables or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BUILD_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ToolUnavailableError(f"{what}: it did not end within {BUILD_SECONDS_MAX} s") from None
    if done.returncode != 0:
        tail = "\n".join(done.stdout.strip().splitlines()[-_ERROR_LINES:])
        raise ToolUnavailableError(f"{what}; exit status {done.returncode}:\n{tail}")
