"""tools/images gives each builder what the Dockerfiles ask for. A stand-in for docker and buildah notes its words."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DIGEST = "sha256:" + "ab" * 32
RECORDER = f"""#!{sys.executable}
import json, os, pathlib, sys
with open(os.environ["NOTES"], "a") as notes:
    notes.write(json.dumps([pathlib.Path(sys.argv[0]).name, *sys.argv[1:]]) + "\\n")
"""


@pytest.fixture(autouse=True)
def builders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("docker", "buildah"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(RECORDER, encoding="utf-8")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    for name in ("BUILDER", "ARCHIVES", "PLATFORMS", "PYTHON_IMAGE", "SOURCE_URL", "SOURCE_DATE_EPOCH", "PIP_CONF"):
        monkeypatch.delenv(name, raising=False)


def images(*deployables: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "tools/images", *deployables],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def builds(tmp_path: Path) -> list[list[str]]:
    """The words of each build, without docker's `info`."""
    lines = [json.loads(line) for line in (tmp_path / "notes").read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if "build" in line]


def arguments(words: list[str]) -> dict[str, str]:
    """The build arguments."""
    given = [words[index + 1] for index, word in enumerate(words) if word == "--build-arg"]
    return {name: value for name, _, value in (each.partition("=") for each in given)}


def after(words: list[str], option: str) -> str:
    return words[words.index(option) + 1]


@pytest.mark.parametrize("builder", ["docker", "buildah"])
def test_both_images_are_built_at_the_time_of_the_commit_with_all_that_their_labels_ask_for(
    builder: str, tmp_path: Path
) -> None:
    base = f"python:3.11.14-slim-bookworm@{DIGEST}"
    done = images(BUILDER=builder, PYTHON_IMAGE=base, SOURCE_URL="https://git.example.com/forebay")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"forebay-producer:(\S+)\nforebay-worker:\1\n", done.stdout)
    epoch = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=True)
    both = builds(tmp_path)
    assert [after(words, "--file") for words in both] == ["deploy/producer.Dockerfile", "deploy/worker.Dockerfile"]
    for words in both:
        given = arguments(words)
        asked = re.findall(r"^ARG (\w+)", (ROOT / after(words, "--file")).read_text(encoding="utf-8"), re.MULTILINE)
        assert set(given) == set(asked)
        assert given["PYTHON_IMAGE"] == base
        assert given["SOURCE_DATE_EPOCH"] == epoch.stdout.strip()
        assert given["BASE_NAME"] == "python:3.11.14-slim-bookworm"
        assert given["BASE_DIGEST"] == DIGEST
        assert given["SOURCE"] == "https://git.example.com/forebay"
        assert re.fullmatch(r"[0-9a-f]{40}(-changed)?", given["REVISION"])
        assert words[-1] == "."


def test_a_time_of_ones_own_is_the_image_s_in_the_form_that_labels_have(tmp_path: Path) -> None:
    assert images("worker", BUILDER="buildah", SOURCE_DATE_EPOCH="1767225600").returncode == 0
    [words] = builds(tmp_path)
    assert arguments(words)["CREATED"] == "2026-01-01T00:00:00Z"
    assert after(words, "--timestamp") == "1767225600"
    assert arguments(words)["BASE_DIGEST"] == ""


def test_docker_s_archive_of_two_platforms_has_its_files_times_set(tmp_path: Path) -> None:
    archives = tmp_path / "archives"
    done = images("worker", PLATFORMS="linux/amd64,linux/arm64", ARCHIVES=str(archives))
    assert done.stdout == f"{archives}/forebay-worker.oci.tar\n"
    [words] = builds(tmp_path)
    assert after(words, "--platform") == "linux/amd64,linux/arm64"
    output = after(words, "--output")
    assert output.startswith(f"type=oci,dest={archives}/forebay-worker.oci.tar,")
    assert output.endswith(",rewrite-timestamp=true")


def test_buildah_s_archive_of_two_platforms_is_one_manifest(tmp_path: Path) -> None:
    archives = tmp_path / "archives"
    done = images("worker", BUILDER="buildah", PLATFORMS="linux/amd64,linux/arm64", ARCHIVES=str(archives))
    assert done.returncode == 0, done.stderr
    [words] = builds(tmp_path)
    image = after(words, "--manifest")
    assert after(words, "--platform") == "linux/amd64,linux/arm64"
    last = json.loads((tmp_path / "notes").read_text(encoding="utf-8").splitlines()[-1])
    version = image.partition(":")[2]
    target = f"oci-archive:{archives}/forebay-worker.oci.tar:{version}"
    assert last == ["buildah", "manifest", "push", "--all", image, target]


def test_an_index_of_ones_own_goes_in_as_a_secret_and_more_words_as_they_are(tmp_path: Path) -> None:
    options = "--no-cache --volume /etc/ssl:/etc/ssl:ro"
    assert images("producer", PIP_CONF="/etc/pip.conf", BUILD_OPTIONS=options).returncode == 0
    [words] = builds(tmp_path)
    assert after(words, "--secret") == "id=pip.conf,src=/etc/pip.conf"
    assert words[-4:-1] == ["--no-cache", "--volume", "/etc/ssl:/etc/ssl:ro"]


@pytest.mark.parametrize(
    ("deployables", "variables", "said"),
    [
        (["gateway"], {}, "gateway is no image: give producer, worker"),
        ([], {"BUILDER": "kaniko"}, "BUILDER: kaniko is not known; give docker or buildah"),
        ([], {"PLATFORMS": "linux/arm64"}, "PLATFORMS: .* give a folder as ARCHIVES"),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(deployables: list[str], variables: dict[str, str], said: str) -> None:
    done = images(*deployables, **variables)
    assert done.returncode == 2
    assert re.match(f"images: {said}", done.stderr)
