"""Download and storage of the jars. Maven is a script that writes small files instead."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from forebay_sandbox.errors import JarsError, PrerequisiteMissingError
from forebay_sandbox.kafka.jars import kafka_jars
from forebay_sandbox.kafka.java import Java

_JAVA = Java(executable=Path("/java/bin/java"), home=Path("/java"), version=17, release="17.0.1")
_FETCH = 'mkdir -p jars; echo kafka > jars/kafka_2.13-4.4.0.jar; echo log > jars/log4j.jar; echo run >> "$RUNS"'


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file with a line for each run of Maven."""
    file = tmp_path / "runs"
    file.touch()
    monkeypatch.setenv("RUNS", str(file))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    _maven(tmp_path, _FETCH)
    return file


def _maven(folder: Path, script: str) -> None:
    program = folder / "bin" / "mvn"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def _count(runs: Path) -> int:
    return len(runs.read_text().splitlines())


def test_jars_are_fetched_once(runs: Path) -> None:
    first = kafka_jars(_JAVA)

    assert kafka_jars(_JAVA) == first
    assert {path.name for path in first.glob("*.jar")} == {"kafka_2.13-4.4.0.jar", "log4j.jar"}
    assert _count(runs) == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "log4j.jar").unlink(),
        lambda folder: (folder / "log4j.jar").write_bytes(b""),
        lambda folder: (folder / "manifest.json").unlink(),
        lambda folder: (folder / "manifest.json").write_text('{"kafka'),
        lambda folder: (folder / "manifest.json").write_text("[]"),
        lambda folder: (folder / "manifest.json").write_text("{}"),
    ],
    ids=["a jar is gone", "a jar is short", "no manifest", "half a manifest", "not a manifest", "an empty manifest"],
)
def test_a_damaged_cache_is_noticed_and_fetched_again(runs: Path, damage: object) -> None:
    folder = kafka_jars(_JAVA)
    assert callable(damage)
    damage(folder)

    assert kafka_jars(_JAVA) == folder
    assert (folder / "log4j.jar").read_text() == "log\n"
    assert _count(runs) == 2


def test_two_processes_at_once_fetch_once(runs: Path, tmp_path: Path) -> None:
    _maven(tmp_path, f"{_FETCH}; sleep 0.5")
    script = (
        "from pathlib import Path; from forebay_sandbox.kafka.jars import kafka_jars\n"
        "from forebay_sandbox.kafka.java import Java\n"
        "print(kafka_jars(Java(executable=Path('/java/bin/java'), home=Path('/java'), version=17, release='')))"
    )
    both = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    folders = {one.communicate(timeout=30)[0] for one in both}

    assert [one.returncode for one in both] == [0, 0]
    assert len(folders) == 1
    assert _count(runs) == 1


def test_a_failed_fetch_shows_the_end_of_mavens_output_and_leaves_no_cache(runs: Path, tmp_path: Path) -> None:
    _maven(tmp_path, "mkdir -p jars; echo half > jars/half.jar; echo '[ERROR] no such artifact'; exit 1")
    with pytest.raises(JarsError, match=r"(?s)exit status 1.*no such artifact"):
        kafka_jars(_JAVA)

    _maven(tmp_path, _FETCH)
    assert not (kafka_jars(_JAVA) / "half.jar").exists()
    assert _count(runs) == 1


def test_maven_that_brings_nothing_is_an_error(runs: Path, tmp_path: Path) -> None:
    _maven(tmp_path, "exit 0")

    with pytest.raises(JarsError, match="there are no Kafka"):
        kafka_jars(_JAVA)
    assert _count(runs) == 0


def test_without_maven_the_message_says_what_to_install(
    runs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))

    with pytest.raises(PrerequisiteMissingError, match=r"Maven \(mvn\) is needed once, .* install it") as raised:
        kafka_jars(_JAVA)
    assert "\n" not in str(raised.value)
    assert _count(runs) == 0


@pytest.mark.parametrize(("on_path", "home"), [(False, "/java"), (True, "")], ids=["no other", "one on PATH"])
def test_maven_gets_the_java_that_was_found_where_it_would_find_none(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_path: bool, home: str
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}" if name == "mvn" or on_path else None)
    _maven(tmp_path, f'echo "$JAVA_HOME" > {tmp_path}/home; {_FETCH}')
    kafka_jars(_JAVA)

    assert (tmp_path / "home").read_text() == f"{home}\n"
    assert _count(runs) == 1
