"""A stub of NVIDIA's driver library for tests: compiles nvml_stub.c and steers it by a file. Runs the C compiler.

The real nvidia-ml-py loads it wherever `environment` is set; what it answers can change at any moment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

_SOURCE = Path(__file__).with_suffix(".c")
_LIBRARY = "libnvidia-ml.so.1"

NOT_SUPPORTED = 3
DRIVER_NOT_LOADED = 9
GPU_IS_LOST = 15


class NvmlStub:
    """``folder`` holds the library and the state. See nvml_stub.c for the keys of the state."""

    def __init__(self, folder: Path) -> None:
        """Compiles it, in 0.2 s. Without a C compiler the test is skipped, and in CI fails."""
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            problem = "no C compiler for the stub of NVML; install gcc"
            if os.environ.get("CI", "").lower() in {"true", "1"}:
                pytest.fail(problem)
            pytest.skip(problem)
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._state = folder / "state"
        command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{_LIBRARY}"]
        subprocess.run([*command, "-o", str(folder / _LIBRARY), str(_SOURCE)], check=True)
        self.answer({})

    @property
    def environment(self) -> dict[str, str]:
        """Environment of the process that asks NVML, or of one above it."""
        return {"LD_LIBRARY_PATH": str(self._folder), "NVML_STUB_STATE": str(self._state)}

    def answer(self, state: Mapping[str, object]) -> None:
        """From now on this is the state, all of it."""
        new = self._state.with_suffix(".new")
        new.write_text("".join(f"{key} {value}\n" for key, value in state.items()), encoding="utf-8")
        new.replace(self._state)


def gpu_state(
    index: int = 0, *, utilisation: float = 50, memory_used: int = 40, memory_total: int = 80, **more: object
) -> dict[str, object]:
    """The state of one GPU; ``more``: further fields of it. The key ``gpus`` is not among them."""
    fields = {"uuid": f"GPU-{index}", "utilisation": utilisation, "memory_used": memory_used}
    return {f"{index}.{key}": value for key, value in {**fields, "memory_total": memory_total, **more}.items()}
