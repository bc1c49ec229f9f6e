"""Ends a child process with its parent, however the parent ends. Starts one daemon thread; exits the process."""

from __future__ import annotations

import os
import select
import sys
import threading

_LOOK_SECONDS = 1.0


def exit_with_parent() -> None:
    """From now on: exit at once when standard input ends or the parent is another.

    The parent starts this process with a pipe as standard input and keeps the other end open. The end of a pipe is the
    one signal that even kill -9 sends; a forked child of the parent can hold it open, hence the look at the parent too.
    """
    parent_pid = os.getppid()

    def watch() -> None:
        while os.getppid() == parent_pid:
            readable, _, _ = select.select([sys.stdin], [], [], _LOOK_SECONDS)
            if readable:
                break
        os._exit(1)

    threading.Thread(target=watch, name="exit-with-parent", daemon=True).start()
