"""Both images, built once for the run, and their roots."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.contained import require_namespaces
from harness.image_build import DEPLOYABLES, ROOT, ImageBuild, require_builder
from harness.image_root import ImageRoot
from harness.oci_archive import OciArchive

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ARCHIVES = ROOT / "build/images/test"


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """Images by deployable, their base with its digest, and what the builds were to keep to themselves."""

    images: Mapping[str, OciArchive]
    base: str
    secret: str


@pytest.fixture(scope="session")
def build() -> Iterator[ImageBuild]:
    require_builder()
    # Not below the repository, whose folder is what the builds read.
    build = ImageBuild(folder=Path(tempfile.mkdtemp(prefix="forebay-build-")))
    yield build
    build.remove()


@pytest.fixture(scope="session")
def base(build: ImageBuild) -> str:
    return build.base()


@pytest.fixture(scope="session")
def built(request: pytest.FixtureRequest) -> Built:
    """Built now, or before of this very commit if nothing has changed since; `make test-image` removes those."""
    note = ARCHIVES / "built.json"
    commit = this_commit()
    known = json.loads(note.read_text(encoding="utf-8")) if note.exists() else {}
    if commit is None or known.get("commit") != commit:
        note.unlink(missing_ok=True)
        build: ImageBuild = request.getfixturevalue("build")
        base: str = request.getfixturevalue("base")
        build.images(base=base, archives=ARCHIVES)
        known = {"commit": commit, "base": base, "secret": build.secret}
        note.write_text(json.dumps(known), encoding="utf-8")
    images = {name: OciArchive(ARCHIVES / f"forebay-{name}.oci.tar") for name in DEPLOYABLES}
    return Built(images=images, base=known["base"], secret=known["secret"])


def this_commit() -> str | None:
    """Its name; None where files differ from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    return None if git("status", "--porcelain") else git("rev-parse", "HEAD")


@pytest.fixture(scope="session")
def roots(built: Built) -> Iterator[Mapping[str, ImageRoot]]:
    """The images, unpacked."""
    require_namespaces()
    folder = Path(tempfile.mkdtemp(prefix="forebay-root-"))
    made: dict[str, Any] = {}
    for name, image in built.images.items():
        (folder / name).mkdir(mode=0o755)
        made[name] = ImageRoot(image, folder / name)
    yield made
    shutil.rmtree(folder)
