"""Ends a child process when its parent ends, in whatever way. Starts one daemon thread; exits the process."""

from __future__ import annotations

import os
import select
import sys
import threading

_LOOK_SECONDS = 1.0


def exit_with_parent() -> None:
    """From now on: exit when standard input ends or the parent changes.

    The parent starts this process with a pipe as standard input and keeps the other end open. Even kill -9 closes that
    pipe. A forked child of the parent can keep it open, so the parent's id is checked, too.
    """
    parent_pid = os.getppid()

    def watch() -> None:
        while os.getppid() == parent_pid:
            readable, _, _ = select.select([sys.stdin], [], [], _LOOK_SECONDS)
            if readable:
                break
        os._exit(1)

    threading.Thread(target=watch, name="exit-with-parent", daemon=True).start()
