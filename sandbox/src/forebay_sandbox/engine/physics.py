"""The physics of continuous batching as a step function: what runs in which step, and how long the step takes.

Pure: no I/O, no clock (times are passed in, in seconds on any scale) and no chance. A step costs O(requests that start,
prefill or finish in it), however many decode.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, deque
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePhysics:
    """One step takes `a + b * decoding sequences + c * prompt tokens prefilled in it` seconds.

    The defaults resemble a 70B model on one node; the pacing benchmarks use the same figures.
    """

    a_seconds: float = 0.010
    b_seconds: float = 0.0002
    c_seconds: float = 0.00006
    prefill_chunk_tokens: int = 2048
    """Prompt tokens prefilled in one step, all sequences together."""
    max_num_seqs: int = 256
    kv_tokens: int = 400_000
    """Room for prompt and output tokens of all running sequences; when it is full the youngest is recomputed."""
    own_queue_max: int = 512
    """Requests that may wait for a place in the batch."""

    def __post_init__(self) -> None:
        for name in ("a_seconds", "b_seconds", "c_seconds"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        for name in ("prefill_chunk_tokens", "max_num_seqs", "kv_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.own_queue_max < 0:
            raise ValueError(f"own_queue_max must not be negative, got {self.own_queue_max}")

    def step_seconds(self, *, decoding: int, prefill_tokens: int) -> float:
        return self.a_seconds + self.b_seconds * decoding + self.c_seconds * prefill_tokens

    def sped_up(self, factor: float) -> EnginePhysics:
        """The same engine with every step `factor` times as fast."""
        if factor <= 0:
            raise ValueError(f"the speed factor must be above 0, got {factor}")
        return dataclasses.replace(
            self,
            a_seconds=self.a_seconds / factor,
            b_seconds=self.b_seconds / factor,
            c_seconds=self.c_seconds / factor,
        )


class Admission(Enum):
    """What the engine says to a new request."""

    ACCEPTED = "accepted"
    QUEUE_FULL = "queue_full"
    TOO_LONG = "too_long"
    """Prompt and output could never fit the KV cache, not even alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvents:
    """What one step did; keys are those given to `submit`."""

    first_tokens: tuple[int, ...]
    """Sequences whose first output token came out of this step."""
    finished: tuple[int, ...]
    prefill_tokens: int
    decode_tokens: int
    """Tokens put out by decoding sequences; one that ends its prefill puts out one more."""


class _Sequence:
    __slots__ = ("finish_step", "generated", "key", "output_tokens", "prefill_left", "prefill_tokens", "prompt_tokens")

    def __init__(self, *, key: int, prompt_tokens: int, output_tokens: int) -> None:
        self.key = key
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.generated = 0  # not kept up to date while decoding: finish_step says it
        self.prefill_tokens = prompt_tokens  # more when it is recomputed: what was put out is prefilled too
        self.prefill_left = prompt_tokens
        self.finish_step = _NOT_DECODING


_NOT_DECODING = -1


class ContinuousBatch:
    """One engine: `submit` and `abort` at any time; `begin_step` says how long the step takes, `end_step` what it did.

    First come, first served: nothing overtakes the head of the queue. Prefill is chunked and shares its steps with
    decoding; the step that ends a prefill puts out the first token, each later step one more.
    """

    def __init__(self, physics: EnginePhysics) -> None:
        self.physics = physics
        self.preemptions_total = 0
        self._waiting: OrderedDict[int, _Sequence] = OrderedDict()
        self._running: dict[int, _Sequence] = {}  # in order of arrival: the last is the youngest
        self._prefilling: deque[_Sequence] = deque()  # those of _running not decoding yet, in the same order
        self._decoding = 0
        self._kv_used = 0
        self._step = 0  # steps ended so far
        self._plan: list[tuple[_Sequence, int]] | None = None  # None: between steps
        self._planned_decoding = 0
        self._finishing: dict[int, list[_Sequence]] = {}  # by step; entries of aborted or preempted ones are stale

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def kv_used_tokens(self) -> int:
        return self._kv_used

    def submit(self, key: int, *, prompt_tokens: int, output_tokens: int) -> Admission:
        """Add a request of at least one token each way. `key` must not be in use.

        It joins the step that begins next, never the one under way.
        """
        if prompt_tokens < 1 or output_tokens < 1:
            raise ValueError(f"tokens must be at least 1, got prompt {prompt_tokens} and output {output_tokens}")
        if prompt_tokens + output_tokens > self.physics.kv_tokens:
            return Admission.TOO_LONG
        sequence = _Sequence(key=key, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
        if not self._waiting and self._fits(sequence):
            self._start(sequence)
        elif len(self._waiting) >= self.physics.own_queue_max:
            return Admission.QUEUE_FULL
        else:
            self._waiting[key] = sequence
        return Admission.ACCEPTED

    def abort(self, key: int) -> bool:
        """Forget a request and free its place at once. False: no such request (any more)."""
        sequence = self._running.get(key)
        if sequence is None:
            return self._waiting.pop(key, None) is not None
        self._release(sequence)
        return True

    def generated_tokens(self, key: int) -> int:
        """Output tokens of a running or waiting request so far; 0 for an unknown one."""
        sequence = self._running.get(key) or self._waiting.get(key)
        return 0 if sequence is None else self._generated(sequence)

    def begin_step(self) -> float | None:
        """Plan the next step and return its length in seconds; None when there is nothing to do."""
        assert self._plan is None, "the step before has not ended"
        self._preempt_until_decoding_fits()
        while self._waiting and self._fits(next(iter(self._waiting.values()))):
            self._start(self._waiting.popitem(last=False)[1])
        if not self._running:
            return None
        self._kv_used += self._decoding
        self._planned_decoding = self._decoding
        self._plan = []
        budget = self.physics.prefill_chunk_tokens
        for sequence in self._prefilling:
            chunk = min(budget, sequence.prefill_left)
            self._plan.append((sequence, chunk))
            budget -= chunk
            if budget == 0:
                break
        prefill_tokens = self.physics.prefill_chunk_tokens - budget
        return self.physics.step_seconds(decoding=self._decoding, prefill_tokens=prefill_tokens)

    def end_step(self) -> StepEvents:
        """Carry out the step that was begun."""
        plan, self._plan = self._plan, None
        assert plan is not None, "no step was begun"
        self._step += 1
        first_tokens: list[int] = []
        finished = [sequence for sequence in self._finishing.pop(self._step, ()) if sequence.finish_step == self._step]
        prefill_tokens = 0
        for sequence, chunk in plan:
            prefill_tokens += chunk
            if sequence.key not in self._running:  # aborted meanwhile
                continue
            sequence.prefill_left -= chunk
            if sequence.prefill_left:
                continue
            if not sequence.generated:
                first_tokens.append(sequence.key)
            sequence.generated += 1
            if sequence.generated == sequence.output_tokens:
                finished.append(sequence)
            else:
                self._prefilling.remove(sequence)
                self._decoding += 1
                sequence.finish_step = self._step + sequence.output_tokens - sequence.generated
                self._finishing.setdefault(sequence.finish_step, []).append(sequence)
        for sequence in finished:
            self._release(sequence)
        return StepEvents(
            first_tokens=tuple(first_tokens),
            finished=tuple(sequence.key for sequence in finished),
            prefill_tokens=prefill_tokens,
            decode_tokens=self._planned_decoding,
        )

    def _fits(self, sequence: _Sequence) -> bool:
        """The whole prefill is reserved at the start, so that a prefill under way never runs out of room."""
        return (
            len(self._running) < self.physics.max_num_seqs
            and self._kv_used + self._decoding + sequence.prefill_tokens <= self.physics.kv_tokens
        )

    def _start(self, sequence: _Sequence) -> None:
        self._running[sequence.key] = sequence
        self._prefilling.append(sequence)
        self._kv_used += sequence.prefill_tokens

    def _generated(self, sequence: _Sequence) -> int:
        if sequence.finish_step == _NOT_DECODING:
            return sequence.generated
        return sequence.output_tokens - (sequence.finish_step - self._step)

    def _release(self, sequence: _Sequence) -> None:
        """Take a running sequence out of the batch; what it holds in the KV cache becomes free."""
        del self._running[sequence.key]
        if sequence.finish_step == _NOT_DECODING:
            self._prefilling.remove(sequence)
            self._kv_used -= sequence.prefill_tokens
            return
        generated = self._generated(sequence)
        # The token put out last has no KV entry yet: the step that reads it writes it.
        self._kv_used -= sequence.prompt_tokens + generated - 1
        if self._plan is not None:  # the step under way had reserved room for that
            self._kv_used -= 1
            self._planned_decoding -= 1
        self._decoding -= 1
        sequence.finish_step = _NOT_DECODING
        sequence.generated = generated

    def _preempt_until_decoding_fits(self) -> None:
        while self._kv_used + self._decoding > self.physics.kv_tokens:
            youngest = self._running[next(reversed(self._running))]
            self._release(youngest)
            youngest.prefill_tokens = youngest.prefill_left = youngest.prompt_tokens + youngest.generated
            self._waiting[youngest.key] = youngest
            self._waiting.move_to_end(youngest.key, last=False)
            self.preemptions_total += 1
