"""Contents and metadata of a wheel: license, README, authors, summary."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("schemas", "producer", "worker", "sandbox")


@pytest.mark.parametrize("package", PACKAGES)
def test_a_wheel_brings_its_license_and_says_what_it_is(package: str, tmp_path: Path) -> None:
    # In a process of its own: the builder reads the folder that it runs in.
    build = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)], cwd=ROOT / package, check=True, capture_output=True, timeout=60
    )
    [path] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        [license_name] = [name for name in names if name.endswith(".dist-info/licenses/LICENSE")]
        assert wheel.read(license_name) == (ROOT / "LICENSE").read_bytes()
        [metadata_name] = [name for name in names if name.endswith(".dist-info/METADATA")]
        metadata = message_from_bytes(wheel.read(metadata_name))
    assert f"forebay_{package}/py.typed" in names
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Author"] == "The Forebay authors"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert str(metadata.get_payload()).startswith(f"# forebay-{package}\n")
    classifiers = metadata.get_all("Classifier") or []
    assert len(classifiers) >= 6
    assert ("Private :: Do Not Upload" in classifiers) == (package == "sandbox")
