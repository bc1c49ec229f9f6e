"""Lists this machine's NVML devices once: `python -m forebay_worker.signals.nvml_inventory [DEVICES]` prints one JSON
object. A process of its own, since the driver may crash or hang; it ends with its parent."""

from __future__ import annotations

import json
import resource
import sys
from typing import Any

import pynvml  # type: ignore[import-untyped]

from forebay_worker.signals.nvml import exit_with_parent, open_devices


def main() -> int:
    """Prints ``driver`` and ``devices``, or ``error`` and whether there is ``no_driver``."""
    exit_with_parent()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    names = [name for name in (sys.argv[1] if len(sys.argv) > 1 else "").split(",") if name]
    try:
        pynvml.nvmlInit()
        said: dict[str, Any] = {
            "driver": _driver_version(),
            "devices": [{**device.look(), "product": device.product()} for device in open_devices(names)],
        }
    except (pynvml.NVMLError, LookupError) as error:
        said = {"error": str(error), "no_driver": isinstance(error, pynvml.NVMLError_LibraryNotFound)}
    sys.stdout.write(json.dumps(said) + "\n")
    return 1 if "error" in said else 0


def _driver_version() -> str | None:
    try:
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return None


if __name__ == "__main__":
    sys.exit(main())
