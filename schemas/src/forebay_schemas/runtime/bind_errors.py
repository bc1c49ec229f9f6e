"""The error for a port that cannot be opened; it names the setting at fault. Pure."""

from __future__ import annotations

import errno
import socket

from forebay_schemas.errors import UsageError

_NOT_HERE = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


def cannot_listen(error: OSError | UnicodeError, *, host: str, port: int, setting: str) -> UsageError:
    """``setting``: the common prefix of the variables, e.g. FOREBAY_OPS for FOREBAY_OPS_HOST and FOREBAY_OPS_PORT."""
    why = (error.strerror if isinstance(error, OSError) else None) or str(error)
    said = f"cannot listen on {host}:{port} ({why})"
    if isinstance(error, UnicodeError | socket.gaierror) or error.errno in _NOT_HERE:
        return UsageError(f"{setting}_HOST", said, fix="give an address of this machine, or 0.0.0.0 for all of them")
    return UsageError(f"{setting}_PORT", said, fix="give a free port, or 0 to pick one")
