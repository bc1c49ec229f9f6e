"""The gate: what it lets start and why not, what it predicts, and the account it keeps of tokens in flight."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from forebay_worker.bounds import BOUNDS
from forebay_worker.pacing.gate import CHANGES_KEPT, KV_SHARE_MAX, Gate
from forebay_worker.pacing.limitation import Limitation
from forebay_worker.pacing.policies.slo_aimd import SloAimd
from forebay_worker.request.memory import BODY_COPIES
from forebay_worker.signals.readings import EngineReading
from simulated.gate import MIB, PROMPT_TOKEN, SEQUENCE, STEP, EngineCounters, GateStage, run_seconds, work_of
from simulated.ports import NOW_MS


def test_at_the_limit_nothing_starts_and_the_gate_says_so() -> None:
    stage = GateStage(limit=2, prefill_seconds_max=None)
    stage.start()
    assert stage.blocked_by() is None
    stage.start()
    assert stage.blocked_by() == Limitation("limit", 2, 2)
    stage.end()
    assert stage.blocked_by() is None


def test_while_prompts_wait_for_their_prefill_nothing_starts_until_they_were_taken_in() -> None:
    stage = GateStage(prefill_seconds_max=0.05)
    stage.start(work=work_of(prompt_tokens=2000))
    blocked = stage.blocked_by()
    assert blocked is not None
    assert (blocked.signal, blocked.threshold) == ("prefill_seconds", 0.05)
    assert blocked.value == pytest.approx(2000 * (PROMPT_TOKEN + (STEP + SEQUENCE) / 2048), abs=0.001)
    stage.now += blocked.value - 0.05 + 0.001
    assert stage.blocked_by() is None


def test_what_is_larger_than_the_prefill_budget_starts_when_nothing_else_runs() -> None:
    stage = GateStage()
    stage.start(work=work_of(prompt_tokens=100_000))
    assert stage.blocked_by() is not None
    stage.end()
    assert stage.blocked_by() is None, "nothing is in flight: whatever it is may start"


def test_a_cache_that_what_runs_will_fill_lets_nothing_start() -> None:
    stage = GateStage(prefill_seconds_max=1e9)
    stage.start(10, work_of(1000, 200))
    stage.step(EngineReading(at=stage.now, running_requests=10, kv_used_share=0.5))
    seen = (12_000 - 10 * 100) / 0.5
    assert stage.gate.kv_tokens == pytest.approx(seen)
    assert stage.blocked_by() is None
    stage.start(7, work_of(1000, 200))
    assert stage.blocked_by() == Limitation("kv_tokens", 17 * 1200, round(KV_SHARE_MAX * seen))


@pytest.mark.parametrize(
    ("case", "reading"),
    [
        ("no metrics", None),
        ("it does not say", EngineReading(at=100.0, running_requests=10)),
        ("too empty to tell", EngineReading(at=100.0, running_requests=10, kv_used_share=0.09)),
    ],
)
def test_a_cache_of_unknown_size_blocks_nothing(case: str, reading: EngineReading | None) -> None:
    stage = GateStage(prefill_seconds_max=1e9)
    stage.start(10)
    stage.step(reading)
    assert stage.gate.kv_tokens is None, case
    assert stage.blocked_by() is None, case


def test_the_size_of_the_cache_is_remembered_when_metrics_go_and_is_no_guess_of_one_reading() -> None:
    stage = GateStage(prefill_seconds_max=1e9)
    stage.start(10, work_of(1000, 200))
    for _ in range(20):
        stage.step(EngineReading(at=stage.now, running_requests=10, kv_used_share=0.11))
    known = stage.gate.kv_tokens
    assert known == pytest.approx(100_000)
    stage.step(EngineReading(at=stage.now, running_requests=10, kv_used_share=0.22))
    assert stage.gate.kv_tokens == pytest.approx(95_000)
    stage.step(None)
    assert stage.gate.kv_tokens == pytest.approx(95_000)


def test_an_idle_worker_learns_nothing_of_a_cache_that_others_fill() -> None:
    stage = GateStage(prefill_seconds_max=1e9)
    for _ in range(60):
        stage.step(EngineReading(at=stage.now, running_requests=50, kv_used_share=0.5))
    assert stage.gate.kv_tokens is None
    stage.start(10)
    assert stage.blocked_by() is None


def test_requests_of_unknown_size_are_not_held_back_for_their_tokens() -> None:
    """No predictor: their tokens are 0, and a cache in use must not look like one of no size."""
    stage = GateStage()
    stage.start(10, work_of(0, 0, output_tokens_min=0))
    stage.step(EngineReading(at=stage.now, running_requests=10, kv_used_share=0.5))
    assert stage.blocked_by() is None


def test_bodies_in_flight_fill_the_memory_at_what_they_really_take() -> None:
    body = 5 * MIB
    stage = GateStage(prefill_seconds_max=None, memory_bytes_max=256 * MIB)
    while stage.blocked_by() is None:
        stage.start(1, work_of(1, 1, size_bytes=body))
    taken = len(stage.running) * (int(BODY_COPIES * body) + BOUNDS.request_overhead_bytes)
    assert stage.blocked_by() == Limitation("memory", taken, 256 * MIB)
    assert len(stage.running) == 24, "22 and a bit at 11 MiB each, and the one that passes the bound"
    stage.end()
    assert stage.blocked_by() is None


def test_one_that_is_larger_than_the_memory_runs_by_itself() -> None:
    stage = GateStage(prefill_seconds_max=None, memory_bytes_max=MIB)
    assert stage.blocked_by() is None
    stage.start(1, work_of(1, 1, size_bytes=8 * MIB))
    assert stage.blocked_by() is not None
    stage.end()
    assert stage.blocked_by() is None


def test_small_requests_are_as_many_as_the_limit_says() -> None:
    stage = GateStage(limit=256, prefill_seconds_max=None, memory_bytes_max=256 * MIB)
    stage.start(256, work_of(1, 1, size_bytes=2_000))
    assert stage.blocked_by() == Limitation("limit", 256, 256)


@pytest.mark.parametrize(("reserved", "open_bytes"), [(0, 100), (20, 80), (100, 0)])
def test_of_the_memory_as_much_is_kept_for_high_as_of_the_slots(reserved: int, open_bytes: int) -> None:
    assert GateStage(limit=100, memory_bytes_max=100).gate.memory_open_to_all(reserved) == open_bytes
    assert GateStage(limit=100).gate.memory_open_to_all(reserved) is None


def test_without_a_prefill_budget_only_the_number_counts() -> None:
    stage = GateStage(limit=100, prefill_seconds_max=None)
    stage.start(10, work_of(100_000, 200))
    stage.step(EngineReading(at=stage.now, running_requests=10, kv_used_share=0.96))
    stage.start(80, work_of(100_000, 200))
    assert stage.blocked_by() is None


# What it predicts


def test_before_the_first_answer_nothing_is_predicted() -> None:
    stage = GateStage()
    stage.start(10)
    assert stage.gate.service_seconds(work_of(), stage.now) == 0
    assert stage.gate.service_seconds_min(work_of(), stage.now) == 0


def test_a_prediction_counts_the_prompts_ahead_and_luck_counts_fewer_tokens() -> None:
    stage, engine = GateStage(), EngineCounters()
    stage.start(40)
    run_seconds(stage, engine, 60)
    stage.now += 60.0  # all prompts were taken in
    work = work_of(2000, 300, output_tokens_min=100)
    prompt_token, token = stage.gate.model.prefill_token_seconds(40), stage.gate.model.token_seconds
    assert token is not None
    assert stage.gate.service_seconds(work, stage.now) == pytest.approx(2000 * prompt_token + 300 * token)
    assert stage.gate.service_seconds_min(work, stage.now) == pytest.approx(0.9 * (2000 * prompt_token + 100 * token))
    stage.start(work=work_of(4000))
    later = stage.gate.service_seconds(work, stage.now)
    assert later == pytest.approx(6000 * stage.gate.model.prefill_token_seconds(41) + 300 * token)


def test_the_cost_of_a_request_is_its_prefill_and_its_share_of_the_steps() -> None:
    gate = GateStage().gate
    assert gate.cost_seconds(1000, 0) == pytest.approx(1000 * PROMPT_TOKEN)
    assert gate.cost_seconds(0, 100) == pytest.approx(100 * (STEP + SEQUENCE)), "alone at first"


# The account


def test_the_policy_learns_of_each_end_with_the_engines_counts_or_else_the_predicted() -> None:
    stage = GateStage()
    stage.start(3)
    stage.now += 2.0
    stage.end(prompt_tokens=900, output_tokens=40)
    stage.end()
    stage.end(succeeded=False)
    assert [
        (e.service_seconds, e.in_flight, e.succeeded, e.prompt_tokens, e.output_tokens) for e in stage.policy.ended
    ] == [
        (2.0, 3, True, 900, 40),
        (2.0, 2, True, 1000, 100),
        (2.0, 1, False, 1000, 100),
    ]


def test_failures_teach_the_model_nothing() -> None:
    stage = GateStage()
    stage.start(10)
    stage.now += 30.0
    for _ in range(10):
        stage.end(succeeded=False)
    assert stage.gate.model.token_seconds is None
    assert stage.gate.model.step_seconds == STEP


def test_an_answer_to_the_last_one_started_says_that_all_prompts_were_taken_in() -> None:
    """Engines prefill in order of arrival."""
    stage = GateStage(prefill_seconds_max=1e9)
    stage.start(20, work_of(10_000, 1))
    before = stage.gate.prefill_tokens(stage.now)
    assert before == 200_000
    stage.now += 0.1
    for _ in range(6):
        stage.start(1, work_of(1, 1))
        stage.end(-1, output_tokens=1)
    assert stage.gate.prefill_tokens(stage.now) < 0.05 * before


sizes = st.one_of(st.integers(0, 5000), st.just(10**9))


class Accounts(RuleBasedStateMachine):
    """Starts, answers, failures and time, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = GateStage()

    @rule(prompt=sizes, output=sizes)
    def start(self, prompt: int, output: int) -> None:
        self.stage.start(work=work_of(prompt, output))

    @precondition(lambda self: self.stage.running)
    @rule(data=st.data(), succeeded=st.booleans(), prompt=st.none() | sizes, output=st.none() | sizes)
    def end(self, data: st.DataObject, *, succeeded: bool, prompt: int | None, output: int | None) -> None:
        number = data.draw(st.integers(0, len(self.stage.running) - 1))
        self.stage.end(number, succeeded=succeeded, prompt_tokens=prompt, output_tokens=output)

    @rule(seconds=st.floats(0, 1e4))
    def pass_time(self, seconds: float) -> None:
        self.stage.now += seconds

    @rule(running=st.integers(0, 500), share=st.none() | st.floats(0, 1), prompt=sizes, output=sizes)
    def step(self, running: int, share: float | None, prompt: int, output: int) -> None:
        reading = EngineReading(
            at=self.stage.now,
            running_requests=running,
            kv_used_share=share,
            prompt_tokens_total=prompt,
            output_tokens_total=output,
        )
        self.stage.step(reading)

    @invariant()
    def the_backlog_of_prompts_is_never_negative(self) -> None:
        assert self.stage.gate.prefill_tokens(self.stage.now) >= 0
        assert self.stage.gate.knee_requests >= 0
        assert self.stage.gate.service_seconds_min(work_of(), self.stage.now) >= 0

    @invariant()
    def something_may_start_when_nothing_runs(self) -> None:
        if not self.stage.running:
            assert self.stage.blocked_by() is None

    def teardown(self) -> None:
        while self.stage.running:
            self.stage.end(succeeded=False)
        assert self.stage.gate.tokens_in_flight == 0


TestAccounts = Accounts.TestCase
TestAccounts.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)


# What it says of changes


def test_the_last_changes_are_kept_with_their_causes_and_all_are_counted() -> None:
    gate = Gate(
        policy=SloAimd(limit_min=4, limit_start=32, limit_max=256, token_seconds_target=0.05), prefill_seconds_max=0.05
    )
    gate.refused(1.0, NOW_MS)
    gate.refused(1.5, NOW_MS)
    change = gate.changes[-1]
    assert (change.at_ms, change.before, change.after) == (NOW_MS, 32, 22)
    assert change.cause == "the backend refused a request as too much for it"
    assert gate.changes_total == 1, "the second refusal changed nothing"
    gate.model.token_seconds = 0.02
    for number in range(100):
        gate.step(100.0 + number, NOW_MS, in_flight=gate.limit_requests, waiting=0, dropped=0, engine=None, gpu=None)
    assert len(gate.changes) == CHANGES_KEPT
    assert gate.changes_total > CHANGES_KEPT
