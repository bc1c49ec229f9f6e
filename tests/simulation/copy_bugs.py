"""Faults in what becomes of requests that are sent again, and of results that are awaited: see `bugs`."""

from __future__ import annotations

from typing import Any

from forebay_worker.outcome import delivery
from forebay_worker.request import copies
from forebay_worker.request.copies import Copies
from simulation.bug import bug
from simulation.process import Patch


@bug("copies-finished-at-once", "a copy is finished when it comes, and not when its first is")
def _copies_finished_at_once() -> list[Patch]:
    def hold(_: Copies, first: Any, copy: Any) -> None:  # noqa: ARG001 - the method's form
        if copy.assignment.claims.claim(copy.offset):
            copy.assignment.done.append(copy.offset)

    return [(Copies, "hold", hold)]


@bug("copies-run-too", "a request that waits or runs is started again when it is sent again")
def _copies_run_too() -> list[Patch]:
    return [(Copies, "first_of", lambda *_: None)]


@bug("retry-taken-for-a-copy", "a retry that is read before it is known to be written ends with what it comes from")
def _retry_taken_for_a_copy() -> list[Patch]:
    return [(copies, "_goes_on_as", lambda *_: False)]


@bug("copies-stay-when-their-first-is-gone", "nothing takes the place of a request whose partition was revoked")
def _copies_stay_when_their_first_is_gone() -> list[Patch]:
    return [(copies, "is_here", lambda _: True)]


@bug("results-by-key-alone", "a result lies where its key belongs, wherever it is awaited")
def _results_by_key_alone() -> list[Patch]:
    return [(delivery, "awaited_partition", lambda _: None)]
