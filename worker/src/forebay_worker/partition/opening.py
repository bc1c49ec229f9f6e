"""The barrier: a partition is read once all notices that its former owner may have published were received. Pure."""

from __future__ import annotations

READ_SECONDS_MAX = 10.0
"""After this time without progress in reading notices, a partition is opened without them."""

FLOOD_SECONDS_MAX = 120.0
"""And after this time while notices still arrive."""

IDENTIFY_SECONDS_MAX = 3.0
"""How long a partition waits until it is known whether its topic is the one of the commit."""


def may_open(*, assigned_at: float, now: float, read_until: float, read_at: float, known_until: float) -> bool:
    """``read_until``: all notices up to here were read. ``read_at``: when the last of the awaited ones was read.
    ``known_until``: topic ids are known up to here. Monotonic seconds."""
    waited = now - assigned_at
    # While records arrive, their end is waited for: after many cancels the backlog is long.
    overdue = waited > READ_SECONDS_MAX and (now - read_at > READ_SECONDS_MAX or waited > FLOOD_SECONDS_MAX)
    identified = known_until >= assigned_at or waited > IDENTIFY_SECONDS_MAX
    return (read_until >= assigned_at and identified) or overdue
