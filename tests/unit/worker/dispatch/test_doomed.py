"""Dispatch and prediction: a request that cannot be done before its deadline is dropped as soon as that is known, and
never for what is not known."""

from __future__ import annotations

import pytest

from forebay_schemas.contract.tiers import Tier
from forebay_worker.dispatch.deadlines import DOOMED_IN_FLIGHT_MIN
from forebay_worker.lanes.lanes import Lanes
from forebay_worker.pacing.gate import Gate
from forebay_worker.pacing.policies.fixed import FixedLimit
from forebay_worker.pacing.prediction import SAMPLES_MIN, Predictor
from forebay_worker.partition.assignment import Assignment
from forebay_worker.request.work import Answer, Work
from simulated.dispatch import Stage
from simulated.works import make_assignment, make_work

STEP_SECONDS = 0.010
"""The backend's time for an output token, whatever else it does."""


class PredictingStage(Stage):
    """A dispatcher that predicts, over a limit that stays; the backend takes ``STEP_SECONDS`` a token."""

    def __init__(self, *, limit: int = 64) -> None:
        gate = Gate(policy=FixedLimit(limit_requests=limit), prefill_seconds_max=1e9)
        super().__init__(gate=gate, lanes=Lanes(), predictor=Predictor())
        self.assignments: dict[Tier, Assignment] = {tier: make_assignment(tier) for tier in Tier}
        self._offset = 0

    def request(self, *, ttl_seconds: float = 3600.0, tier: Tier = Tier.MID, **payload: object) -> Work:
        self._offset += 1
        return make_work(
            self.assignments[tier],
            offset=self._offset,
            enqueued_at=self.clock.wall_ms(),
            ttl_ms=int(ttl_seconds * 1000),
            payload={"model": "m", **payload},
        )

    def take_all(self) -> list[Work]:
        self.reporter.delivery.poll()
        return super().take_all()

    def teach(self, output_tokens: int, *, count: int = SAMPLES_MIN, max_tokens: int | None = None) -> None:
        """Answers ``count`` requests at this length."""
        for _ in range(count):
            self.accept(self.request(max_tokens=max_tokens))
            (work,) = self.take_all()
            self.clock.advance(output_tokens * STEP_SECONDS)
            self.dispatcher.answered(work, Answer(body={}, prompt_tokens=10, output_tokens=output_tokens))

    def keep_busy(self, count: int = DOOMED_IN_FLIGHT_MIN) -> list[Work]:
        """Others that run all through."""
        self.accept(*(self.request() for _ in range(count)))
        return self.take_all()

    def dropped(self) -> list[str]:
        return [result.request_id for result in self.results() if result.reason == "deadline_unreachable"]


def test_what_cannot_be_done_in_time_is_dropped_at_dispatch_and_the_next_one_starts() -> None:
    stage = PredictingStage()
    stage.teach(500)
    stage.keep_busy()
    late, in_time = stage.request(ttl_seconds=3.0), stage.request(ttl_seconds=10.0)
    stage.accept(late, in_time)
    assert stage.take_all() == [in_time]
    assert stage.dropped() == [late.request_id]


def test_the_result_says_what_it_would_have_taken_and_what_was_left() -> None:
    stage = PredictingStage()
    stage.teach(500)
    stage.keep_busy()
    stage.accept(stage.request(ttl_seconds=3.0))
    stage.take_all()
    (result,) = [result for result in stage.results() if result.reason == "deadline_unreachable"]
    assert result.predicted_seconds == pytest.approx(5.0, rel=0.05)
    assert result.error is not None
    assert result.error.startswith(f"it would take {result.predicted_seconds:.3f} s and has 3.000 s left")


def test_what_waits_is_dropped_as_soon_as_it_is_known_though_nothing_may_start() -> None:
    stage = PredictingStage(limit=DOOMED_IN_FLIGHT_MIN)
    stage.teach(500)
    stage.keep_busy()
    stage.dispatcher.tick()
    waits = stage.request(ttl_seconds=6.0)
    stage.accept(waits)
    assert stage.take_all() == []
    stage.clock.advance(0.5)
    stage.dispatcher.tick()
    assert stage.dropped() == [], "it could still be done"
    stage.clock.advance(1.5)
    stage.dispatcher.tick()
    assert stage.dropped() == [waits.request_id], "4 s before its deadline, not after it"
    assert len(stage.dispatcher.lanes) == 0


def test_with_luck_it_would_be_done_so_it_is_tried() -> None:
    """A quarter of its class takes 100 tokens: it may be one of them."""
    stage = PredictingStage()
    for output_tokens in (100, 500, 500, 500) * 4:
        stage.teach(output_tokens, count=1)
    stage.teach(100, count=4)
    stage.keep_busy()
    work = stage.request(ttl_seconds=2.0)
    stage.accept(work)
    assert stage.take_all() == [work]
    assert work.output_tokens == 500
    assert work.output_tokens_min == 100


def test_nothing_is_dropped_before_anything_is_known_of_the_backend() -> None:
    stage = PredictingStage()
    stage.keep_busy(20)
    short = [stage.request(ttl_seconds=0.001, max_tokens=100_000) for _ in range(20)]
    stage.accept(*short)
    assert stage.take_all() == short


def test_nothing_is_dropped_for_a_length_that_is_not_known() -> None:
    """The backend is known, this kind of request is not."""
    stage = PredictingStage()
    stage.teach(500)
    stage.keep_busy()
    unknown = stage.request(ttl_seconds=0.5, model="new")
    stage.accept(unknown)
    assert stage.take_all() == [unknown]


@pytest.mark.parametrize("cap", [2048, 4096, 1_000_000])
def test_nothing_is_dropped_for_a_cap_that_nobody_uses(cap: int) -> None:
    stage = PredictingStage()
    stage.teach(100, count=40, max_tokens=2048)
    stage.keep_busy()
    work = stage.request(ttl_seconds=10.0, max_tokens=cap)
    stage.accept(work)
    assert stage.take_all() == [work]


def test_a_cap_that_all_set_dooms_by_what_is_used_of_it() -> None:
    stage = PredictingStage()
    stage.teach(200, count=40, max_tokens=2048)
    stage.keep_busy()
    late, in_time = stage.request(ttl_seconds=1.5, max_tokens=2048), stage.request(ttl_seconds=2.5, max_tokens=2048)
    stage.accept(late, in_time)
    assert stage.take_all() == [in_time]
    assert stage.dropped() == [late.request_id]


def test_while_little_runs_nothing_is_doomed_since_only_answers_tell_that_the_backend_is_fast_again() -> None:
    stage = PredictingStage()
    stage.teach(500)
    stage.keep_busy(DOOMED_IN_FLIGHT_MIN - 1)
    work = stage.request(ttl_seconds=1.0)
    stage.accept(work)
    assert stage.take_all() == [work]


def test_a_backend_that_became_fast_again_is_found_out_though_everything_seemed_doomed() -> None:
    stage = PredictingStage()
    stage.teach(500)
    done = 0
    for _ in range(200):
        stage.accept(*(stage.request(ttl_seconds=2.0) for _ in range(8)))
        for work in stage.take_all():
            stage.clock.advance(0.1)
            stage.dispatcher.answered(work, Answer(body={}, prompt_tokens=10, output_tokens=100))
            done += 1
        stage.clock.advance(1.0)
        stage.dispatcher.tick()
    assert done > 200 * 7
    assert len(stage.dropped()) < 200


def test_a_doomed_request_of_a_partition_that_was_given_up_is_left_to_its_new_owner() -> None:
    stage = PredictingStage(limit=DOOMED_IN_FLIGHT_MIN)
    stage.teach(500)
    stage.keep_busy()
    stage.accept(stage.request(ttl_seconds=1.0, tier=Tier.LOW))
    stage.assignments[Tier.LOW].claims.close()
    stage.clock.advance(0.5)
    stage.dispatcher.tick()
    assert stage.dropped() == []
    assert len(stage.dispatcher.lanes) == 0


def test_drops_are_told_to_the_policy_once() -> None:
    """It stretches no target while requests miss their deadlines."""
    told: list[int] = []

    class Listening(FixedLimit):
        def step(self, signals):  # type: ignore[no-untyped-def]
            told.append(signals.dropped)

    stage = PredictingStage()
    stage.teach(500)
    stage.gate.policy = Listening(limit_requests=64)
    stage.keep_busy()
    stage.accept(*(stage.request(ttl_seconds=1.0) for _ in range(3)))
    stage.take_all()
    for _ in range(2):
        stage.clock.advance(1.0)
        stage.dispatcher.tick()
    assert told == [3, 0]


def test_when_all_has_ended_no_tokens_are_in_flight_whatever_became_of_each() -> None:
    stage = PredictingStage()
    stage.teach(100)
    works = [stage.request(max_tokens=100 * number) for number in range(1, 31)]
    stage.accept(*works)
    assert len(stage.take_all()) == 30
    assert stage.gate.tokens_in_flight > 0
    for number, work in enumerate(works):
        stage.clock.advance(0.1)
        if number % 3 == 0:
            stage.dispatcher.answered(work, Answer(body={}, prompt_tokens=7, output_tokens=number))
        else:
            stage.dispatcher.gave_up(work, deadline_passed=number % 3 == 1)
    assert stage.gate.tokens_in_flight == 0


@pytest.mark.parametrize("usage", [None, 0, 1, 10_000_000])
def test_whatever_usage_the_backend_reports_the_answer_is_handed_on(usage: int | None) -> None:
    stage = PredictingStage()
    for _ in range(30):
        stage.accept(stage.request(max_tokens=16))
        (work,) = stage.take_all()
        stage.clock.advance(0.5)
        stage.dispatcher.answered(work, Answer(body={}, prompt_tokens=usage, output_tokens=usage))
    assert [result.status for result in stage.results()] == ["completed"] * 30
