"""Both images, built by tools/images with buildah on a Debian base: no container engine, no registry.

Needs root, buildah and mmdebstrap; fetches packages from wherever this machine's apt and pip do.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forebay_sandbox.fetched import fetched
from forebay_sandbox.files import cache_root

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).parents[2]
DEPLOYABLES = ("producer", "worker")
BASE = "localhost/forebay-test-base"
EPOCH = 1767225600
"""The base's time, and the images': 2026-01-01T00:00:00Z."""

_BASE_SECONDS_MAX = 1200
_BUILD_SECONDS_MAX = 1800
_BASE_OF = ("--variant=minbase", "--include=python3,python3-venv,python3-pip,ca-certificates", "bookworm")
_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt",)
_PIP_VARIABLES = ("INDEX_URL", "EXTRA_INDEX_URL", "TRUSTED_HOST", "PROXY", "TIMEOUT", "DEFAULT_TIMEOUT", "RETRIES")


def require_builder() -> None:
    """Skips the test where images cannot be built, and says why; fails it in CI."""
    missing = [name for name in ("buildah", "mmdebstrap") if shutil.which(name) is None]
    problem = f"`apt-get install {' '.join(missing)}` first" if missing else None
    if problem is None and os.geteuid() != 0:
        problem = "a user other than root may not make a base"
    if problem is None:
        return
    problem = f"no image can be built here: {problem}"
    if os.environ.get("CI") == "true":
        pytest.fail(problem)
    pytest.skip(problem)


@dataclass(frozen=True, kw_only=True)
class ImageBuild:
    """A place to build in, with a store of its own that goes with the folder."""

    folder: Path
    secret: str = field(default_factory=lambda: secrets.token_hex(16))
    """Stands in the pip.conf that the builds are given, and must stand nowhere in what they make."""

    def base(self) -> str:
        """Imports the base; its name with its digest."""
        archive = _base_archive()
        self.folder.mkdir(parents=True, exist_ok=True)
        storage = f'[storage]\ndriver = "vfs"\nrunroot = "{self.folder}/run"\ngraphroot = "{self.folder}/store"\n'
        (self.folder / "storage.conf").write_text(storage, encoding="utf-8")
        container = self._buildah("from", "scratch")
        self._buildah("add", "--quiet", container, str(archive), "/")
        root = Path(self._buildah("mount", container))
        # The official image's Python is nobody else's: pip may change it.
        for path in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
            path.unlink()
        self._buildah("umount", container)
        path_variable = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        self._buildah("config", "--env", path_variable, "--cmd", "python3", container)
        self._buildah("commit", "--quiet", "--rm", "--timestamp", str(EPOCH), container, f"{BASE}:bookworm")
        ask = ("inspect", "--type", "image", "--format", "{{.FromImageDigest}}")
        return f"{BASE}@{self._buildah(*ask, f'{BASE}:bookworm')}"

    def images(self, *deployables: str, base: str, archives: Path) -> None:
        """Runs tools/images; one OCI archive for each."""
        pip_conf = self.folder / "pip.conf"
        pip_conf.write_text(f"# {self.secret}\n{_pip_conf(os.environ)}", encoding="utf-8")
        options = ["--no-cache", "--pull=never"]
        for bundle in _BUNDLES:
            if Path(bundle).exists():
                options += ["--volume", f"{bundle}:{bundle}:ro"]
        self._run(
            [str(ROOT / "tools/images"), *deployables],
            BUILDER="buildah",
            ARCHIVES=str(archives),
            PYTHON_IMAGE=base,
            SOURCE_URL="https://git.example.com/forebay",
            SOURCE_DATE_EPOCH=str(EPOCH),
            PIP_CONF=str(pip_conf),
            BUILD_OPTIONS=" ".join(options),
        )

    def remove(self) -> None:
        """The store with all that was built in it."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _buildah(self, *words: str) -> str:
        return self._run(["buildah", *words]).strip()

    def _run(self, command: Sequence[str], **variables: str) -> str:
        done = subprocess.run(
            command,
            env={
                **os.environ,
                "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
                "STORAGE_DRIVER": "vfs",
                "BUILDAH_ISOLATION": "chroot",
                **variables,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_BUILD_SECONDS_MAX,
            check=False,
        )
        if done.returncode != 0:
            pytest.fail(f"{' '.join(command)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-6000:]}")
        return done.stdout


def _base_archive() -> Path:
    """Debian with Python, which stands in for the official image; made once per user."""
    recipe = hashlib.sha256(" ".join(_BASE_OF).encode()).hexdigest()[:8]

    def make(partial: Path) -> Path:
        content = partial / "content"
        content.mkdir()
        # Into the file, not to stdout: what it says of itself is then seen in an error.
        subprocess.run(
            ["mmdebstrap", "--quiet", *_BASE_OF, str(content / "base.tar")],
            env={**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH)},
            stdin=subprocess.DEVNULL,
            check=True,
            timeout=_BASE_SECONDS_MAX,
        )
        return content

    folder = cache_root() / f"image-base-{_BASE_OF[-1]}-{recipe}"
    return fetched(folder, make, wait_seconds=_BASE_SECONDS_MAX) / "base.tar"


def _pip_conf(environment: Mapping[str, str]) -> str:
    """This machine's way to packages: what pip takes from files and variables, for a build that sees neither."""
    listed = subprocess.run(
        ["python3", "-m", "pip", "config", "list"], capture_output=True, text=True, check=False, timeout=60
    )
    found: dict[str, str] = {}
    # Variables come after files, as with pip itself.
    for line in sorted(listed.stdout.splitlines(), key=lambda line: line.startswith(":env:")):
        name, _, value = line.partition("=")
        found[name.rpartition(".")[2]] = value.strip().strip("'")
    wanted = {name.lower().replace("_", "-") for name in _PIP_VARIABLES} | {"cert"}
    lines = [f"{name} = {value}" for name, value in sorted(found.items()) if name in wanted]
    if "cert" not in found and (bundle := environment.get("SSL_CERT_FILE")) in _BUNDLES:
        lines.append(f"cert = {bundle}")
    return "\n".join(["[global]", *lines, ""])
