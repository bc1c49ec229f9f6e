"""The service model before an engine that works as it thinks: what it finds, how soon, and what it does not believe."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_worker.pacing.service_model import (
    OVERHEAD_SHARE,
    PREFILL_CHUNK_TOKENS,
    PROMPT_TOKEN_SECONDS,
    SEQUENCE_SECONDS,
    STEP_SECONDS,
    ServiceModel,
)

SIZE = {"prompt_tokens": 1000, "output_tokens": 200}


@dataclass(frozen=True)
class Truth:
    """True times of the engine's steps."""

    step: float
    sequence: float
    prompt_token: float

    def slower(self, times: float) -> Truth:
        return Truth(self.step * times, self.sequence * times, self.prompt_token * times)

    def found(self, model: ServiceModel) -> list[float]:
        """The model's times, as shares of the true ones."""
        return [
            model.step_seconds / self.step,
            model.sequence_seconds / self.sequence,
            model.prompt_token_seconds / self.prompt_token,
        ]

    def knee(self) -> float:
        own = self.prompt_token * SIZE["prompt_tokens"] + self.sequence * SIZE["output_tokens"]
        return self.step * SIZE["output_tokens"] * (1 - OVERHEAD_SHARE) / (OVERHEAD_SHARE * own)

    def second(self, model: ServiceModel, *, running: float, prompt_tokens: float, seen: float | None = None) -> None:
        """A second in which the engine always ran this many. ``seen``: its gauge's value."""
        prompt_tokens = min(prompt_tokens, 0.9 / self.prompt_token)
        steps = (1 - self.prompt_token * prompt_tokens) / (self.step + self.sequence * running)
        model.meter(
            seconds=1.0,
            prompt_tokens=prompt_tokens,
            output_tokens=steps * running,
            in_flight=running if seen is None else seen,
        )

    def answer(self, model: ServiceModel, *, in_flight: float, output_tokens: int, prefilled_tokens: float) -> None:
        """An answer during whose decoding this many prompt tokens were taken in, its own among them."""
        seconds = (self.step + self.sequence * in_flight) * output_tokens + self.prompt_token * prefilled_tokens
        model.learn(
            service_seconds=seconds,
            prompt_tokens=1000,
            output_tokens=output_tokens,
            ahead_tokens=0.0,
            prefilled_tokens=prefilled_tokens,
            in_flight=in_flight,
        )

    def seconds(self, model: ServiceModel, count: int, chance: random.Random) -> None:
        """Seconds of a load that varies."""
        for _ in range(count):
            self.second(model, running=chance.uniform(10, 120), prompt_tokens=chance.uniform(0, 9000))

    def answers(self, model: ServiceModel, count: int, chance: random.Random) -> None:
        """Answers of a load that varies."""
        for _ in range(count):
            in_flight = chance.uniform(5, 120)
            self.answer(
                model,
                in_flight=in_flight,
                output_tokens=chance.randint(8, 500),
                prefilled_tokens=1000 + in_flight * chance.uniform(100, 600),
            )


USUAL = Truth(STEP_SECONDS, SEQUENCE_SECONDS, 1.2 * PROMPT_TOKEN_SECONDS)
SMALL_MODEL = Truth(0.004, 0.00002, 0.00001)
LARGE_MODEL = Truth(0.040, 0.0005, 0.0003)
STEEP = Truth(0.004, 0.0006, 0.00006)


@pytest.mark.parametrize("truth", [USUAL, SMALL_MODEL, LARGE_MODEL, STEEP], ids=["usual", "small", "large", "steep"])
@pytest.mark.parametrize("observations", ["seconds", "answers"])
def test_step_sequence_and_prompt_token_are_found(truth: Truth, observations: str) -> None:
    model, chance = ServiceModel(), random.Random(1)
    getattr(truth, observations)(model, 600, chance)
    # Of the small model a sequence takes a two-hundredth of a step: whatever it is, it hardly matters.
    within = {USUAL: 0.03, SMALL_MODEL: 0.20}.get(truth, 0.05)
    assert truth.found(model) == pytest.approx([1, 1, 1], rel=within)
    assert model.knee_requests(**SIZE) == pytest.approx(truth.knee(), rel=within)


@pytest.mark.parametrize(
    ("observations", "count", "within"),
    [("seconds", 120, 0.30), ("seconds", 400, 0.05), ("answers", 100, 0.20), ("answers", 400, 0.03)],
)
def test_an_engine_that_lost_30_per_cent_is_followed(observations: str, count: int, within: float) -> None:
    model, chance = ServiceModel(), random.Random(1)
    getattr(USUAL, observations)(model, 600, chance)
    slower = USUAL.slower(1 / 0.7)
    getattr(slower, observations)(model, count, chance)
    assert slower.found(model) == pytest.approx([1, 1, 1], rel=within)


def test_while_the_engine_gets_slower_the_knee_stays_where_it_is() -> None:
    """All three grow alike, so their relation does not change, and no limit should move for it."""
    model, chance = ServiceModel(), random.Random(1)
    USUAL.seconds(model, 600, chance)
    for _ in range(60):
        USUAL.slower(1 / 0.7).seconds(model, 5, chance)
        assert model.knee_requests(**SIZE) == pytest.approx(USUAL.knee(), rel=0.20)


def test_what_a_token_takes_follows_the_counters_in_3_seconds_and_the_answers_in_20_answers() -> None:
    metered, answered = ServiceModel(), ServiceModel()
    for _ in range(100):
        USUAL.second(metered, running=50, prompt_tokens=0)
        USUAL.answer(answered, in_flight=50, output_tokens=200, prefilled_tokens=1000)
    before = USUAL.step + 50 * USUAL.sequence
    assert metered.token_seconds == pytest.approx(before)
    assert answered.token_seconds == pytest.approx(before, rel=0.02)
    slower = USUAL.slower(2.0)
    for _ in range(3):
        slower.second(metered, running=50, prompt_tokens=0)
    for _ in range(20):
        slower.answer(answered, in_flight=50, output_tokens=200, prefilled_tokens=1000)
    for model in (metered, answered):
        assert model.token_seconds is not None
        assert 1.6 * before < model.token_seconds < 2.05 * before


@pytest.mark.parametrize("truth", [USUAL, LARGE_MODEL, STEEP], ids=["usual", "large", "steep"])
def test_an_hour_of_steady_load_moves_the_knee_by_no_more_than_a_tenth(truth: Truth) -> None:
    """Nothing in it tells step from sequence but the gauge's noise, which tells wrong: of 2 %, as in the benchmark."""
    model, chance = ServiceModel(), random.Random(1)
    truth.seconds(model, 600, chance)
    before = model.knee_requests(**SIZE)
    for second in range(3600):
        running = 60 * (1 + chance.gauss(0, 0.01))
        truth.second(
            model,
            running=running,
            prompt_tokens=min(5000, 0.3 / truth.prompt_token) * chance.uniform(0.8, 1.2),
            seen=running * (1 + chance.gauss(0, 0.02)),
        )
        if second % 30 == 0:
            assert model.knee_requests(**SIZE) == pytest.approx(before, rel=0.10)


def test_hours_of_the_very_same_second_change_nothing() -> None:
    model = ServiceModel()
    USUAL.seconds(model, 600, random.Random(1))
    for _ in range(5_000):
        USUAL.second(model, running=60, prompt_tokens=5000)
    assert USUAL.found(model) == pytest.approx([1, 1, 1], rel=0.01)
    USUAL.slower(2).seconds(model, 600, random.Random(2))
    assert USUAL.slower(2).found(model) == pytest.approx([1, 1, 1], rel=0.05), "and it still learns"


def test_counters_come_before_answers_and_answers_count_again_when_they_are_gone() -> None:
    model, chance = ServiceModel(), random.Random(1)
    USUAL.seconds(model, 300, chance)
    LARGE_MODEL.answers(model, 100, chance)
    assert model.is_metered
    assert USUAL.found(model) == pytest.approx([1, 1, 1], rel=0.03)
    model.unmetered()
    LARGE_MODEL.answers(model, 600, chance)
    assert LARGE_MODEL.found(model) == pytest.approx([1, 1, 1], rel=0.03)


@pytest.mark.parametrize(
    ("case", "seconds", "prompt_tokens", "output_tokens"),
    [
        ("a counter that jumped when another model's series joined it", 1.0, 1e9, 1e9),
        ("a replica that came back behind the same page", 1.0, 1e12, 0.0),
        ("output alone", 1.0, 0.0, 1e8),
    ],
)
def test_a_second_faster_than_any_engine_is_not_believed(
    case: str, seconds: float, prompt_tokens: float, output_tokens: float
) -> None:
    model = ServiceModel()
    USUAL.seconds(model, 600, random.Random(1))
    felt = model.token_seconds
    model.meter(seconds=seconds, prompt_tokens=prompt_tokens, output_tokens=output_tokens, in_flight=50)
    assert USUAL.found(model) == pytest.approx([1, 1, 1], rel=0.01), case
    assert model.token_seconds == felt, case


@pytest.mark.parametrize(
    ("case", "seconds", "prompt_tokens", "output_tokens"),
    [
        ("a cache before the engine", 0.001, 1000, 500),
        ("a backend that counts wrong", 2.0, 1000, 10**9),
        ("the same with its prompt", 2.0, 10**9, 10),
    ],
)
def test_an_answer_faster_than_any_engine_is_not_believed(
    case: str, seconds: float, prompt_tokens: int, output_tokens: int
) -> None:
    model = ServiceModel()
    USUAL.answers(model, 600, random.Random(1))
    felt = model.token_seconds
    model.learn(
        service_seconds=seconds,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        ahead_tokens=0,
        prefilled_tokens=prompt_tokens,
        in_flight=50,
    )
    assert USUAL.found(model) == pytest.approx([1, 1, 1], rel=0.01), case
    assert model.token_seconds == felt, case


tokens = st.one_of(st.just(0), st.integers(0, 10_000), st.just(10**9))
quantity = st.one_of(st.just(0.0), st.floats(0, 1e4), st.just(1e9))
observation = st.tuples(st.booleans(), quantity, tokens, tokens, quantity, quantity, quantity)


@given(st.lists(observation, max_size=60))
def test_whatever_it_is_told_its_figures_are_finite_and_not_negative(
    told: list[tuple[bool, float, int, int, float, float, float]],
) -> None:
    model = ServiceModel()
    for metered, seconds, prompt, output, ahead, prefilled, in_flight in told:
        if metered:
            model.meter(seconds=seconds, prompt_tokens=prompt, output_tokens=output, in_flight=in_flight)
        else:
            model.unmetered()
            model.learn(
                service_seconds=seconds,
                prompt_tokens=prompt,
                output_tokens=output,
                ahead_tokens=ahead,
                prefilled_tokens=prefilled,
                in_flight=in_flight,
            )
        figures = [
            model.step_seconds,
            model.sequence_seconds,
            model.prompt_token_seconds,
            model.token_seconds or 0.0,
            model.prefill_token_seconds(0),
            model.knee_requests(**SIZE),
            model.knee_requests(prompt_tokens=0, output_tokens=0),
            model.seconds(prompt_tokens=1e9, output_tokens=10**9, in_flight=256),
        ]
        assert all(math.isfinite(figure) and figure >= 0 for figure in figures), figures


@pytest.mark.parametrize("absurd_seconds", [0.0, 1e9])
def test_after_absurd_answers_it_finds_back(absurd_seconds: float) -> None:
    model, chance = ServiceModel(), random.Random(1)
    for seconds, tokens_each in itertools.product((absurd_seconds, 1.0), (0, 1, 10**9)):
        for _ in range(20):
            model.learn(
                service_seconds=seconds,
                prompt_tokens=tokens_each,
                output_tokens=tokens_each,
                ahead_tokens=0.0,
                prefilled_tokens=tokens_each,
                in_flight=256,
            )
    USUAL.answers(model, 4000, chance)
    assert USUAL.found(model) == pytest.approx([1, 1, 1], rel=0.05)


def test_nothing_is_predicted_before_the_first_answer() -> None:
    assert ServiceModel().seconds(prompt_tokens=10_000, output_tokens=1000, in_flight=200) == 0.0


def test_a_prediction_is_prefill_beside_the_decoding_of_others_and_then_a_step_for_each_token() -> None:
    model = ServiceModel()
    for _ in range(200):
        USUAL.second(model, running=50, prompt_tokens=0)
    step = model.step_seconds + 50 * model.sequence_seconds
    prefill_token = model.prompt_token_seconds + step / PREFILL_CHUNK_TOKENS
    assert model.prefill_token_seconds(50) == pytest.approx(prefill_token)
    predicted = model.seconds(prompt_tokens=4096, output_tokens=100, in_flight=50)
    assert predicted == pytest.approx(4096 * prefill_token + 100 * step, rel=0.001)


def test_at_the_knee_the_fixed_part_of_a_step_takes_its_share_of_the_time() -> None:
    model = ServiceModel()
    USUAL.seconds(model, 600, random.Random(1))
    knee = model.knee_requests(**SIZE)
    fixed = model.step_seconds * SIZE["output_tokens"]
    own = model.sequence_seconds * SIZE["output_tokens"] + model.prompt_token_seconds * SIZE["prompt_tokens"]
    assert fixed / (fixed + knee * own) == pytest.approx(OVERHEAD_SHARE)
