"""The barrier: a partition is read once all is known that its former owner may have published of it. Pure."""

from __future__ import annotations

READ_SECONDS_MAX = 10.0
"""Without any progress in reading notices for so long, a partition is opened without them."""

FLOOD_SECONDS_MAX = 120.0
"""And after so long at most, when notices go on coming."""

IDENTIFY_SECONDS_MAX = 3.0
"""How long a partition waits until it is known whether its topic is the one that was committed for."""


def may_open(*, assigned_at: float, now: float, read_until: float, read_at: float, known_until: float) -> bool:
    """``read_until``: up to when all notices were read; ``read_at``: when the last of those that are waited for was;
    ``known_until``: up to when topics' ids are known. Monotonic seconds."""
    waited = now - assigned_at
    # While it is read, what there is of it is waited for: after a flood of cancels there is much.
    overdue = waited > READ_SECONDS_MAX and (now - read_at > READ_SECONDS_MAX or waited > FLOOD_SECONDS_MAX)
    identified = known_until >= assigned_at or waited > IDENTIFY_SECONDS_MAX
    return (read_until >= assigned_at and identified) or overdue
