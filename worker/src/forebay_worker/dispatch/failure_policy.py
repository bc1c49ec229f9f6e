"""Who is charged for a failure: the request that met it, or nobody, since the backend serves nobody. Pure."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Final

from forebay_worker.dispatch.blame import Blame, Kind, Trouble, blame_of, is_at_the_door, kind_of, trouble_of
from forebay_worker.dispatch.breaker import PROBE_SECONDS_MIN, RETRY_AFTER_SECONDS_MAX, Breaker, BreakerState
from forebay_worker.request.work import Failure, Failures, Work

DIFFERENT_MIN: Final = 3
"""That many different requests with no answer between them tell that the backend fails all. One may be bad, two may be
the same bad request sent twice."""

FAILURES_AMONG_ANSWERS_MAX: Final = 3
"""A request that breaks the backend each time it runs must not be tried for ever."""

LONE_TRIES_MAX: Final = 3
LONE_SECONDS: Final = PROBE_SECONDS_MIN
"""Before the first of them; twice as long before each next."""

HELD_SECONDS_MAX: Final = 10.0
"""For the end of others that run: a request that waits for evidence is late meanwhile."""

SUSPECTS_MAX: Final = 16
"""They wait beyond their lane's bound. With more of them nothing is started but a request of another kind."""

_NEVER: Final = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``charged``: the failure counts against its request; else that goes back to its lane as if it had not run."""

    work: Work
    failure: Failure
    charged: bool


Verdicts = Sequence[Verdict]
NONE: Final[Verdicts] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Suspect:
    """``lone_until``: how long it waits when nothing else could give evidence, ``until``: when something may."""

    work: Work
    failures: Failures
    failure: Failure
    lone_until: float
    until: float


class FailurePolicy:
    """Judges the failures of one backend. Times are monotonic seconds.

    What refuses connections or answers 429, 502, 503 or 529 is the `Breaker`'s to judge. 401, 403, 404 without a
    model's name, 3xx and other 5xx are shared blame: the request waits, as a suspect, for what happens to others.

    - The next answer to another charges it. Only answers count: an engine whose core is dead goes on refusing bad
      requests. For 401, 403, 404 and 3xx only an answer to what began after the refusal counts.
    - Three different requests that fail with no answer between (of more than one biz_type, tenant or model, where there
      are others) show the backend's state: the breaker opens, all of them go back uncharged, and so does whatever fails
      until one is answered.
    - Fewer, and nothing else that could tell: it runs again after 0.5 s, 1 s and 2 s, then it is charged.

    A request is charged outright once it has failed three times more, each time after the backend answered others; one
    that failed as a probe, once.
    """

    __slots__ = (
        "_ids",
        "_is_of_all",
        "_kinds",
        "_refused_since",
        "_retries_by_hand",
        "_suspects",
        "breaker",
        "trouble",
    )

    def __init__(self, *, retries_by_hand: bool = False) -> None:
        """``retries_by_hand``: as in `blame_of`."""
        self.breaker: Breaker[tuple[Work, Failure]] = Breaker()
        self.trouble: Trouble | None = None
        """What the backend fails with while it serves nobody; None while it serves."""
        self._retries_by_hand = retries_by_hand
        self._suspects: list[_Suspect] = []
        # What failed by shared blame since the last answer: request ids, three at most, and kinds, two at most.
        self._ids: set[str] = set()
        self._kinds: set[Kind] = set()
        self._is_of_all = False
        self._refused_since = _NEVER

    @property
    def suspect_count(self) -> int:
        """How many requests wait for evidence."""
        return len(self._suspects)

    def blame(self, failure: Failure) -> Blame:
        """What a failure speaks of."""
        return blame_of(failure, retries_by_hand=self._retries_by_hand)

    def answered(self, now: float, *, started: float) -> Verdicts:
        """The backend answered a request begun at ``started``."""
        if started < self._refused_since:
            return NONE  # it was let in before others were refused
        convicted = self.breaker.answered(now)
        if convicted is None and not self._ids:
            self.trouble = None
            return NONE
        verdicts = [] if convicted is None else [_charged(*convicted)]
        verdicts += [_charged(suspect.work, suspect.failure) for suspect in self._suspects]
        self._suspects.clear()
        self._ids.clear()
        self._kinds.clear()
        self._is_of_all = False
        self._refused_since = _NEVER
        self.trouble = None
        return verdicts

    def rejected(self, now: float, *, started: float) -> Verdicts:
        """The backend refused a request for that request's own sake: it can be reached."""
        if self._ids:
            self.breaker.ended(now, started=started, again_seconds=0.0)
            return NONE
        return self.answered(now, started=started)

    def failed(
        self,
        now: float,
        work: Work,
        failure: Failure,
        *,
        in_flight: int,
        seconds_left: float,
        others_wait: Callable[[Kind], bool],
    ) -> Verdicts:
        """A request failed, and not, or not surely, by its own fault.

        ``in_flight``: others that still run. ``seconds_left``: to its deadline. ``others_wait``: whether anything waits
        or runs that is of another kind than this one.
        """
        is_shared = self.blame(failure) is Blame.SHARED
        failures = work.failures
        if failures is None:
            failures = work.failures = Failures(now)
        elif (is_shared or failure.reached) and self.breaker.last_answer > failures.last_at:
            failures.among_answers += 1
        failures.last_at = now
        if failures.among_answers >= FAILURES_AMONG_ANSWERS_MAX:
            self.breaker.ended(now, started=work.started)
            # It tells for the breaker's suspect that it was not the only one to fail.
            return [*_back([self.breaker.release_suspect(float("inf"))]), _charged(work, failure)]
        if is_shared:
            return self._failed_by_shared_blame(
                now, work, failures, failure, seconds_left=seconds_left, others_wait=others_wait
            )
        # What never reached the backend cannot have been the request's fault: nothing is waited for.
        back = self.breaker.backend_failed(
            now,
            (work, failure),
            started=work.started,
            in_flight=in_flight if failure.reached else 0,
            retry_after_seconds=failure.retry_after_seconds,
        )
        if self.breaker.state is BreakerState.CLOSED:
            return _back(back)
        self.trouble = trouble_of(failure)
        return [*self._acquit_all(), *_back(back)]

    def step(self, now: float, *, waiting: bool, running: bool) -> Verdicts:
        """Lets run again what has waited long enough for evidence. ``waiting``, ``running``: whether anything does."""
        released = self.breaker.release_suspect(now)
        if released is None and not self._suspects:
            return NONE
        verdicts = _back([released])
        kept = []
        for suspect in self._suspects:
            may_publish = waiting or (running and not is_at_the_door(suspect.failure))
            is_given_up = not suspect.work.assignment.claims.is_open
            if is_given_up or now >= suspect.until or (not may_publish and now >= suspect.lone_until):
                suspect.failures.lone_tries += 1
                verdicts.append(Verdict(work=suspect.work, failure=suspect.failure, charged=False))
            else:
                kept.append(suspect)
        self._suspects = kept
        return verdicts

    def release(self, request_ids: Container[str]) -> Verdicts:
        """Lets go of the suspects of these ids: somebody wants something of them."""
        kept = [suspect for suspect in self._suspects if suspect.work.request_id not in request_ids]
        if len(kept) == len(self._suspects):
            return NONE
        released = [suspect for suspect in self._suspects if suspect.work.request_id in request_ids]
        self._suspects = kept
        return [Verdict(work=each.work, failure=each.failure, charged=False) for each in released]

    def is_of_the_failed_kind(self, work: Work) -> bool:
        """Whether one of another kind would tell more as a probe."""
        return len(self._kinds) == 1 and work.request is not None and kind_of(work) in self._kinds

    def _failed_by_shared_blame(
        self,
        now: float,
        work: Work,
        failures: Failures,
        failure: Failure,
        *,
        seconds_left: float,
        others_wait: Callable[[Kind], bool],
    ) -> Verdicts:
        breaker = self.breaker
        self._note(work, failure)
        may_be_alone = len(self._ids) < DIFFERENT_MIN
        if may_be_alone and failures.lone_tries >= LONE_TRIES_MAX:
            breaker.ended(now, started=work.started)
            return [_charged(work, failure)]
        if not self._is_of_all:
            self._is_of_all = not may_be_alone and (len(self._kinds) > 1 or not others_wait(next(iter(self._kinds))))
        if breaker.state is BreakerState.CLOSED and not self._is_of_all:
            self._suspects.append(_suspect(now, work, failures, failure, seconds_left=seconds_left))
            if len(self._suspects) >= SUSPECTS_MAX:
                breaker.open(now)
            return NONE
        if breaker.is_probe(work.started):
            if may_be_alone:
                failures.lone_tries += 1
            elif self._is_of_all:
                # It has had its benefit of the doubt: the next failure after an answer to another is its own.
                failures.among_answers = FAILURES_AMONG_ANSWERS_MAX - 1
        back = breaker.backend_failed(
            now,
            (work, failure),
            started=work.started,
            in_flight=0,
            retry_after_seconds=failure.retry_after_seconds,
        )
        if self._is_of_all:
            self.trouble = trouble_of(failure)
            return [*self._acquit_all(), *_back(back)]
        return _back(back)

    def _note(self, work: Work, failure: Failure) -> None:
        if len(self._ids) < DIFFERENT_MIN:
            self._ids.add(work.request_id or "")
        if len(self._kinds) < 2:
            self._kinds.add(kind_of(work))
        if is_at_the_door(failure):
            self._refused_since = max(self._refused_since, work.started)

    def _acquit_all(self) -> Verdicts:
        suspects, self._suspects = self._suspects, []
        return [Verdict(work=each.work, failure=each.failure, charged=False) for each in suspects]


def _suspect(now: float, work: Work, failures: Failures, failure: Failure, *, seconds_left: float) -> _Suspect:
    wish_seconds = min(failure.retry_after_seconds or 0.0, RETRY_AFTER_SECONDS_MAX)
    lone_seconds = max(LONE_SECONDS * 2**failures.lone_tries, wish_seconds)
    # At its deadline its lane sees to it.
    return _Suspect(
        work=work,
        failures=failures,
        failure=failure,
        lone_until=now + min(lone_seconds, seconds_left),
        until=now + min(max(HELD_SECONDS_MAX, wish_seconds), seconds_left),
    )


def _charged(work: Work, failure: Failure) -> Verdict:
    return Verdict(work=work, failure=failure, charged=True)


def _back(requests: Sequence[tuple[Work, Failure] | None]) -> list[Verdict]:
    return [Verdict(work=each[0], failure=each[1], charged=False) for each in requests if each is not None]
