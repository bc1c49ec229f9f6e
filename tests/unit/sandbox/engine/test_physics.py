"""The simulated engine's physics against cases computed by hand, and against what must hold for any history."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_sandbox.engine.physics import Admission, ContinuousBatch, EnginePhysics, StepEvents

# Round figures, so that each case can be followed in one's head.
PHYSICS = EnginePhysics(
    a_seconds=1.0, b_seconds=0.1, c_seconds=0.01, prefill_chunk_tokens=100, max_num_seqs=4, kv_tokens=1000
)


def finish_times(batch: ContinuousBatch, arrivals: list[tuple[float, int, int]]) -> dict[int, float]:
    """Run requests (arrival, prompt, output), keyed by their place in the list, to the end; when each finished."""
    now, finished = 0.0, {}
    pending = list(enumerate(arrivals))
    while pending or batch.running or batch.waiting:
        while pending and pending[0][1][0] <= now:
            key, (_, prompt_tokens, output_tokens) = pending.pop(0)
            assert batch.submit(key, prompt_tokens=prompt_tokens, output_tokens=output_tokens) is Admission.ACCEPTED
        seconds = batch.begin_step()
        if seconds is None:
            now = pending[0][1][0]
            continue
        now += seconds
        for key in batch.end_step().finished:
            finished[key] = now
    return finished


def test_a_request_alone_takes_one_prefill_step_and_one_step_for_each_further_token() -> None:
    # 1 + 50 * 0.01, then four times 1 + 0.1
    assert finish_times(ContinuousBatch(PHYSICS), [(0, 50, 5)]) == {0: pytest.approx(1.5 + 4 * 1.1)}


def test_a_single_output_token_comes_out_of_the_prefill() -> None:
    batch = ContinuousBatch(PHYSICS)
    assert finish_times(batch, [(0, 50, 1)]) == {0: pytest.approx(1.5)}
    assert batch.kv_used_tokens == 0


def test_a_long_prompt_is_prefilled_in_chunks() -> None:
    # 100 + 100 + 50 prompt tokens, then one decode
    assert finish_times(ContinuousBatch(PHYSICS), [(0, 250, 2)]) == {0: pytest.approx(2.0 + 2.0 + 1.5 + 1.1)}


def test_prompts_share_the_chunk_of_a_step() -> None:
    # step 1: 60 + 40 of the second; step 2: the other 20, while the first decodes
    assert finish_times(ContinuousBatch(PHYSICS), [(0, 60, 2), (0, 60, 1)]) == {
        0: pytest.approx(2.0 + 1.3),
        1: pytest.approx(2.0 + 1.3),
    }


def test_every_decoding_sequence_slows_the_step_for_all() -> None:
    # four prefills of 10 in one step, then steps of 1 + 4 * 0.1
    times = finish_times(ContinuousBatch(PHYSICS), [(0, 10, 3)] * 4)
    assert times == dict.fromkeys(range(4), pytest.approx(1.4 + 2 * 1.4))


def test_a_newcomer_joins_the_next_step_and_its_prefill_slows_those_decoding() -> None:
    # 0: prefill ends at 1.1; the newcomer arrives within the second step (to 2.2) and prefills in the third
    times = finish_times(ContinuousBatch(PHYSICS), [(0, 10, 4), (1.5, 50, 1)])
    assert times == {0: pytest.approx(1.1 + 1.1 + 1.6 + 1.1), 1: pytest.approx(1.1 + 1.1 + 1.6)}


def test_beyond_max_num_seqs_requests_wait_their_turn() -> None:
    batch = ContinuousBatch(dataclasses.replace(PHYSICS, max_num_seqs=1, b_seconds=0, c_seconds=0))
    assert finish_times(batch, [(0, 1, 2), (0, 1, 2), (0, 1, 1)]) == {0: 2.0, 1: 4.0, 2: 5.0}


def test_a_full_kv_cache_preempts_the_youngest_and_recomputes_it() -> None:
    # 10 + 10 prompt tokens; both decode until five more each fill the 30. The second, with 6 tokens out, gives way: the
    # first ends in step 1 + 5 + 6. Then 16 tokens are prefilled anew, which puts out the seventh; five more follow.
    physics = dataclasses.replace(PHYSICS, b_seconds=0, c_seconds=0, kv_tokens=30)
    batch = ContinuousBatch(physics)
    assert finish_times(batch, [(0, 10, 12), (0, 10, 12)]) == {0: 12.0, 1: 18.0}
    assert batch.preemptions_total == 1
    assert batch.kv_used_tokens == 0


def test_a_preempted_request_keeps_what_it_put_out() -> None:
    batch = ContinuousBatch(dataclasses.replace(PHYSICS, kv_tokens=30))
    for key in (1, 2):
        batch.submit(key, prompt_tokens=10, output_tokens=12)
    seen: list[int] = [0]
    first_tokens: list[int] = []
    while 2 not in (events := step(batch)).finished:
        seen.append(batch.generated_tokens(2))
        first_tokens += events.first_tokens
    assert batch.preemptions_total == 1
    assert seen == sorted(seen)
    assert first_tokens == [1, 2]


def test_the_queue_is_bounded() -> None:
    batch = ContinuousBatch(dataclasses.replace(PHYSICS, max_num_seqs=2, own_queue_max=3))
    answers = [batch.submit(key, prompt_tokens=1, output_tokens=5) for key in range(6)]
    assert answers == [Admission.ACCEPTED] * 5 + [Admission.QUEUE_FULL]
    assert (batch.running, batch.waiting) == (2, 3)


def test_what_never_fits_the_kv_cache_is_refused() -> None:
    batch = ContinuousBatch(PHYSICS)
    assert batch.submit(1, prompt_tokens=990, output_tokens=11) is Admission.TOO_LONG
    assert batch.submit(1, prompt_tokens=990, output_tokens=10) is Admission.ACCEPTED


def test_an_abort_frees_the_place_at_once_even_within_a_step() -> None:
    batch = ContinuousBatch(dataclasses.replace(PHYSICS, max_num_seqs=1))
    batch.submit(1, prompt_tokens=10, output_tokens=500)
    batch.submit(2, prompt_tokens=10, output_tokens=1)
    step(batch)
    batch.begin_step()
    assert batch.abort(1)
    assert batch.kv_used_tokens == 0
    assert batch.end_step().decode_tokens == 0
    assert not batch.abort(1)
    assert step(batch).finished == (2,)
    assert batch.begin_step() is None


def test_a_factor_speeds_up_every_step() -> None:
    fast = ContinuousBatch(PHYSICS.sped_up(10))
    assert finish_times(fast, [(0, 50, 5)]) == {0: pytest.approx((1.5 + 4 * 1.1) / 10)}


@pytest.mark.parametrize(
    ("field", "value"), [("a_seconds", -1), ("max_num_seqs", 0), ("kv_tokens", 0), ("own_queue_max", -1)]
)
def test_impossible_physics_names_the_field(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        dataclasses.replace(PHYSICS, **{field: value})


def step(batch: ContinuousBatch) -> StepEvents:
    assert batch.begin_step() is not None
    return batch.end_step()


Sizes = st.tuples(st.integers(1, 40), st.integers(1, 40))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.one_of(Sizes, st.just("step"), st.integers(0, 30)), max_size=60),
    st.integers(1, 5),
    st.integers(80, 120),
)
def test_any_history_ends_each_request_once_and_leaves_the_cache_empty(
    history: list[tuple[int, int] | str | int], max_num_seqs: int, kv_tokens: int
) -> None:
    """A pair submits, a number aborts that request, "step" begins and ends one (aborts fall between the two)."""
    physics = dataclasses.replace(
        PHYSICS, max_num_seqs=max_num_seqs, kv_tokens=kv_tokens, prefill_chunk_tokens=16, own_queue_max=1000
    )
    batch = ContinuousBatch(physics)
    outputs: dict[int, int] = {}
    aborted: set[int] = set()
    finished: list[int] = []
    steps = tokens = 0
    in_step = False

    def end() -> None:
        nonlocal tokens
        events = batch.end_step()
        finished.extend(events.finished)
        tokens += events.decode_tokens + len(events.first_tokens)

    for action in history:
        if isinstance(action, tuple):
            key = len(outputs)
            outputs[key] = action[1]
            assert batch.submit(key, prompt_tokens=action[0], output_tokens=action[1]) is Admission.ACCEPTED
        elif isinstance(action, int):
            if batch.abort(action):
                aborted.add(action)
        elif in_step:
            end()
            in_step = False
        else:
            in_step = batch.begin_step() is not None
        assert 0 <= batch.kv_used_tokens <= kv_tokens
        assert batch.running <= max_num_seqs
    if in_step:
        end()
    while batch.begin_step() is not None:
        assert batch.kv_used_tokens <= kv_tokens
        end()
        steps += 1
        assert steps < 10_000
    assert sorted(finished) == sorted(set(outputs) - aborted)
    assert (batch.running, batch.waiting, batch.kv_used_tokens) == (0, 0, 0)
    if not aborted and not batch.preemptions_total:
        assert tokens == sum(outputs.values())
