"""Checks that a handler can be imported and is async. `python -m forebay_worker.doctor.handler MODULE:FUNCTION` imports
it in a process of its own, since foreign code may print, hang, or take a GPU; prints one line of JSON at the end."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE
from typing import Final

from forebay_schemas.doctor.findings import Finding, failed, ok, warning
from forebay_schemas.errors import UsageError
from forebay_worker.execution.handler_backend import load_handler
from forebay_worker.signals.gpu_process import end_process
from forebay_worker.signals.nvml import exit_with_parent

CHECK: Final = "handler"
IMPORT_SECONDS: Final = 10.0

_MARK: Final = "forebay-handler:"


async def check_handler(name: str) -> Finding:
    """``name``: module:function, from the current folder."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", __name__, name), stdin=PIPE, stdout=PIPE, stderr=DEVNULL, start_new_session=True
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(IMPORT_SECONDS):
            printed = await process.stdout.read()
            status = await process.wait()
    except TimeoutError:
        fix = "import nothing slow in the module, or load the model in the first call"
        return warning(CHECK, f"{name} is still being imported after {IMPORT_SECONDS:g} s", fix=fix)
    finally:
        await end_process(process)
    lines = [line for line in printed.decode(errors="replace").splitlines() if line.startswith(_MARK)]
    if not lines:
        return failed(CHECK, f"{name}: its import ended the process with status {status}", fix="import it by hand")
    problem, fix = json.loads(lines[-1].removeprefix(_MARK))
    return ok(CHECK, f"{name} is an async function") if problem is None else failed(CHECK, problem, fix=fix)


def main() -> None:
    """The entry point of that process."""
    exit_with_parent()
    said: tuple[str | None, str | None] = (None, None)
    try:
        load_handler(sys.argv[1])
    except UsageError as error:
        said = (error.problem, error.fix)
    sys.stdout.write(f"\n{_MARK}{json.dumps(said)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
