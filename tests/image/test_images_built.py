"""Both images as tools/images builds them: what they say of themselves, what is in them, and requests through them."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forebay_sandbox.kafka.local import free_port
from harness.image_build import DEPLOYABLES, ROOT, ImageBuild
from harness.live_pool import chat, envelope
from harness.waiting import wait_until
from image.conftest import Built, this_commit

if TYPE_CHECKING:
    from forebay_sandbox.engine.process import EngineProcess
    from forebay_sandbox.kafka.access import KafkaAccess
    from harness.image_root import ImageRoot
    from harness.oci_archive import OciArchive

# Two builds, and a base where there is none yet.
pytestmark = [pytest.mark.image, pytest.mark.timeout(3600)]

USER = 10001
READY_SECONDS_MAX = 120.0
_HASHED, _CHECKED = 0b01, 0b10


@pytest.mark.parametrize("deployable", DEPLOYABLES)
def test_an_image_says_who_it_runs_as_what_it_runs_and_what_it_was_made_of(built: Built, deployable: str) -> None:
    image = built.images[deployable]
    entry = {"producer": (["forebay"], None), "worker": (["forebay-worker"], ["run"])}
    assert (image.config["Entrypoint"], image.config.get("Cmd") or None) == entry[deployable]
    assert image.config["User"] == f"{USER}:{USER}"
    assert image.environment["PATH"].startswith("/opt/forebay/bin:/")
    assert image.environment["PYTHONUNBUFFERED"] == image.environment["PYTHONDONTWRITEBYTECODE"] == "1"
    assert set(image.environment) == {"PATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"}
    labels = image.labels
    name, _, digest = built.base.partition("@")
    assert labels["title"] == f"forebay-{deployable}"
    assert labels["licenses"] == "Apache-2.0"
    assert f'version = "{labels["version"]}"' in (ROOT / "schemas/pyproject.toml").read_text(encoding="utf-8")
    assert labels["revision"].endswith("-changed") if this_commit() is None else labels["revision"] == this_commit()
    assert labels["source"] == "https://git.example.com/forebay"
    assert (labels["base.name"], labels["base.digest"]) == (name, digest)
    assert labels["created"] == image.whole_config["created"] == "2026-01-01T00:00:00Z"


@pytest.mark.parametrize("deployable", DEPLOYABLES)
def test_no_layer_holds_a_secret_or_what_built_it(built: Built, deployable: str) -> None:
    image = built.images[deployable]
    assert built.secret not in json.dumps(image.whole_config)
    # Not the first, which is the base.
    for digest in image.layers[1:]:
        with image.layer(digest) as layer:
            for member in layer:
                path = Path("/") / member.name
                assert path.name not in {"pip.conf", ".netrc", "pip", "pip3"}, path
                for closed in ("/src", "/run/secrets", "/root", "/tmp", "/var/cache", "/var/lib/apt", "/home"):  # noqa: S108
                    assert not path.is_relative_to(closed) or member.isdir(), path
                if member.isfile():
                    content = layer.extractfile(member)
                    assert content is not None
                    assert built.secret.encode() not in content.read(), path


@pytest.mark.parametrize("deployable", DEPLOYABLES)
def test_nobody_gets_another_user_s_rights_in_an_image_nor_may_write_to_it(
    roots: Mapping[str, ImageRoot], deployable: str
) -> None:
    for folder, folders, files in os.walk(roots[deployable].folder):
        for name in (*folders, *files):
            path = Path(folder) / name
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                assert not status.st_mode & (stat.S_ISUID | stat.S_ISGID), path
            assert status.st_uid != USER, path
            assert status.st_gid != USER, path
            if not stat.S_ISLNK(status.st_mode) and status.st_mode & stat.S_IWOTH:
                assert path.name in {"tmp", "lock", "shm"}, path
                assert status.st_mode & stat.S_ISVTX, path


@pytest.mark.parametrize("deployable", DEPLOYABLES)
def test_bytecode_in_an_image_is_complete_and_never_looks_at_the_time_of_its_source(
    roots: Mapping[str, ImageRoot], deployable: str
) -> None:
    sources = 0
    for source in (roots[deployable].folder / "opt/forebay/lib").rglob("*.py"):
        compiled = [Path(path) for path in source.parent.glob(f"__pycache__/{source.stem}.cpython-*.pyc")]
        assert compiled, source
        flags = int.from_bytes(compiled[0].read_bytes()[4:8], "little")
        assert flags & (_HASHED | _CHECKED) == _HASHED, compiled
        sources += 1
    assert sources > 500


def test_a_request_goes_through_both_images_and_sigterm_drains_the_worker(
    roots: Mapping[str, ImageRoot], kafka: KafkaAccess, engine: EngineProcess, tmp_path: Path
) -> None:
    from integration.test_image_steps import answers

    port = free_port()
    producer, worker = roots["producer"], roots["worker"]
    common = {
        "FOREBAY_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "FOREBAY_POOL": f"t-{secrets.token_hex(5)}",
    }
    made = producer.run("topics", "create", "--partitions", "2", "--replication", "1", settings=common)
    assert made.returncode == 0, made.stderr

    settings = {
        **common,
        "FOREBAY_BACKEND_URL": engine.url,
        "FOREBAY_OPS_PORT": str(port),
        "FOREBAY_GPU": "none",
        "FOREBAY_DRAIN_SECONDS": "30",
    }
    log_path = tmp_path / "worker.log"
    with worker.running(settings=settings, log_path=log_path) as running:
        url = f"http://127.0.0.1:{port}"
        wait_until(
            f"a ready worker; its log is {log_path}", lambda: answers(url, "/readyz") == 200, seconds=READY_SECONDS_MAX
        )
        status = running.status()
        assert status["NSpid"][-1] == "1"
        assert status["Uid"] == status["Gid"] == [str(USER)] * 4
        assert status["CapEff"] == ["0000000000000000"]
        assert status["NoNewPrivs"] == ["1"]
        seen = Path(f"/proc/{running.process.pid}/root")
        assert seen.stat().st_ino == worker.folder.stat().st_ino
        mounts = [line.split() for line in Path(f"/proc/{running.process.pid}/mounts").read_text("utf-8").splitlines()]
        assert [options.split(",")[0] for _, place, _, options, *_ in mounts if place == "/"] == ["ro"]

        asked = producer.run("submit", "-", "--wait", settings=common, stdin=json.dumps(envelope("quick")))
        assert asked.returncode == 0, asked.stdout + asked.stderr
        assert '"completed"' in asked.stdout

        # One that runs when SIGTERM comes is answered before the end.
        slow = envelope("slow", payload=chat(output_tokens=200))
        sent = producer.run("submit", "-", settings=common, stdin=json.dumps(slow))
        assert sent.returncode == 0, sent.stderr
        wait_until("a request that runs", lambda: engine.stats()["running"] > 0)
        assert running.terminate(seconds=90) == 0, log_path.read_text(encoding="utf-8")
    results = producer.run("results", "--no-body", "--output", "json", settings=common)
    assert results.returncode == 0, results.stderr
    outcomes = [json.loads(line) for line in results.stdout.splitlines()]
    assert {each["request_id"]: each["status"] for each in outcomes} == {"quick": "completed", "slow": "completed"}


@pytest.mark.parametrize("deployable", DEPLOYABLES)
def test_a_second_build_is_the_same_to_the_last_byte(
    built: Built, build: ImageBuild, base: str, deployable: str, tmp_path: Path
) -> None:
    if base != built.base:
        pytest.fail(f"the base has become another: {built.base}, now {base}")
    build.images(deployable, base=base, archives=tmp_path)
    from harness.oci_archive import OciArchive

    first, second = built.images[deployable], OciArchive(tmp_path / f"forebay-{deployable}.oci.tar")
    if first.layers != second.layers:
        pytest.fail("layers differ in: " + "; ".join(differing(first, second)[:40]))
    assert first.digest == second.digest


def differing(one: OciArchive, other: OciArchive) -> list[str]:
    """The files in which two images differ."""
    a, b = listed(one), listed(other)
    return sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))


def listed(image: OciArchive) -> dict[str, tuple[object, ...]]:
    found = {}
    for digest in image.layers:
        with image.layer(digest) as layer:
            for member in layer:
                content = layer.extractfile(member) if member.isfile() else None
                digest_of = "" if content is None else hashlib.sha256(content.read()).hexdigest()
                found[member.name] = facts(member, digest_of)
    return found


def facts(member: tarfile.TarInfo, digest: str) -> tuple[object, ...]:
    return (member.mode, member.uid, member.gid, int(member.mtime), member.linkname, member.type, digest)
