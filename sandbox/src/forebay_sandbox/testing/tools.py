"""Foreign programs that tests run: helm, Prometheus, parts of Kubernetes, a registry. Found, or built once per user.

A program on PATH with a fitting version comes first. Otherwise `go` builds it from pinned modules, or apt fetches its
Debian package. Runs those programs; writes to the user's cache.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

from forebay_sandbox.fetched import complete, fetched
from forebay_sandbox.files import cache_root, resource
from forebay_sandbox.testing.tool_builds import BUILD_SECONDS_MAX, GO_BUILD, make_tool
from forebay_sandbox.testing.tool_catalogue import TOOLS, DebianSource, GoSource, Tool, Version
from forebay_schemas.errors import UsageError

_ASK_SECONDS_MAX = 20


def tool(name: str) -> Path:
    """The program, fetched first when it is not at hand.

    Safe to call from several processes at once: one fetches, the others wait. UsageError: no such tool.
    PrerequisiteMissingError: Go or apt is needed and missing. ToolUnavailableError: they ran and failed.
    """
    wanted = _known(name)
    if (path := at_hand(name)) is not None:
        return path
    folder = _folder(wanted)
    fetched(folder, lambda partial: make_tool(wanted, partial), wait_seconds=BUILD_SECONDS_MAX)
    return folder / _program(wanted)


def at_hand(name: str) -> Path | None:
    """The program if it needs no fetching, else None."""
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
            recipe = hashlib.sha256(repr((GO_BUILD, go_package, stamps)).encode())
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
    """The first version of three numbers in the output of a program."""
    match = re.search(r"(\d+)\.(\d+)\.(\d+)", text)
    return tuple(int(number) for number in match.groups()) if match else None
