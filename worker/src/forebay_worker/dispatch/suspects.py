"""Starts that need care after a crash: those that wait for a commit that names them, and suspects, which run alone.

Pure, with time (monotonic seconds) passed in. The event loop uses it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from forebay_schemas.contract.tiers import Tier
from forebay_worker.partition.claims import SUSPECT_CRASHES
from forebay_worker.partition.quiet import Quiet
from forebay_worker.request.work import Work

NAMED_SECONDS_MAX = 3.0
"""A start waits no longer for a commit that names it: commits that fail must not stop requests."""

ANNOUNCED_SECONDS_MAX = 0.5
"""Nor for the first commit of a partition that was let go of: brokers refuse commits while the group rebalances."""

ALONE_SECONDS_MAX = 30.0
"""So long others wait for a suspect that runs."""

GATHER_SECONDS, GATHER_SECONDS_MAX = 30.0, 600.0
"""So long they wait for it to be alone, when what runs takes long: at first; each time in vain doubles it."""

COMMIT_SECONDS_MAX = 15.0
"""For the commit that says that a suspect runs alone. Without it the suspect runs alone and cannot be convicted."""

CLEARED_SECONDS_MAX = 60.0
"""For the commit that says that it no longer does, before others start: a crash of theirs would convict it."""


def is_suspect(work: Work) -> bool:
    """Whether it was running when two workers died, and has not been acquitted."""
    return work.crashes == SUSPECT_CRASHES


def must_wait(work: Work) -> bool:
    """Whether a claimed request may start only after a commit."""
    claims = work.assignment.claims
    return not claims.is_announced or claims.must_be_named(work.offset)


class NamedStarts:
    """Claimed requests that wait until the group's last commit names them as running, or long enough."""

    def __init__(self) -> None:
        self._held: deque[tuple[float, Work]] = deque()

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Work]:
        return (work for _, work in self._held)

    def of_tier(self, tier: Tier) -> int:
        """How many of the tier there are."""
        return sum(work.tier is tier for _, work in self._held)

    def hold(self, work: Work, now: float) -> None:
        """Adds a claimed request, and asks for the commit."""
        claims = work.assignment.claims
        claims.is_urgent = True
        patience_seconds = NAMED_SECONDS_MAX if claims.must_be_named(work.offset) else ANNOUNCED_SECONDS_MAX
        self._held.append((now + patience_seconds, work))

    def take(self, now: float) -> Work | None:
        """A request that need not wait any more, or whose partition was given up; None when there is none."""
        for _ in range(len(self._held)):
            until, work = self._held.popleft()
            claims = work.assignment.claims
            is_named = claims.is_announced and (not claims.must_be_named(work.offset) or claims.is_named(work.offset))
            if is_named or now >= until or not claims.is_open:
                return work
            self._held.append((until, work))
        return None

    def take_all(self) -> list[Work]:
        """All of them: nothing is to start any more."""
        held = [work for _, work in self._held]
        self._held.clear()
        return held


class Phase(Enum):
    """What a trial waits for."""

    GATHERING = "others end, and intakes decode nothing more"
    NAMING = "a commit says that it runs alone"
    ALONE = "it ends, or outlives its time"
    CLEARING = "a commit says that it no longer runs alone"


@dataclass(slots=True)
class _Trial:
    work: Work
    phase: Phase
    began: float
    since: float


class Suspects:
    """The requests that were running at two crashes, and the one of them that is being tried.

    A trial: nothing else starts or is decoded; when nothing else runs, the suspect is claimed and, once a commit says
    so, started. It is acquitted when it ends or has run for `ALONE_SECONDS_MAX`; others start again once a commit says
    that. Then they go on for as long as the trial took before the next one.
    """

    def __init__(self, quiet: Quiet) -> None:
        self._quiet = quiet
        self._waiting: deque[Work] = deque()
        self._trial: _Trial | None = None
        self._rest_until = 0.0
        self._gather_seconds = GATHER_SECONDS

    def __len__(self) -> int:
        """How many wait for their trial or are in it, before they are claimed."""
        return len(self._waiting) + (self._trial is not None and self._trial.phase is Phase.GATHERING)

    @property
    def is_idle(self) -> bool:
        """Whether there is no suspect."""
        return self._trial is None and not self._waiting

    @property
    def excludes_others(self) -> bool:
        """Whether nothing else may start."""
        return self._trial is not None

    @property
    def phase(self) -> Phase | None:
        """What the present trial waits for; None when there is none."""
        return None if self._trial is None else self._trial.phase

    def add(self, work: Work) -> None:
        """Adds a suspect that nobody has claimed."""
        self._waiting.append(work)

    def take_out(self, is_wanted: Callable[[Work], bool]) -> list[Work]:
        """Takes out those that are not claimed yet and wanted otherwise: expired, cancelled."""
        taken = [work for work in self._waiting if is_wanted(work)]
        if taken:
            self._waiting = deque(work for work in self._waiting if not is_wanted(work))
        trial = self._trial
        if trial is not None and trial.phase is Phase.GATHERING and is_wanted(trial.work):
            taken.append(trial.work)
            self._close()
        return taken

    def step(self, now: float, *, in_flight: int, may_start: Callable[[], bool]) -> Work | None:
        """Goes on with the trial, or begins the next one. Returns the suspect to be started now, alone.

        ``in_flight``: how many other requests run or are about to. ``may_start``: whether anything could start if
        nothing ran; False sends the suspect back to wait.
        """
        if self._trial is None:
            self._begin(now, may_start)
        trial = self._trial
        if trial is None:
            return None
        work, claims = trial.work, trial.work.assignment.claims
        waited = now - trial.since
        match trial.phase:
            case Phase.GATHERING:
                is_alone = not in_flight and self._quiet.is_quiet
                if not claims.is_open:
                    self._close()
                elif not may_start() or (not is_alone and waited >= self._gather_seconds):
                    if waited >= self._gather_seconds:
                        self._gather_seconds = min(2 * self._gather_seconds, GATHER_SECONDS_MAX)
                    self._waiting.appendleft(work)
                    self._end(now)
                elif is_alone and claims.claim(work.offset):
                    self._gather_seconds = GATHER_SECONDS
                    claims.try_alone(work.offset)
                    self._enter(Phase.NAMING, now)
            case Phase.NAMING:
                is_named = claims.is_named(work.offset) or waited >= COMMIT_SECONDS_MAX
                if not claims.is_open or (is_named and may_start()):
                    self._enter(Phase.ALONE, now)
                    return work
                if waited >= 2 * COMMIT_SECONDS_MAX:
                    claims.release(work.offset)
                    self._waiting.appendleft(work)
                    self.release(work, now)
            case Phase.ALONE:
                if waited >= ALONE_SECONDS_MAX or not claims.is_open:
                    self.acquit(work, now)
            case Phase.CLEARING:
                if not claims.may_say_alone or not claims.is_open or waited >= CLEARED_SECONDS_MAX:
                    self._end(now)
        return None

    def acquit(self, work: Work, now: float) -> None:
        """The suspect ended, was not started after all, or outlived its time: it did not kill this worker."""
        trial = self._trial
        if trial is None or trial.work is not work or trial.phase is Phase.CLEARING:
            return
        work.crashes = 0
        work.assignment.acquitted.append(work.offset)
        work.assignment.claims.end_alone()
        self._enter(Phase.CLEARING, now)

    def release(self, work: Work, now: float) -> None:
        """The suspect was not started after all, and stays one."""
        trial = self._trial
        if trial is not None and trial.work is work and trial.phase is not Phase.CLEARING:
            work.assignment.claims.end_alone()
            self._enter(Phase.CLEARING, now)

    def stop(self, now: float) -> None:
        """Nothing is to start any more: a suspect that was claimed is given back."""
        trial = self._trial
        self._waiting.clear()
        if trial is not None and trial.phase is Phase.NAMING:
            trial.work.assignment.claims.release(trial.work.offset)
            self.release(trial.work, now)
        elif trial is not None and trial.phase is Phase.GATHERING:
            self._close()

    def _begin(self, now: float, may_start: Callable[[], bool]) -> None:
        while self._waiting and not self._waiting[0].assignment.claims.is_open:
            self._waiting.popleft()  # its new owner sees to it
        if self._waiting and now >= self._rest_until and may_start():
            self._trial = _Trial(self._waiting.popleft(), Phase.GATHERING, now, now)
            self._quiet.is_wanted = True

    def _enter(self, phase: Phase, now: float) -> None:
        assert self._trial is not None
        self._trial.phase, self._trial.since = phase, now

    def _end(self, now: float) -> None:
        assert self._trial is not None
        self._rest_until = now + (now - self._trial.began)
        self._close()

    def _close(self) -> None:
        self._trial = None
        self._quiet.is_wanted = False
