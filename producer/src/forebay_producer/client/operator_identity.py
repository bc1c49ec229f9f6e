"""Identity of the person that runs a command, for audit and control records. Asks the operating system."""

from __future__ import annotations

import getpass
import os
import socket


def user_and_host() -> str:
    """``user@host``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # A container's user need not have a name.
        user = f"uid-{os.getuid()}"
    return f"{user}@{socket.gethostname()}"
