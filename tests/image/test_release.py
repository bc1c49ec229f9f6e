"""tools/release against a registry on 127.0.0.1: what it pushes is signed, and another key does not verify it."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forebay_sandbox.engine.process import call
from forebay_sandbox.kafka.local import free_port
from harness.image_build import DEPLOYABLES, ROOT
from harness.tools_at_hand import at_hand
from harness.waiting import wait_until
from image.conftest import ARCHIVES, Built

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.release, pytest.mark.timeout(3600)]

_SECONDS_MAX = 300


@contextmanager
def registry(folder: Path) -> Iterator[str]:
    """Debian's docker-registry; its address."""
    address = f"127.0.0.1:{free_port()}"
    config = folder / "registry.json"
    storage = {"filesystem": {"rootdirectory": str(folder / "registry")}}
    config.write_text(json.dumps({"version": "0.1", "storage": storage, "http": {"addr": address}}), encoding="utf-8")
    with (folder / "registry.log").open("wb") as log:
        process = subprocess.Popen(
            [at_hand("docker-registry"), "serve", config],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Its traces have nobody who takes them.
            env={**os.environ, "OTEL_TRACES_EXPORTER": "none"},
        )
    try:
        wait_until("a registry that answers", lambda: answers(f"http://{address}"))
        yield address
    finally:
        process.kill()
        process.wait()


def answers(url: str) -> bool:
    try:
        return call(url, "GET", "/v2/")[0] == 200
    except OSError:
        return False


def key_pair(folder: Path, *, password: str) -> tuple[Path, Path]:
    """The private key and the public one."""
    folder.mkdir()
    cosign("generate-key-pair", folder=folder, password=password)
    return folder / "cosign.key", folder / "cosign.pub"


def cosign(*words: str, folder: Path, password: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [at_hand("cosign"), *words],
        cwd=folder,
        env={**os.environ, "COSIGN_PASSWORD": password},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_SECONDS_MAX,
        check=False,
    )


def test_a_release_is_pushed_signed_and_verified(built: Built, tmp_path: Path) -> None:
    skopeo = shutil.which("skopeo")
    if skopeo is None:
        missing = "skopeo is not installed: `apt-get install skopeo`"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    password = secrets.token_hex(8)
    private, public = key_pair(tmp_path / "keys", password=password)
    _, stranger = key_pair(tmp_path / "stranger", password=password)
    sboms = tmp_path / "sbom"
    sboms.mkdir()
    for deployable in DEPLOYABLES:
        # `make sbom` takes minutes and has nothing to do with the signature.
        listed = {"bomFormat": "CycloneDX", "specVersion": "1.6", "components": [{"name": deployable}]}
        (sboms / f"forebay-{deployable}.cdx.json").write_text(json.dumps(listed), encoding="utf-8")
    with registry(tmp_path) as address:
        done = subprocess.run(
            [ROOT / "tools/release"],
            env={
                **os.environ,
                "REGISTRY": f"{address}/forebay",
                "COSIGN_KEY": str(private),
                "COSIGN_PUBLIC": str(public),
                "COSIGN_PASSWORD": password,
                "ARCHIVES": str(ARCHIVES),
                "SBOMS": str(sboms),
                "PLAIN_HTTP": "true",
                "TLOG": "false",
                "HELM": str(at_hand("helm")),
                "COSIGN": str(at_hand("cosign")),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        released = done.stdout.split()
        names = ("forebay-producer", "forebay-worker", "charts/forebay")
        assert [each.partition("@")[0] for each in released] == [f"{address}/forebay/{name}" for name in names]
        # What is pulled by its digest is what was built.
        for deployable, each in zip(DEPLOYABLES, released, strict=False):
            assert each.partition("@")[2] == built.images[deployable].digest

        # Signed with one key: another does not verify it, and a digest that nobody signed is not verified at all.
        local = ("--allow-insecure-registry", "--allow-http-registry", "--insecure-ignore-tlog=true")
        for each in released:
            assert cosign("verify", *local, "--key", str(public), each, folder=tmp_path).returncode == 0
            assert cosign("verify", *local, "--key", str(stranger), each, folder=tmp_path).returncode != 0
        said = cosign("verify-attestation", *local, "--type=cyclonedx", f"--key={public}", released[1], folder=tmp_path)
        assert said.returncode == 0, said.stderr

        pulled = subprocess.run(
            [at_hand("helm"), "pull", f"oci://{address}/forebay/charts/forebay", "--plain-http", "--untar"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=_SECONDS_MAX,
            check=False,
        )
        assert pulled.returncode == 0, pulled.stderr
        assert (tmp_path / "forebay/values.schema.json").read_bytes() == (
            ROOT / "helm/forebay/values.schema.json"
        ).read_bytes()
