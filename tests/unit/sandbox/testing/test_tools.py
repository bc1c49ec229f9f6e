"""Search for other people's programs, and their builds. Go, apt and dpkg are scripts that write small files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from forebay_sandbox.cli import app
from forebay_sandbox.errors import PrerequisiteMissingError
from forebay_sandbox.testing import tools
from forebay_sandbox.testing.tool_builds import ToolUnavailableError
from forebay_sandbox.testing.tool_catalogue import TOOLS
from forebay_schemas.errors import UsageError

# The last argument but one is the output: `go build ... -o OUTPUT PACKAGE`.
_GO = """for last in "$@"; do output=$previous; previous=$last; done
mkdir -p "$(dirname "$output")"; echo "go $*" >> "$RUNS"
printf '#!/bin/sh\\necho built\\n' > "$output"; chmod +x "$output" """
_APT = """echo "apt $*" >> "$RUNS"
case $1 in download) touch "$3_2.50.0_all.deb";; esac"""
_DPKG = """mkdir -p "$3/usr/bin"
for name in prometheus promtool; do touch "$3/usr/bin/$name"; done"""


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file with a line for each run of Go and apt."""
    file = tmp_path / "runs"
    file.touch()
    monkeypatch.setenv("RUNS", str(file))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # Only the shell's own tools beside what the test puts there: nothing of this machine is found.
    basics = tmp_path / "basics"
    basics.mkdir()
    for name in ("sh", "dirname", "mkdir", "touch", "chmod", "sleep", "grep"):
        (basics / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{basics}")
    program(tmp_path, "go", _GO)
    program(tmp_path, "apt-get", _APT)
    program(tmp_path, "dpkg-deb", _DPKG)
    return file


def program(folder: Path, name: str, script: str) -> Path:
    path = folder / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_a_tool_is_built_once(runs: Path) -> None:
    assert tools.at_hand("helm") is None
    first = tools.tool("helm")

    assert tools.tool("helm") == tools.at_hand("helm") == first
    assert subprocess.run([first], capture_output=True, text=True, check=True).stdout == "built\n"
    [run] = runs.read_text().splitlines()
    assert run.endswith("helm.sh/helm/v4/cmd/helm")
    assert "-X helm.sh/helm/v4/internal/version.version=v4.3.1" in run


def test_two_processes_at_once_build_once(runs: Path, tmp_path: Path) -> None:
    program(tmp_path, "go", f"sleep 0.5\n{_GO}")
    script = "from forebay_sandbox.testing import tools; print(tools.tool('helm'))"
    both = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    paths = {one.communicate(timeout=30)[0] for one in both}

    assert [one.returncode for one in both] == [0, 0]
    assert len(paths) == 1
    assert len(runs.read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("said", "taken"),
    [
        ("v4.3.1+g1234567", True),
        ("v4.9.0", True),
        ("v4.2.9", False),
        ("v3.19.0", False),
        ("v5.0.0", False),
        ("helm, built yesterday", False),
    ],
)
def test_one_on_path_is_taken_when_its_version_fits(runs: Path, tmp_path: Path, said: str, *, taken: bool) -> None:
    mine = program(tmp_path, "helm", f"echo '{said}'")

    assert (tools.tool("helm") == mine) is taken
    assert (runs.read_text() == "") is taken


@pytest.mark.usefixtures("runs")
def test_what_go_says_is_shown_when_it_fails(tmp_path: Path) -> None:
    program(tmp_path, "go", "echo 'go.mod requires go >= 1.26.0'; exit 1")
    with pytest.raises(ToolUnavailableError, match=r"(?s)needs Go 1\.26 or later.*exit status 1:\ngo.mod requires"):
        tools.tool("helm")

    program(tmp_path, "go", _GO)
    assert tools.tool("helm").exists()


@pytest.mark.usefixtures("runs")
def test_without_go_the_message_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "bin" / "go").unlink()
    with pytest.raises(
        PrerequisiteMissingError, match=r"^Go 1\.26 .*install it, or put helm 4\.3 or later \(below 5\) on PATH$"
    ):
        tools.tool("helm")


def test_programs_of_one_debian_package_are_brought_together(runs: Path) -> None:
    assert tools.tool("promtool").parent == tools.tool("prometheus").parent
    assert runs.read_text().splitlines() == ["apt download --quiet prometheus"]


def test_root_fetches_the_lists_of_packages_when_apt_has_none(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    program(tmp_path, "apt-get", f'[ "$1" = update ] || grep -q update "$RUNS" || exit 100\n{_APT}')

    assert tools.tool("promtool").exists()
    assert runs.read_text().splitlines() == ["apt update --quiet", "apt download --quiet prometheus"]


@pytest.mark.usefixtures("runs")
def test_others_are_told_to_have_them_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    program(tmp_path, "apt-get", "echo 'E: Unable to locate package prometheus'; exit 100")
    with pytest.raises(ToolUnavailableError, match=r"(?s)Unable to locate.*run `apt-get update` as root"):
        tools.tool("promtool")


@pytest.mark.usefixtures("runs")
def test_without_apt_the_message_says_what_to_put_on_path(tmp_path: Path) -> None:
    (tmp_path / "bin" / "apt-get").unlink()
    with pytest.raises(
        PrerequisiteMissingError, match=r"no apt-get here: put promtool 2\.42 or later \(below 4\) on PATH"
    ):
        tools.tool("promtool")


@pytest.mark.usefixtures("runs")
def test_an_unknown_tool_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match=r"helmet: is no tool of the sandbox; give one of helm, helm-unittest, "):
        tools.tool("helmet")


@pytest.mark.parametrize("name", TOOLS)
def test_every_tool_can_be_fetched_and_says_how(runs: Path, tmp_path: Path, name: str) -> None:
    program(tmp_path, "dpkg-deb", f'{_DPKG}\ntouch "$3/usr/bin/etcd" "$3/usr/bin/docker-registry"')

    assert ("built with Go" in tools.how(name)) or ("Debian package" in tools.how(name))
    assert tools.tool(name).name == name
    assert len(runs.read_text().splitlines()) == 1


def test_the_command_fetches_what_is_missing_and_prints_paths(runs: Path) -> None:
    listed = CliRunner().invoke(app, ["tools", "list"])
    assert "helm                     missing: built with Go, once; about 190 s" in listed.stdout

    for _ in range(2):
        fetched = CliRunner().invoke(app, ["tools", "fetch", "promtool", "helm"])
        assert fetched.stdout.splitlines() == [str(tools.at_hand("promtool")), str(tools.at_hand("helm"))]
    assert len(runs.read_text().splitlines()) == 2
    everything = json.loads(CliRunner().invoke(app, ["tools", "list", "--output", "json"]).stdout)
    assert everything["helm"] == str(tools.at_hand("helm"))
    assert everything["etcd"] is None
