"""The orders in which equal requests may leave a lane. Pure; no clock."""

from __future__ import annotations

from enum import StrEnum

from forebay_worker.request.work import Work

AGING = 0.002
"""Predicted engine seconds by which a second of waiting makes a request cheaper (`sjf_aged`). Within an interactive
deadline short ones nearly always go first, which serves the most in time. Over a batch's wait of hours it bounds
overtaking: a request that costs ten seconds more than all others is overtaken only by those that arrive within 5,000 s
after it."""


class LaneOrder(StrEnum):
    """Order of requests of the same tier, integer priority and tenant's turn.

    ``fifo``: the arrival. ``edf``: the earliest deadline. ``sjf_aged``: the shortest predicted engine time, less
    `AGING` for each second of age; requests of unknown cost keep the order of their arrival among themselves.
    """

    FIFO = "fifo"
    EDF = "edf"
    SJF_AGED = "sjf_aged"


def urgency(order: LaneOrder, work: Work, number: int) -> float:
    """The rank of a request that joins its lane as ``number``; lower is sooner. It never changes while it waits."""
    if order is LaneOrder.SJF_AGED:
        return work.cost_seconds + AGING * work.arrived
    return work.deadline_ms if order is LaneOrder.EDF else number
