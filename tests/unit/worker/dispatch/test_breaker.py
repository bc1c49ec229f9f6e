"""The breaker by histories that read like its specification: who is charged, when it opens, when it probes."""

from __future__ import annotations

import pytest

from forebay_worker.dispatch.breaker import PROBE_OVERDUE_SECONDS, Breaker, BreakerState

LATE = 0.0
"""Start of a request that was in flight before everything else."""


class BreakerHistory:
    """Plays one backend's history. Requests are names; ``back``: those given back uncharged, in order."""

    def __init__(self) -> None:
        self.breaker: Breaker[str] = Breaker()
        self.now = 100.0
        self.back: list[str] = []
        self.charged: list[str] = []

    def fails(
        self, name: str, *, among: int = 0, started: float | None = None, retry_after: float | None = None
    ) -> BreakerHistory:
        """A failure of the backend, with ``among`` others in flight; by default of a request begun before
        everything."""
        self.back += self.breaker.backend_failed(
            self.now,
            name,
            started=LATE if started is None else started,
            in_flight=among,
            retry_after_seconds=retry_after,
        )
        return self

    def answers(self) -> BreakerHistory:
        convicted = self.breaker.answered(self.now)
        self.charged += [] if convicted is None else [convicted]
        return self

    def passes(self, seconds: float) -> BreakerHistory:
        self.now += seconds
        acquitted = self.breaker.release_suspect(self.now)
        self.back += [] if acquitted is None else [acquitted]
        return self

    def probes(self) -> float:
        """Waits until a probe may start and starts it; returns how long that took."""
        began = self.now
        while not self.breaker.admits(self.now):
            self.passes(0.0625)
            assert self.now - began < 1_000, "it never probes"
        self.breaker.started(self.now)
        assert not self.breaker.admits(self.now), "one probe at a time"
        return self.now - began

    def probe_fails(self, name: str = "probe", *, retry_after: float | None = None) -> BreakerHistory:
        return self.fails(name, started=self.now, retry_after=retry_after)

    @property
    def state(self) -> BreakerState:
        return self.breaker.state


def test_a_failure_followed_by_an_answer_to_another_is_charged() -> None:
    history = BreakerHistory().fails("a", among=3).answers()
    assert (history.charged, history.back, history.state) == (["a"], [], BreakerState.CLOSED)


def test_two_failures_with_no_answer_between_are_not_charged_and_open() -> None:
    history = BreakerHistory().fails("a", among=3).fails("b", among=2)
    assert (history.charged, history.back, history.state) == ([], ["a", "b"], BreakerState.OPEN)
    assert history.breaker.opened_count == 1


def test_a_failure_with_nothing_else_in_flight_is_not_charged_and_opens() -> None:
    history = BreakerHistory().fails("a", among=0)
    assert (history.charged, history.back, history.state) == ([], ["a"], BreakerState.OPEN)


def test_a_suspect_that_nothing_convicts_within_a_second_goes_back() -> None:
    history = BreakerHistory().fails("a", among=3).passes(0.5)
    assert history.back == []
    history.passes(0.5).answers()
    assert (history.charged, history.back, history.state) == ([], ["a"], BreakerState.CLOSED)


def test_only_one_of_many_is_charged_by_each_answer() -> None:
    history = BreakerHistory().fails("a", among=9).answers().fails("b", among=8).answers().answers()
    assert (history.charged, history.back, history.state) == (["a", "b"], [], BreakerState.CLOSED)


def test_everything_that_was_in_flight_when_the_backend_died_goes_back() -> None:
    history = BreakerHistory()
    for among, name in zip(range(3, -1, -1), "abcd", strict=True):
        history.fails(name, among=among)
    assert (history.charged, history.back) == ([], ["a", "b", "c", "d"])
    assert history.breaker.opened_count == 1


def test_while_it_is_open_nothing_starts_but_one_probe_ever_more_rarely() -> None:
    history = BreakerHistory().fails("a")
    waits = []
    for _ in range(7):
        waits.append(history.probes())
        history.probe_fails()
    assert waits == [0.5, 1, 2, 4, 5, 5, 5]
    assert history.breaker.opened_count == 1, "one outage is opened once"


def test_the_first_answer_closes_it_and_the_next_outage_starts_anew() -> None:
    history = BreakerHistory().fails("a")
    for _ in range(3):
        history.probes()
        history.probe_fails()
    history.probes()
    history.answers()
    assert history.state is BreakerState.CLOSED
    assert history.breaker.probe_at is None
    history.fails("b")
    assert history.probes() == 0.5
    assert history.breaker.opened_count == 2


def test_an_answer_to_what_was_in_flight_before_closes_it_too() -> None:
    history = BreakerHistory().fails("a", among=2).fails("b", among=1).answers()
    assert (history.state, history.charged) == (BreakerState.CLOSED, [])
    assert history.breaker.admits(history.now)


@pytest.mark.parametrize(
    ("asked", "waited"),
    [(None, 0.5), (0.0, 0.5), (0.25, 0.5), (3.0, 3.0), (60.0, 60.0), (3_600.0, 60.0), (float("inf"), 60.0)],
)
def test_the_backends_own_wish_is_obeyed_within_bounds(asked: float | None, waited: float) -> None:
    history = BreakerHistory().fails("a", retry_after=asked)
    assert history.probes() == waited


def test_the_wish_of_a_failed_probe_is_obeyed_and_does_not_lengthen_later_waits() -> None:
    history = BreakerHistory().fails("a")
    history.probes()
    history.probe_fails(retry_after=30)
    assert history.probes() == 30
    history.probe_fails()
    assert history.probes() == 2


def test_late_failures_do_not_put_the_probe_off_unless_the_backend_asks() -> None:
    history = BreakerHistory().fails("a", among=3).fails("b", among=2).passes(0.25).fails("c", among=1)
    assert history.back == ["a", "b", "c"]
    assert history.breaker.probe_at == 100.5
    history.fails("d", retry_after=7)
    assert history.breaker.probe_at == 107.25


def test_a_late_failure_says_nothing_of_the_probe_that_runs() -> None:
    history = BreakerHistory().fails("a", among=3).fails("b", among=2)
    history.probes()
    history.fails("c", among=1)
    assert (history.back, history.state) == (["a", "b", "c"], BreakerState.PROBING)
    history.answers()
    assert (history.state, history.charged) == (BreakerState.CLOSED, [])


def test_a_wish_that_comes_while_the_probe_runs_holds_when_the_probe_fails() -> None:
    history = BreakerHistory().fails("a", among=2).fails("b", among=1)
    history.probes()
    history.fails("c", retry_after=10).probe_fails()
    assert history.probes() == 10


def test_a_probe_that_ends_without_evidence_is_made_again_after_the_same_time() -> None:
    history = BreakerHistory().fails("a")
    history.probes()
    history.probe_fails()
    for _ in range(3):
        assert history.probes() == 1
        history.breaker.ended(history.now, started=history.now)
        assert history.state is BreakerState.OPEN
    assert history.probes() == 1


def test_a_probe_that_hangs_is_joined_by_another_every_ten_seconds() -> None:
    history = BreakerHistory().fails("a")
    history.probes()
    for _ in range(3):
        assert history.probes() == PROBE_OVERDUE_SECONDS
    history.answers()
    assert history.state is BreakerState.CLOSED


def test_the_probe_that_joined_a_hung_one_says_how_the_backend_is() -> None:
    history = BreakerHistory().fails("a")
    history.probes()
    hung_since = history.now
    history.probes()
    history.fails("hung", started=hung_since)
    assert history.state is BreakerState.PROBING, "that says nothing new"
    history.probe_fails()
    assert history.probes() == 1


def test_an_old_request_that_ends_without_evidence_leaves_the_probe_alone() -> None:
    history = BreakerHistory().fails("a", among=2).fails("b", among=1)
    history.probes()
    history.breaker.ended(history.now, started=LATE)
    assert history.state is BreakerState.PROBING


def test_while_it_is_closed_an_end_without_evidence_says_nothing() -> None:
    history = BreakerHistory().fails("a", among=3)
    history.breaker.ended(history.now, started=history.now)
    assert history.state is BreakerState.CLOSED
    history.answers()
    assert history.charged == ["a"]
