"""The images' requirements, Dockerfiles, and build inputs. Runs hadolint; no image engine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILES = sorted(DEPLOY.glob("*.Dockerfile"))
PACKAGES = {
    "producer": ("schemas", "producer"),
    "worker": ("schemas", "worker"),
    "sandbox": ("schemas", "producer", "sandbox"),
}
LEFT_OUT = {"msk"}
"""Extras that weigh as much as all the rest; requirements/msk.txt adds it."""

USER = "10001:10001"

_PIN = re.compile(
    r"^(?P<name>[a-z0-9-]+)==(?P<version>[^ ;]+)[^\\]*\\\n(?: +--hash=\S+(?: \\)?\n)+",
    re.MULTILINE,
)


def pins(name: str) -> dict[str, str]:
    """Names and versions in a file of requirements, all of which must have their hashes."""
    text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
    found = {match["name"]: match["version"] for match in _PIN.finditer(text)}
    left = [line for line in _PIN.sub("", text).splitlines() if line.strip()]
    assert left == [], f"requirements/{name} has more than pins with hashes: {left[:3]}"
    return found


def asked_for(deployable: str) -> set[str]:
    """The distributions that a deployable and what it is made of ask for, with its own extras."""
    lines: list[str] = []
    for package in PACKAGES[deployable]:
        project = tomllib.loads((ROOT / package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        lines += project["dependencies"]
        if package == deployable:
            extras = project.get("optional-dependencies", {})
            lines += [line for extra, wanted in extras.items() if extra not in LEFT_OUT for line in wanted]
    return {name for line in lines if not (name := re.split(r"[^A-Za-z0-9._-]", line)[0]).startswith("forebay-")}


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """Each instruction and what follows it, continued lines put together."""
    text = "".join(line for line in dockerfile.read_text(encoding="utf-8").splitlines(keepends=True) if line[0] != "#")
    lines = text.replace("\\\n", " ").splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines) if word]


def stages(dockerfile: Path) -> list[list[tuple[str, str]]]:
    """The instructions of each stage, its FROM first."""
    found: list[list[tuple[str, str]]] = []
    for word, rest in instructions(dockerfile):
        if word == "FROM":
            found.append([])
        if found:
            found[-1].append((word, rest))
    return found


@pytest.mark.parametrize("name", ["build", *PACKAGES])
def test_an_image_gets_the_versions_that_the_tests_run_with(name: str) -> None:
    tested = pins("dev.txt")
    assert {package: tested.get(package) for package in pins(f"{name}.txt")} == pins(f"{name}.txt")


@pytest.mark.parametrize("deployable", PACKAGES)
def test_an_image_gets_all_that_its_packages_ask_for(deployable: str) -> None:
    assert asked_for(deployable) - pins(f"{deployable}.txt").keys() == set()


def test_what_an_image_leaves_out_can_be_added_with_the_versions_that_the_tests_run_with() -> None:
    tested = pins("dev.txt")
    assert {package: tested.get(package) for package in pins("msk.txt")} == pins("msk.txt")
    assert "aws-msk-iam-sasl-signer-python" in pins("msk.txt")


def test_an_image_gets_no_tools_of_tests_and_builds() -> None:
    for deployable in ("producer", "worker"):
        assert (
            pins(f"{deployable}.txt").keys() & {"pytest", "ruff", "mypy", "hatchling", "matplotlib", "trustme"} == set()
        )


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_hadolint_finds_nothing(dockerfile: Path) -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("hadolint"), "--no-color", dockerfile],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_runs_as_a_user_without_rights_and_without_what_built_it(dockerfile: Path) -> None:
    builder, final = stages(dockerfile)
    assert builder[0][1] == "${PYTHON_IMAGE} AS builder"
    assert final[0][1] == "${PYTHON_IMAGE}"
    assert ("USER", USER) in final
    assert ("ENV", "PATH=/opt/forebay/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1") in final
    # After the change of user nothing is copied or run, so no file belongs to it.
    assert {word for word, _ in final[final.index(("USER", USER)) :]} <= {
        "USER",
        "EXPOSE",
        "HEALTHCHECK",
        "ENTRYPOINT",
        "CMD",
    }
    assert [rest for word, rest in final if word == "COPY" and "--from" not in rest] in ([], ["LICENSE /opt/forebay/"])


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_the_base_is_one_release_and_can_be_given_with_its_digest(dockerfile: Path) -> None:
    [base] = [rest for word, rest in instructions(dockerfile) if word == "ARG" and rest.startswith("PYTHON_IMAGE")]
    assert re.fullmatch(r"PYTHON_IMAGE=python:3\.\d+\.\d+-slim-\w+", base)


def test_all_dockerfiles_stand_on_the_same_base() -> None:
    assert (
        len({rest for path in DOCKERFILES for word, rest in instructions(path) if rest.startswith("PYTHON_IMAGE=")})
        == 1
    )


@pytest.mark.parametrize("deployable", ["producer", "worker"])
def test_a_published_image_says_what_it_was_made_of_and_has_no_program_that_changes_its_user(deployable: str) -> None:
    final = stages(DEPLOY / f"{deployable}.Dockerfile")[1]
    [labels] = [rest for word, rest in final if word == "LABEL"]
    prefix = "org.opencontainers.image"
    assert set(re.findall(rf"{prefix}\.([a-z.]+)=", labels)) == {
        "title",
        "description",
        "licenses",
        "version",
        "revision",
        "created",
        "source",
        "base.name",
        "base.digest",
    }
    [run] = [rest for word, rest in final if word == "RUN"]
    assert run.endswith("&& find / -xdev -type f -perm /6000 -exec chmod a-s {} +")
    # Nothing may bring one after that.
    assert [word for word, _ in final[final.index(("RUN", run)) :] if word == "RUN"] == ["RUN"]


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_a_build_installs_by_the_script_alone_and_copies_what_its_packages_need(dockerfile: Path) -> None:
    deployable = dockerfile.name.partition(".")[0]
    builder = stages(dockerfile)[0]
    runs = [rest for word, rest in builder if word == "RUN"]
    assert [run.partition(" ")[2] for run in runs] == [
        f"deploy/install.sh dependencies {deployable} /opt/forebay",
        f"deploy/install.sh packages {deployable} /opt/forebay",
    ]
    copied = [word for kind, rest in builder if kind == "COPY" for word in rest.split()[:-1]]
    expected = ["deploy/install.sh", "requirements/build.txt", f"requirements/{deployable}.txt", *PACKAGES[deployable]]
    assert copied == expected
    allowed = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for source in copied:
        assert (ROOT / source).exists()
        assert f"!{source}" in allowed or (source.startswith("requirements/") and "!requirements/*.txt" in allowed)


def test_make_images_says_that_an_engine_is_missing(tmp_path: Path) -> None:
    # A docker without an engine behind it, as on many a build machine.
    (tmp_path / "docker").symlink_to("/bin/false")
    done = subprocess.run(
        [ROOT / "tools/images"],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("images: no Docker engine answers")


def test_the_install_script_names_what_it_takes(tmp_path: Path) -> None:
    for step, deployable, said in (
        ("packages", "gateway", "producer, worker or sandbox"),
        ("all", "worker", "no step"),
    ):
        command = [str(ROOT / "deploy/install.sh"), step, deployable, str(tmp_path / "venv")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2
        assert said in done.stderr


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("deployable", ["producer", "worker"])
def test_the_base_s_library_compiles_without_an_error(deployable: str, tmp_path: Path) -> None:
    final = stages(DEPLOY / f"{deployable}.Dockerfile")[1]
    [line] = [part for word, rest in final if word == "RUN" for part in rest.split("&&") if "compileall" in part]
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path)}
    done = subprocess.run(["sh", "-c", line], env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert len(list(tmp_path.rglob("*.pyc"))) > 300
