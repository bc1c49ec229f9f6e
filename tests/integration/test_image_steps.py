"""What an image holds, made by the very script that its build runs, works as a container would run it: as process 1, as
a user without rights, with nothing that it may write to. No image engine takes part, and the base is this machine."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from forebay_sandbox.engine.process import EngineProcess, call
from forebay_sandbox.kafka.local import free_port
from forebay_schemas.contract.tiers import Tier
from harness.contained import USER, Image, require_namespaces
from harness.live_pool import envelope
from harness.nvml_stub import NvmlStub, gpu_state
from harness.waiting import wait_until

if TYPE_CHECKING:
    from harness.live_pool import LivePool

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

READY_SECONDS_MAX = 240.0


@pytest.fixture(scope="module")
def open_folder() -> Iterator[Path]:
    """A folder that every user may look into: pytest's own are closed."""
    folder = Path(tempfile.mkdtemp(prefix="forebay-image-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def worker_image(open_folder: Path) -> Image:
    require_namespaces()
    return Image(open_folder, deployable="worker")


def answers(url: str, path: str) -> int | None:
    try:
        return call(url, "GET", path)[0]
    except OSError:
        return None


def test_the_worker_s_image_works_as_process_1_and_needs_no_file_to_write_to(
    worker_image: Image, open_folder: Path, pool: LivePool, engine: EngineProcess, tmp_path: Path
) -> None:
    nvml = NvmlStub(open_folder / "nvml")
    nvml.answer({"gpus": 1, **gpu_state(0, utilisation=50)})
    port = free_port()
    settings = {
        "FOREBAY_BOOTSTRAP_SERVERS": pool.kafka.bootstrap_servers,
        "FOREBAY_POOL": pool.name,
        "FOREBAY_BACKEND_URL": engine.url,
        "FOREBAY_OPS_PORT": str(port),
        "FOREBAY_GPU": "nvml",
        "NVML_STUB_STATE": nvml.environment["NVML_STUB_STATE"],
    }
    log_path = tmp_path / "worker.log"
    library = Path(nvml.environment["LD_LIBRARY_PATH"])
    with worker_image.running(
        "forebay-worker", "run", settings=settings, log_path=log_path, libraries=[library]
    ) as worker:
        url = f"http://127.0.0.1:{port}"
        wait_until(
            f"a ready worker; its log is {log_path}", lambda: answers(url, "/readyz") == 200, seconds=READY_SECONDS_MAX
        )
        status = worker.status()
        assert status["NSpid"][-1] == "1"
        assert status["Uid"] == [str(USER)] * 4
        assert status["CapEff"] == ["0000000000000000"]
        assert Path(worker.process.exe()).resolve().is_relative_to(open_folder)

        pool.submit(Tier.HIGH, envelope("contained"))
        assert pool.result("contained").status == "completed"

        # NVML's process dies: another takes its place, and process 1 leaves no dead child behind.
        [child] = wait_until("NVML's process", worker.process.children)
        child.kill()
        wait_until(
            "another one", lambda: [one for one in worker.process.children() if one.pid != child.pid and alive(one)]
        )
        assert all(alive(one) for one in worker.process.children(recursive=True))
        assert answers(url, "/livez") == 200

        assert worker.terminate(seconds=120) == 0, log_path.read_text(encoding="utf-8")
    mine = [path for path in open_folder.rglob("*") if os.lstat(path).st_uid == USER]
    assert mine == []


def alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_the_image_holds_no_installer_and_no_tool_of_the_tests(worker_image: Image) -> None:
    [packages] = worker_image.folder.glob("lib/python3.*/site-packages")
    held = {path.name.partition("-")[0].lower() for path in packages.glob("*.dist-info")}
    assert {"forebay_schemas", "forebay_worker", "confluent_kafka", "opentelemetry_sdk"} <= held
    assert held & {"pip", "setuptools", "wheel", "hatchling", "pytest", "forebay_producer", "forebay_sandbox"} == set()
    assert not list(packages.glob("*editable*"))
