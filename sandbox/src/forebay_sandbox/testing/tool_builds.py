"""Makes one of the tools: `go` builds it from pinned modules, or apt brings its Debian package. Runs programs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from forebay_sandbox.errors import PrerequisiteMissingError, SandboxError
from forebay_sandbox.files import resource
from forebay_sandbox.testing.tool_catalogue import DebianSource, GoSource, Tool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


# The longest, kube-apiserver, took 442 s on two busy cores with nothing compiled before.
BUILD_SECONDS_MAX = 3600
GO_BUILD = ("go", "build", "-mod=readonly", "-buildvcs=false", "-trimpath")
_ERROR_LINES = 15


class ToolUnavailableError(SandboxError):
    """Go or apt ran, but did not provide the program."""

    reason = "tool_unavailable"


def make_tool(wanted: Tool, partial: Path) -> Path:
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
        [*GO_BUILD, "-ldflags", linker, "-o", str(content / wanted.name), source.package],
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
        # Fresh machines and images have no package lists.
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
