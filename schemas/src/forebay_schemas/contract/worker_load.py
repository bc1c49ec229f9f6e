"""What a worker's capacity record says of its load: what waits, what it costs, and what limits the next start. Pure.

It is a field of its own in the record, decoded when asked for, so that an invalid load never voids the capacity.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from forebay_schemas.contract.coordination import (
    REQUESTS_MAX,
    SECONDS_MAX,
    SERVICE_SECONDS_MIN,
    Capacity,
)
from forebay_schemas.contract.tiers import Tier

TEXT_CHARS_MAX: Final = 160
CHANGES_MAX: Final = 3
FACTOR_MAX: Final = 100.0
FIGURE_MAX: Final = 1e15
"""A memory limit in bytes may be the largest figure."""

_Requests = Annotated[int, msgspec.Meta(ge=0, le=REQUESTS_MAX)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=SECONDS_MAX)]
_ServiceSeconds = Annotated[float, msgspec.Meta(ge=SERVICE_SECONDS_MIN, le=SECONDS_MAX)]
_Factor = Annotated[float, msgspec.Meta(ge=0, le=FACTOR_MAX)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Figure = Annotated[float, msgspec.Meta(ge=-FIGURE_MAX, le=FIGURE_MAX)]
_Text = Annotated[str, msgspec.Meta(max_length=TEXT_CHARS_MAX)]
_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]


class LimitedBy(msgspec.Struct, frozen=True, kw_only=True):
    """What keeps the next request from starting: a signal, its value, and the threshold that it has reached."""

    signal: _Text
    value: _Figure
    threshold: _Figure


class LimitStep(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the limit. ``at_ms``: epoch milliseconds. ``cause`` is for people."""

    at_ms: _Count
    before: _Requests
    after: _Requests
    cause: _Text


class OverloadState(msgspec.Struct, frozen=True, kw_only=True):
    """The level of the overload ladder, the tiers that it sheds, and why."""

    level: _Text = "normal"
    sheds: list[Tier] = []
    cause: _Text = ""


class BreakerReport(msgspec.Struct, frozen=True, kw_only=True):
    """The breaker's state. While the backend serves nobody, also its error and what to do about it."""

    state: _Text = "closed"
    error: _Text = ""
    fix: _Text = ""


class WorkerLoad(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's load, by tier. A missing tier is 0, or not known.

    ``waiting_requests``: in its lane. ``running_requests``: started. ``open_slots``: how many more could start now.
    ``guaranteed_share``: the part of the slots that the tier gets while more urgent ones would take everything.
    ``work_seconds``: what its lane holds, in seconds of this worker at its share of the limit. ``arriving``: seconds of
    such work that came in a second, the mean of ten. ``service_seconds``: mean from start to end.
    ``wait_correction``: starts, median and 90th percentile of actual over estimated waits, both plus half a second.
    ``limit_changes``: the last, latest last.
    """

    waiting_requests: dict[Tier, _Requests] = {}
    running_requests: dict[Tier, _Requests] = {}
    open_slots: dict[Tier, _Requests] = {}
    guaranteed_share: dict[Tier, _Share] = {}
    work_seconds: dict[Tier, _Seconds] = {}
    arriving: dict[Tier, _Seconds] = {}
    service_seconds: dict[Tier, _ServiceSeconds] = {}
    wait_correction: dict[Tier, tuple[_Requests, _Factor, _Factor]] = {}
    limited_by: LimitedBy | None = None
    limit_changes: Annotated[list[LimitStep], msgspec.Meta(max_length=CHANGES_MAX)] = []
    overload: OverloadState = OverloadState()
    breaker: BreakerReport = BreakerReport()


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(WorkerLoad)


def with_load(capacity: Capacity, load: WorkerLoad) -> Capacity:
    """The same capacity with a load."""
    return msgspec.structs.replace(capacity, load=msgspec.Raw(_encoder.encode(load)))


def load_of(capacity: Capacity) -> WorkerLoad | None:
    """The load in a capacity record; None from a worker of an older version, and for an invalid one."""
    try:
        return _decoder.decode(capacity.load)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
