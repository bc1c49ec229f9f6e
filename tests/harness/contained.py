"""Commands as a container runs them, without an image engine: process 1 of a process namespace, user 10001, no
capability, every file read-only. Copies an interpreter, installs, starts processes; needs root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.waiting import wait_until

ROOT = Path(__file__).parents[2]
USER = 10001

_INSTALL_SECONDS_MAX = 1500
_AS_A_CONTAINER = (
    "mount -o remount,bind,ro / && exec setpriv "
    f"--reuid={USER} --regid={USER} --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all "
    '"$0" "$@"'
)


def require_namespaces() -> None:
    """Skips the test, and fails it in CI, where this user may not make namespaces."""
    tried = subprocess.run(_unshare("true"), capture_output=True, text=True, timeout=30, check=False)
    if tried.returncode == 0:
        return
    problem = f"containers cannot be imitated here (root, unshare and setpriv are needed): {tried.stderr.strip()}"
    if os.environ.get("CI", "").lower() in {"true", "1"}:
        pytest.fail(problem)
    pytest.skip(problem)


def _unshare(*command: str | Path) -> list[str | Path]:
    namespaces = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return ["unshare", *namespaces, "--", "sh", "-c", _AS_A_CONTAINER, *command]


class Image:
    """The content of /opt/forebay after the builder stage of an image's Dockerfile, in a folder that all may read."""

    def __init__(self, folder: Path, *, deployable: str) -> None:
        """Installs by deploy/install.sh, the way the Dockerfile does, from a clean copy of what it copies."""
        context, python = folder / "src", folder / "python"
        for source in ("deploy/install.sh", "requirements", "schemas", deployable):
            target = context / source
            target.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, target, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
            else:
                shutil.copy(ROOT / source, target)
        # This one's interpreter may lie where only its owner can look, so the image has one of its own, as in a base.
        unwanted = shutil.ignore_patterns("site-packages", "test", "__pycache__", "*.a", "idlelib", "tkinter")
        for part in ("bin", "lib"):
            shutil.copytree(Path(sys.base_prefix) / part, python / part, ignore=unwanted, symlinks=True)
        self.folder = folder / "forebay"
        self.environment = {
            "PATH": f"{python / 'bin'}:{os.environ['PATH']}",
            "LD_LIBRARY_PATH": str(python / "lib"),
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": "/nonexistent",
        }
        version = sysconfig.get_python_version()
        if not (python / "bin" / "python3").exists():
            (python / "bin" / "python3").symlink_to(f"python{version}")
        pip = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "HTTPS_"))}
        for step in ("dependencies", "packages"):
            subprocess.run(
                [context / "deploy/install.sh", step, deployable, self.folder],
                env={**pip, **self.environment, "PYTHONDONTWRITEBYTECODE": ""},
                cwd="/",
                check=True,
                timeout=_INSTALL_SECONDS_MAX,
            )

    @contextmanager
    def running(
        self, *command: str, settings: Mapping[str, str], log_path: Path, libraries: Sequence[Path] = ()
    ) -> Iterator[Contained]:
        """Starts one of the image's commands; killed with the block if it still runs. ``libraries``: more folders
        that the loader looks in."""
        environment = {**self.environment, **settings}
        environment["LD_LIBRARY_PATH"] = ":".join([*map(str, libraries), environment["LD_LIBRARY_PATH"]])
        program, *arguments = command
        with contained(_unshare(self.folder / "bin" / program, *arguments), environment, log_path) as running:
            yield running


@contextmanager
def contained(command: Sequence[str | Path], environment: Mapping[str, str], log_path: Path) -> Iterator[Contained]:
    """Starts the command, which puts itself into a container; killed with the block if it still runs."""
    with log_path.open("wb") as log:
        outer = subprocess.Popen(command, env=environment, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield Contained(outer, log_path=log_path)
    finally:
        outer.kill()
        outer.wait()


class Contained:
    """A command that runs as process 1."""

    def __init__(self, outer: subprocess.Popen[Any], *, log_path: Path) -> None:
        self._outer = outer
        self.log_path = log_path
        [self.process] = wait_until("the first process", lambda: psutil.Process(outer.pid).children())

    def terminate(self, *, seconds: float) -> int:
        """SIGTERM; the exit code, as a shell would say it."""
        self.process.terminate()
        return self._outer.wait(seconds)

    def status(self) -> dict[str, list[str]]:
        """The fields of /proc's status of process 1."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii").splitlines()
        return {name: values.split() for name, _, values in (line.partition(":") for line in lines)}
