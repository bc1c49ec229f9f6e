"""The gate: what it lets start and why not, the account it keeps of tokens in flight, and what it makes of the engine's
counters, also when others use the engine too."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from forebay_worker.bounds import BOUNDS
from forebay_worker.pacing.gate import (
    CHANGES_KEPT,
    KV_SHARE_MAX,
    Gate,
    Limitation,
)
from forebay_worker.pacing.policies.fixed import FixedLimit
from forebay_worker.pacing.policies.slo_aimd import SloAimd
from forebay_worker.pacing.policy import Ended, Signals
from forebay_worker.pacing.slots.sharing import Others
from forebay_worker.request.memory import BODY_COPIES, in_flight_bytes
from forebay_worker.request.work import Work
from forebay_worker.signals.readings import EngineReading
from simulated.ports import NOW_MS
from simulated.works import make_assignment, make_work

ASSIGNMENT = make_assignment()
MIB = 1024 * 1024
STEP, SEQUENCE, PROMPT_TOKEN = 0.010, 0.0002, 0.00005
"""What the gate takes the backend for before it learns."""


def work_of(
    prompt_tokens: int = 1000, output_tokens: int = 100, *, output_tokens_min: int = 50, size_bytes: int | None = None
) -> Work:
    work = make_work(ASSIGNMENT)
    work.size_bytes = work.size_bytes if size_bytes is None else size_bytes
    work.prompt_tokens, work.output_tokens, work.output_tokens_min = prompt_tokens, output_tokens, output_tokens_min
    return work


class Watched(FixedLimit):
    """A fixed limit that keeps what it was told."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit_requests=limit)
        self.ended: list[Ended] = []
        self.signals: list[Signals] = []

    def observe(self, ended: Ended) -> None:
        self.ended.append(ended)

    def step(self, signals: Signals) -> str | None:
        self.signals.append(signals)
        return None


@dataclass
class Stage:
    """A gate over a fixed limit, and the requests that run through it."""

    limit: int = 256
    prefill_seconds_max: float | None = 0.05
    memory_bytes_max: int | None = None
    now: float = 100.0
    running: list[Work] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.policy = Watched(self.limit)
        self.gate = Gate(
            policy=self.policy,
            prefill_seconds_max=self.prefill_seconds_max,
            memory_bytes_max=self.memory_bytes_max,
        )

    def start(self, count: int = 1, work: Work | None = None) -> None:
        for _ in range(count):
            started = work or work_of()
            started.started = self.now
            self.gate.started(started, self.now)
            self.running.append(started)

    def end(
        self,
        number: int = 0,
        *,
        succeeded: bool = True,
        prompt_tokens: int | None = None,
        output_tokens: int | None = None,
    ) -> None:
        in_flight = len(self.running)
        self.gate.ended(
            self.running.pop(number),
            self.now,
            in_flight=in_flight,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            succeeded=succeeded,
        )

    def blocked_by(self) -> Limitation | None:
        return self.gate.blocked_by(self.now, len(self.running), sum(map(in_flight_bytes, self.running)))

    def step(self, engine: EngineReading | None = None, seconds: float = 1.0) -> Signals:
        """A second later the policy decides. Returns what it was told."""
        self.now += seconds
        self.gate.step(
            self.now,
            NOW_MS,
            in_flight=len(self.running),
            waiting=0,
            dropped=0,
            engine=engine,
            gpu=None,
        )
        return self.policy.signals[-1]


@dataclass
class Engine:
    """An engine's own metrics, as time passes: steps of 10 ms and 0.2 ms a sequence, twice as slow if ``slowness`` is
    2. ``others``: what other workers have in flight."""

    slowness: float = 1.0
    others: int = 0
    prompt_tokens: float = 1e6
    output_tokens: float = 1e6

    def second(self, own: int, *, prompt_rate: float = 5000.0) -> None:
        running = own + self.others
        steps = (1 - 0.00006 * self.slowness * prompt_rate) / (self.slowness * (0.010 + 0.0002 * running))
        self.prompt_tokens += prompt_rate
        self.output_tokens += steps * running

    def reading(self, at: float, own: int, **fields: float | None) -> EngineReading:
        known: dict[str, float | None] = {
            "running_requests": own + self.others,
            "waiting_requests": 0,
            "prompt_tokens_total": self.prompt_tokens,
            "output_tokens_total": self.output_tokens,
        }
        return EngineReading(at=at, **(known | fields))


def run_seconds(stage: Stage, engine: Engine, count: int) -> Signals:
    """Seconds in which the engine is always busy with what the stage has in flight."""
    for _ in range(count):
        engine.second(len(stage.running))
        stage.step(engine.reading(stage.now + 1.0, len(stage.running)))
    return stage.policy.signals[-1]


# What may start


def test_at_the_limit_nothing_starts_and_the_gate_says_so() -> None:
    stage = Stage(limit=2, prefill_seconds_max=None)
    stage.start()
    assert stage.blocked_by() is None
    stage.start()
    assert stage.blocked_by() == Limitation("limit", 2, 2)
    stage.end()
    assert stage.blocked_by() is None


def test_while_prompts_wait_for_their_prefill_nothing_starts_until_they_were_taken_in() -> None:
    stage = Stage(prefill_seconds_max=0.05)
    stage.start(work=work_of(prompt_tokens=2000))
    blocked = stage.blocked_by()
    assert blocked is not None
    assert (blocked.signal, blocked.threshold) == ("prefill_seconds", 0.05)
    assert blocked.value == pytest.approx(2000 * (PROMPT_TOKEN + (STEP + SEQUENCE) / 2048), abs=0.001)
    stage.now += blocked.value - 0.05 + 0.001
    assert stage.blocked_by() is None


def test_what_is_larger_than_the_prefill_budget_starts_when_nothing_else_runs() -> None:
    stage = Stage()
    stage.start(work=work_of(prompt_tokens=100_000))
    assert stage.blocked_by() is not None
    stage.end()
    assert stage.blocked_by() is None, "nothing is in flight: whatever it is may start"


def test_a_cache_that_what_runs_will_fill_lets_nothing_start() -> None:
    stage = Stage(prefill_seconds_max=1e9)
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
    stage = Stage(prefill_seconds_max=1e9)
    stage.start(10)
    stage.step(reading)
    assert stage.gate.kv_tokens is None, case
    assert stage.blocked_by() is None, case


def test_the_size_of_the_cache_is_remembered_when_metrics_go_and_is_no_guess_of_one_reading() -> None:
    stage = Stage(prefill_seconds_max=1e9)
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
    stage = Stage(prefill_seconds_max=1e9)
    for _ in range(60):
        stage.step(EngineReading(at=stage.now, running_requests=50, kv_used_share=0.5))
    assert stage.gate.kv_tokens is None
    stage.start(10)
    assert stage.blocked_by() is None


def test_requests_of_unknown_size_are_not_held_back_for_their_tokens() -> None:
    """No predictor: their tokens are 0, and a cache in use must not look like one of no size."""
    stage = Stage()
    stage.start(10, work_of(0, 0, output_tokens_min=0))
    stage.step(EngineReading(at=stage.now, running_requests=10, kv_used_share=0.5))
    assert stage.blocked_by() is None


def test_bodies_in_flight_fill_the_memory_at_what_they_really_take() -> None:
    body = 5 * MIB
    stage = Stage(prefill_seconds_max=None, memory_bytes_max=256 * MIB)
    while stage.blocked_by() is None:
        stage.start(1, work_of(1, 1, size_bytes=body))
    taken = len(stage.running) * (int(BODY_COPIES * body) + BOUNDS.request_overhead_bytes)
    assert stage.blocked_by() == Limitation("memory", taken, 256 * MIB)
    assert len(stage.running) == 24, "22 and a bit at 11 MiB each, and the one that passes the bound"
    stage.end()
    assert stage.blocked_by() is None


def test_one_that_is_larger_than_the_memory_runs_by_itself() -> None:
    stage = Stage(prefill_seconds_max=None, memory_bytes_max=MIB)
    assert stage.blocked_by() is None
    stage.start(1, work_of(1, 1, size_bytes=8 * MIB))
    assert stage.blocked_by() is not None
    stage.end()
    assert stage.blocked_by() is None


def test_small_requests_are_as_many_as_the_limit_says() -> None:
    stage = Stage(limit=256, prefill_seconds_max=None, memory_bytes_max=256 * MIB)
    stage.start(256, work_of(1, 1, size_bytes=2_000))
    assert stage.blocked_by() == Limitation("limit", 256, 256)


@pytest.mark.parametrize(("reserved", "open_bytes"), [(0, 100), (20, 80), (100, 0)])
def test_of_the_memory_as_much_is_kept_for_high_as_of_the_slots(reserved: int, open_bytes: int) -> None:
    assert Stage(limit=100, memory_bytes_max=100).gate.memory_open_to_all(reserved) == open_bytes
    assert Stage(limit=100).gate.memory_open_to_all(reserved) is None


def test_without_a_prefill_budget_only_the_number_counts() -> None:
    stage = Stage(limit=100, prefill_seconds_max=None)
    stage.start(10, work_of(100_000, 200))
    stage.step(EngineReading(at=stage.now, running_requests=10, kv_used_share=0.96))
    stage.start(80, work_of(100_000, 200))
    assert stage.blocked_by() is None


# What it predicts


def test_before_the_first_answer_nothing_is_predicted() -> None:
    stage = Stage()
    stage.start(10)
    assert stage.gate.service_seconds(work_of(), stage.now) == 0
    assert stage.gate.service_seconds_min(work_of(), stage.now) == 0


def test_a_prediction_counts_the_prompts_ahead_and_luck_counts_fewer_tokens() -> None:
    stage, engine = Stage(), Engine()
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
    gate = Stage().gate
    assert gate.cost_seconds(1000, 0) == pytest.approx(1000 * PROMPT_TOKEN)
    assert gate.cost_seconds(0, 100) == pytest.approx(100 * (STEP + SEQUENCE)), "alone at first"


# The account


def test_the_policy_learns_of_each_end_with_the_engines_counts_or_else_the_predicted() -> None:
    stage = Stage()
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
    stage = Stage()
    stage.start(10)
    stage.now += 30.0
    for _ in range(10):
        stage.end(succeeded=False)
    assert stage.gate.model.token_seconds is None
    assert stage.gate.model.step_seconds == STEP


def test_an_answer_to_the_last_one_started_says_that_all_prompts_were_taken_in() -> None:
    """Engines prefill in order of arrival."""
    stage = Stage(prefill_seconds_max=1e9)
    stage.start(20, work_of(10_000, 1))
    before = stage.gate.prefill_tokens(stage.now)
    assert before == 200_000
    stage.now += 0.1
    for _ in range(6):
        stage.end(-1, output_tokens=1)
    assert stage.gate.prefill_tokens(stage.now) < 0.05 * before


sizes = st.one_of(st.integers(0, 5000), st.just(10**9))


class Accounts(RuleBasedStateMachine):
    """Starts, answers, failures and time, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage()

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


# The engine's counters


def test_the_engines_counters_teach_the_model() -> None:
    stage, engine, chance = Stage(), Engine(), random.Random(1)
    stage.start(20)
    for _ in range(300):
        if chance.random() < 0.5 and len(stage.running) < 120:
            stage.start(5)
        elif len(stage.running) > 10:
            stage.end(succeeded=False)
        engine.second(len(stage.running), prompt_rate=chance.uniform(0, 8000))
        stage.step(engine.reading(stage.now + 1.0, len(stage.running)))
    model = stage.gate.model
    assert model.is_metered
    assert model.step_seconds == pytest.approx(0.010, rel=0.10)
    assert model.sequence_seconds == pytest.approx(0.0002, rel=0.10)
    assert model.prompt_token_seconds == pytest.approx(0.00006, rel=0.05)


@pytest.mark.parametrize(
    ("case", "fields"),
    [
        ("started anew: its counters are lower", {"prompt_tokens_total": 0.0, "output_tokens_total": 0.0}),
        ("one of them started anew", {"output_tokens_total": 10.0}),
        ("a counter that jumped", {"output_tokens_total": 1e12}),
    ],
)
def test_a_second_across_a_restart_is_skipped(case: str, fields: dict[str, float | None]) -> None:
    stage, engine = Stage(), Engine()
    stage.start(40)
    run_seconds(stage, engine, 30)
    model = stage.gate.model
    before = (model.step_seconds, model.sequence_seconds, model.prompt_token_seconds, model.token_seconds)
    stage.step(engine.reading(stage.now + 1.0, 40, **fields))
    assert (model.step_seconds, model.sequence_seconds, model.prompt_token_seconds, model.token_seconds) == before, case
    assert model.is_metered, case


@pytest.mark.parametrize(
    ("case", "fields"),
    [
        ("no page", None),
        ("no output tokens on it", {"output_tokens_total": None}),
        ("no prompt tokens on it", {"prompt_tokens_total": None}),
        ("idle when it was read", {"running_requests": 0.0}),
    ],
)
def test_when_the_counters_say_nothing_answers_count_again(case: str, fields: dict[str, float | None] | None) -> None:
    stage, engine = Stage(), Engine()
    stage.start(40)
    run_seconds(stage, engine, 30)
    felt = stage.gate.model.token_seconds
    assert felt is not None
    engine.second(40)
    stage.step(None if fields is None else engine.reading(stage.now + 1.0, 40, **fields))
    assert not stage.gate.model.is_metered, case
    stage.end(output_tokens=100)
    assert stage.gate.model.token_seconds != felt, case
    run_seconds(stage, engine, 2)
    assert stage.gate.model.is_metered, f"{case}: and then it told again"


def test_a_reading_that_was_seen_before_changes_nothing() -> None:
    stage, engine = Stage(), Engine()
    stage.start(40)
    run_seconds(stage, engine, 30)
    felt, at = stage.gate.model.token_seconds, stage.now
    for _ in range(3):
        stage.step(engine.reading(at, 40))
    assert stage.gate.model.token_seconds == felt
    assert stage.gate.model.is_metered


def test_a_second_in_which_nothing_ran_for_a_while_is_not_taken_for_slow() -> None:
    """A burst that ends and another that begins: the engine was busy at both looks, and idle between."""
    stage, engine = Stage(), Engine()
    stage.start(10)
    run_seconds(stage, engine, 30)
    felt = stage.gate.model.token_seconds
    for _ in range(20):
        while stage.running:
            stage.end(succeeded=False)
        stage.now += 0.8
        stage.start(10)
        engine.output_tokens += 150.0
        stage.step(engine.reading(stage.now + 0.2, 10), seconds=0.2)
    assert stage.gate.model.token_seconds == felt


# Others on the same engine


def test_what_others_have_in_flight_is_what_the_engine_has_beyond_our_own() -> None:
    stage, engine = Stage(), Engine(others=60)
    stage.start(20)
    run_seconds(stage, engine, 20)
    assert stage.gate.others_requests == pytest.approx(60, rel=0.01)


def test_a_reading_of_a_second_ago_does_not_take_our_own_for_others() -> None:
    stage, engine = Stage(), Engine()
    stage.start(50)
    run_seconds(stage, engine, 10)
    old = engine.reading(stage.now, 50)
    for _ in range(45):
        stage.end(succeeded=False)
    stage.step(old)
    assert stage.gate.others_requests == 0.0
    stage.step(engine.reading(stage.now, 50))
    assert stage.gate.others_requests == 0.0


@pytest.mark.parametrize(
    ("case", "own", "others", "share"),
    [
        ("alone: all of it", 40, 0, 1.0),
        ("two that ask alike, and fill it: half each", 100, 100, 0.5),
        ("one that asks three times as much as the other", 150, 50, 0.75),
        ("idle beside one who fills it: nothing to give", 0, 200, 0.0),
    ],
)
def test_the_knee_is_the_engines_and_a_worker_gets_its_part(case: str, own: int, others: int, share: float) -> None:
    stage, engine = Stage(), Engine(others=others)
    stage.start(own)
    signals = run_seconds(stage, engine, 60)
    whole = stage.gate.model.knee_requests(prompt_tokens=1000, output_tokens=100)
    assert whole < 100
    assert signals.knee_requests == pytest.approx(share * whole, rel=0.02, abs=0.1), case


def test_below_the_knee_a_worker_may_take_what_the_others_leave() -> None:
    stage, engine = Stage(), Engine(others=20)
    stage.start(5)
    signals = run_seconds(stage, engine, 60)
    whole = stage.gate.model.knee_requests(prompt_tokens=1000, output_tokens=100)
    assert signals.knee_requests == pytest.approx(whole - 20, rel=0.02)


@pytest.mark.parametrize(
    ("case", "own_tokens", "tokens_of_all", "taken_in_share"),
    [
        ("as many prompts of others wait as of ours, and half of what the engine takes in is theirs", 500, 976, 0.51),
        ("but they hold back too: one long prompt of ours is not counted for each of theirs", 400_000, 401_000, 1.0),
    ],
)
def test_prompts_of_others_are_waited_for_too(
    case: str, own_tokens: int, tokens_of_all: int, taken_in_share: float
) -> None:
    stage = Stage()
    stage.start(20, work_of(prompt_tokens=1))
    run_seconds(stage, Engine(others=20), 30)
    before = stage.gate.prefill_tokens(stage.now)
    stage.start(work=work_of(prompt_tokens=own_tokens))
    assert stage.gate.prefill_tokens_of_all(stage.now) == pytest.approx(tokens_of_all, rel=0.05), case
    assert before == pytest.approx(0.0, abs=25)
    seconds = 100 * stage.gate.prefill_seconds(stage.now) / stage.gate.prefill_tokens_of_all(stage.now)
    stage.now += seconds
    left = stage.gate.prefill_tokens(stage.now)
    assert own_tokens - left == pytest.approx(100 * taken_in_share, rel=0.1, abs=25), case


def test_a_worker_with_one_long_prompt_keeps_its_part_of_the_knee_while_requests_wait() -> None:
    stage = Stage()
    stage.start(1, work_of(prompt_tokens=400_000))
    run_seconds(stage, Engine(others=69), 30)
    knees = []
    for waiting in (0, 300):
        stage.gate.step(
            stage.now, NOW_MS, in_flight=1, waiting=waiting, dropped=0, engine=stage.gate._last_reading, gpu=None
        )
        knees.append(stage.gate.knee_requests)
    assert knees[1] > 5 * knees[0]


@pytest.mark.parametrize(
    ("case", "target_seconds", "own", "others", "is_slow_by_load"),
    [
        ("a step of its own is over the target, and little runs", 0.008, 4, 0, False),
        ("what runs makes a third of each step", 0.008, 30, 0, True),
        ("this worker's few among many of others", 0.008, 4, 60, True),
        ("over no target", 0.1, 30, 0, False),
    ],
)
def test_tokens_are_slow_by_load_when_with_fewer_in_flight_they_would_come_notably_sooner(
    case: str, target_seconds: float, own: int, others: int, is_slow_by_load: bool
) -> None:
    stage, engine = Stage(), Engine(others=others)
    stage.gate.policy = SloAimd(limit_min=1, limit_start=64, limit_max=64, token_seconds_target=target_seconds)
    stage.gate.shares(
        share_requests=64, others=Others(workers=1, in_flight=others), common_limit=None, silent_seconds=None
    )
    stage.start(own)
    for _ in range(60):
        engine.second(own, prompt_rate=0.0)
        stage.now += 1.0
        stage.gate.step(
            stage.now, NOW_MS, in_flight=own, waiting=0, dropped=0, engine=engine.reading(stage.now, own), gpu=None
        )
    assert stage.gate.is_slow_by_load is is_slow_by_load, case


def test_two_workers_of_one_engine_settle_at_its_knee_together() -> None:
    """Neither knows of the other, each has plenty to do, and the target alone would let neither grow."""
    gates = [
        Gate(
            policy=SloAimd(limit_min=4, limit_start=start, limit_max=256, token_seconds_target=0.012),
            prefill_seconds_max=None,
        )
        for start in (32, 120)
    ]
    engine = Engine()
    works: list[list[Work]] = [[], []]
    for now in range(1, 400):
        for gate, running in zip(gates, works, strict=True):
            while len(running) < gate.limit_requests:
                running.append(work_of(500, 400))
                gate.started(running[-1], float(now))
            while len(running) > gate.limit_requests:
                gate.ended(
                    running.pop(), float(now), in_flight=1, prompt_tokens=None, output_tokens=None, succeeded=False
                )
        total = sum(map(len, works))
        engine.second(total)
        reading = engine.reading(float(now), total)
        for gate, running in zip(gates, works, strict=True):
            gate.step(now + 0.01, NOW_MS, in_flight=len(running), waiting=9, dropped=1, engine=reading, gpu=None)
    knee = gates[0].model.knee_requests(prompt_tokens=1000, output_tokens=100)
    assert sum(gate.limit_requests for gate in gates) == pytest.approx(knee, rel=0.15)


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
