"""Charges for failures, by drawn histories of a backend, its queue and its slots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_worker.dispatch.breaker import BreakerState
from forebay_worker.dispatch.failure_policy import FAILURES_AMONG_ANSWERS_MAX, LONE_TRIES_MAX, FailurePolicy, Verdicts
from forebay_worker.request.work import Work
from simulated.failures import DEADLINE_SECONDS, failure
from simulated.works import make_work

GOOD, POISON = "good", "poison"

Engine = Callable[[str, float], tuple[float, int]]
"""By a request's name and when it started: how long it takes, and its status; 200 is an answer."""


@dataclass
class Pool:
    """A queue before an engine that takes ``limit`` at once; what is charged leaves it."""

    engine: Engine
    limit: int
    policy: FailurePolicy = field(default_factory=FailurePolicy)
    now: float = 1_000.0
    queue: list[Work] = field(default_factory=list)
    running: list[tuple[float, int, Work, int]] = field(default_factory=list)
    executions: dict[str, int] = field(default_factory=dict)
    charged: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    _numbers: count[int] = field(default_factory=count)

    def add(self, *names: str) -> None:
        for name in names:
            offset = next(self._numbers)
            self.queue.append(make_work(request_id=f"{name}-{offset}", offset=offset, ttl_ms=3_600_000))

    def run(self, *, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end and (self.queue or self.running or self.policy.suspect_count):
            self._start()
            self._turn()

    def _start(self) -> None:
        breaker = self.policy.breaker
        while self.queue and len(self.running) < self.limit and breaker.admits(self.now):
            if breaker.state is BreakerState.CLOSED:
                work = self.queue.pop(0)
            else:
                work = min(self.queue, key=lambda one: (one.failed_at, one.offset))
                self.queue.remove(work)
            breaker.started(self.now)
            work.started = self.now
            name = work.request_id or ""
            self.executions[name] = self.executions.get(name, 0) + 1
            seconds, status = self.engine(name, self.now)
            self.running.append((self.now + seconds, work.offset, work, status))

    def _turn(self) -> None:
        self.now += 0.02
        self.running.sort(key=lambda one: one[:2])
        while self.running and self.running[0][0] <= self.now:
            _, _, work, status = self.running.pop(0)
            if status == 200:
                self.done.append(work.request_id or "")
                self._judge(self.policy.answered(self.now, started=work.started))
                continue
            self._judge(
                self.policy.failed(
                    self.now,
                    work,
                    failure(status),
                    in_flight=len(self.running),
                    seconds_left=DEADLINE_SECONDS,
                    others_wait=lambda _: False,
                )
            )
        self._judge(self.policy.step(self.now, waiting=bool(self.queue), running=bool(self.running)))

    def _judge(self, verdicts: Verdicts) -> None:
        for verdict in verdicts:
            if verdict.charged:
                self.charged.append(verdict.work.request_id or "")
            else:
                self.queue.append(verdict.work)


STATUSES = st.sampled_from([500, 504, 401, 403, 404, 302])
SECONDS = st.sampled_from([0.01, 0.1, 0.5, 3.0])


@settings(max_examples=100, deadline=None)
@given(
    good=st.integers(4, 40),
    at=st.integers(0, 40),
    limit=st.integers(1, 8),
    status=STATUSES,
    fails_after=SECONDS,
    answers_after=SECONDS,
)
def test_with_one_poison_among_good_ones_only_the_poison_is_charged(
    good: int, at: int, limit: int, status: int, fails_after: float, answers_after: float
) -> None:
    pool = Pool(
        engine=lambda name, _: (fails_after, status) if name.startswith(POISON) else (answers_after, 200), limit=limit
    )
    names = [GOOD] * good
    names.insert(min(at, good), POISON)
    pool.add(*names)
    pool.run(seconds=600)
    assert [name.split("-")[0] for name in pool.charged] == [POISON]
    assert len(pool.done) == good
    assert pool.policy.breaker.opened_count == 0
    # By answers to others mostly; last in the queue it is alone.
    assert pool.executions[pool.charged[0]] <= 1 + LONE_TRIES_MAX
    assert max(pool.executions[name] for name in pool.done) == 1


@settings(max_examples=60, deadline=None)
@given(
    waiting=st.integers(4, 60),
    limit=st.integers(1, 32),
    status=STATUSES,
    fails_after=SECONDS,
    began=st.sampled_from([0.0, 0.3]),
    lasts=st.sampled_from([20.0, 60.0, 600.0]),
)
def test_what_fails_all_charges_nobody_and_is_asked_by_another_request_each_time(
    waiting: int, limit: int, status: int, fails_after: float, began: float, lasts: float
) -> None:
    """A state of the backend begins and ends at some moment; each execution meets what holds at its start."""

    def engine(_: str, now: float) -> tuple[float, int]:
        return (fails_after, status) if 1_000 + began <= now < 1_000 + began + lasts else (0.1, 200)

    pool = Pool(engine=engine, limit=limit)
    pool.add(*[GOOD] * (waiting + 10 * limit if began else waiting))
    pool.run(seconds=began + lasts + 200)
    assert not pool.queue
    if status < 500 or began == 0.0:
        assert pool.charged == []
    else:
        # At the moment at which it dies, one that was let in before may be answered after another has failed.
        assert len(pool.charged) <= limit
    asked = [executions for executions in pool.executions.values() if executions > 1]
    assert max(asked) - min(asked) <= 3, "one was asked more often than others"


@settings(max_examples=60, deadline=None)
@given(names=st.integers(1, 2), limit=st.integers(1, 4), status=STATUSES, fails_after=SECONDS)
def test_no_request_that_fails_alone_runs_again_more_than_three_times(
    names: int, limit: int, status: int, fails_after: float
) -> None:
    pool = Pool(engine=lambda *_: (fails_after, status), limit=limit)
    pool.add(*[POISON] * names)
    pool.run(seconds=600)
    assert len(pool.charged) == names
    assert set(pool.executions.values()) == {1 + LONE_TRIES_MAX}
    assert pool.policy.trouble is None
    assert pool.policy.suspect_count == 0


@settings(max_examples=50, deadline=None)
@given(
    kinds=st.lists(st.sampled_from([GOOD, GOOD, GOOD, POISON]), min_size=8, max_size=60),
    limit=st.integers(1, 8),
    status=STATUSES,
    fails_after=SECONDS,
    answers_after=SECONDS,
)
def test_however_many_bad_ones_there_are_no_good_one_is_charged_and_all_ends(
    kinds: list[str], limit: int, status: int, fails_after: float, answers_after: float
) -> None:
    pool = Pool(
        engine=lambda name, _: (fails_after, status) if name.startswith(POISON) else (answers_after, 200), limit=limit
    )
    pool.add(*kinds, GOOD)
    pool.run(seconds=1_200)
    assert all(name.startswith(POISON) for name in pool.charged)
    assert len(pool.done) == kinds.count(GOOD) + 1
    bound = 1 + max(LONE_TRIES_MAX, FAILURES_AMONG_ANSWERS_MAX) + LONE_TRIES_MAX
    # Three bad ones or more that are left alone look like a dead engine, and wait for their deadlines.
    if not pool.queue:
        assert max((pool.executions[name] for name in pool.charged), default=0) <= bound
