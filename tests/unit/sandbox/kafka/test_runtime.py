"""The archive of Kafka's classes: when it is recorded and used. The broker that would write it is a function."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forebay_sandbox.kafka.java import Java
from forebay_sandbox.kafka.runtime import KafkaRuntime

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def runtime(tmp_path: Path) -> KafkaRuntime:
    """Some Java, and an empty folder for jars."""
    return KafkaRuntime(
        java=Java(executable=Path("/java/bin/java"), home=Path("/java"), version=17, release="17.0.1"), jars=tmp_path
    )


def _broker(options: list[str], *, writes: bool, ends_tidily: bool) -> Callable[[str], bool]:
    def run(option: str) -> bool:
        options.append(option)
        if writes:
            Path(option.partition("=")[2]).write_bytes(b"classes")
        return ends_tidily

    return run


def _uses_archive(runtime: KafkaRuntime) -> bool:
    return f"-XX:SharedArchiveFile={runtime.class_archive}" in runtime.command("kafka.Kafka")


def test_it_is_recorded_once_and_used_from_then_on(runtime: KafkaRuntime) -> None:
    runs: list[str] = []
    assert not _uses_archive(runtime)
    for _ in range(2):
        runtime.record_class_archive(_broker(runs, writes=True, ends_tidily=True))

    assert len(runs) == 1
    assert runs[0].startswith("-XX:ArchiveClassesAtExit=")
    assert _uses_archive(runtime)


def test_a_broker_that_was_killed_may_have_written_half_of_it(runtime: KafkaRuntime) -> None:
    runs: list[str] = []
    runtime.record_class_archive(_broker(runs, writes=True, ends_tidily=False))
    assert not _uses_archive(runtime)

    runtime.record_class_archive(_broker(runs, writes=True, ends_tidily=True))
    assert len(runs) == 2
    assert _uses_archive(runtime)


def test_a_java_that_cannot_record_is_asked_once(runtime: KafkaRuntime) -> None:
    runs: list[str] = []
    for _ in range(2):
        runtime.record_class_archive(_broker(runs, writes=False, ends_tidily=True))

    assert len(runs) == 1
    assert not _uses_archive(runtime)


def test_another_java_has_an_archive_of_its_own(runtime: KafkaRuntime) -> None:
    newer = Java(executable=Path("/java/bin/java"), home=Path("/java"), version=17, release="17.0.2")
    other = KafkaRuntime(java=newer, jars=runtime.jars)
    runtime.record_class_archive(_broker([], writes=True, ends_tidily=True))

    assert other.class_archive != runtime.class_archive
    assert not _uses_archive(other)
