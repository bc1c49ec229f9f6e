"""The process that cleans up after its owner: `python -m forebay_sandbox.watchdog RECORD`.

Waits until its standard input ends or its parent changes, then kills and deletes what the record names.
"""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path

from forebay_sandbox.process import RunRecord

_LOOK_SECONDS = 1.0


def main() -> None:
    """Runs until the owner is gone."""
    record = RunRecord.read(Path(sys.argv[1]))
    if record is None:
        return
    # A forked child of the owner can keep the pipe open after the owner's death, so the parent is checked, too.
    while os.getppid() == record.owner_pid:
        readable, _, _ = select.select([sys.stdin], [], [], _LOOK_SECONDS)
        if readable:
            break
    record.clean_up()


if __name__ == "__main__":
    main()
