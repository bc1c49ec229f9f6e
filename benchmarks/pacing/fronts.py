"""The fronts that Forebay is compared with: nothing at all, and a plain queue before a limit. No clock, no I/O."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from benchmarks.pacing.engine import CONNECTION_LOST, TOO_LONG, Engine, Ledger
from benchmarks.pacing.workloads import Arrival
from forebay_worker.pacing.policy import Ended, PacingPolicy, Signals

REFUSED_PAUSE_SECONDS = 0.5
TOKEN_SECONDS_WEIGHT = 0.05


class NoBuffer:
    """Clients straight at the engine: it queues what it may and refuses the rest, which is lost."""

    waiting = 0
    limit_requests = 0

    def __init__(self, engine: Engine, ledger: Ledger) -> None:
        self._engine = engine
        self._ledger = ledger

    def offer(self, key: int, arrival: Arrival, now: float) -> None:  # noqa: ARG002 the protocol's
        self._engine.submit(key)

    def tick(self, now: float) -> None:
        """Nothing waits here."""

    def step(self, now: float) -> str | None:  # noqa: ARG002 the protocol's
        return None

    def finished(self, key: int, now: float, prompt_tokens: int, output_tokens: int) -> None:
        """The client has it."""

    def refused(self, key: int, now: float, status: int) -> None:
        self._ledger.drop(key, now, f"refused_{status}")


@dataclass(frozen=True, slots=True)
class _Sent:
    at_seconds: float
    arrival: Arrival


class FifoFront:
    """First come, first served, behind a limit; what expired while it waited is dropped, what runs runs to its end.

    A refused request goes back to the head, and nothing is sent for half a second.
    """

    def __init__(self, engine: Engine, ledger: Ledger, *, policy: PacingPolicy, prefill_token_seconds: float) -> None:
        """``prefill_token_seconds``: what the token latency leaves out of the account, for policies that look at it."""
        self._engine = engine
        self._ledger = ledger
        self._policy = policy
        self._prefill_token_seconds = prefill_token_seconds
        self._queue: deque[tuple[int, Arrival]] = deque()
        self._sent: dict[int, _Sent] = {}
        self._paused_until = 0.0
        self._token_seconds: float | None = None

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def limit_requests(self) -> int:
        return self._policy.limit_requests

    def offer(self, key: int, arrival: Arrival, now: float) -> None:
        self._queue.append((key, arrival))
        self._pump(now)

    def tick(self, now: float) -> None:
        if any(arrival.deadline_seconds <= now for _, arrival in self._queue):
            for key, arrival in self._queue:
                if arrival.deadline_seconds <= now:
                    self._ledger.drop(key, now, "deadline_passed_waiting")
            self._queue = deque(each for each in self._queue if each[1].deadline_seconds > now)
        self._pump(now)

    def step(self, now: float) -> str | None:
        cause = self._policy.step(
            Signals(
                now=now,
                in_flight=len(self._sent),
                waiting=len(self._queue),
                token_seconds=self._token_seconds,
                engine=self._engine.reading(now),
                gpu=self._engine.gpu(now),
            )
        )
        self._pump(now)
        return cause

    def finished(self, key: int, now: float, prompt_tokens: int, output_tokens: int) -> None:
        in_flight = len(self._sent)
        took = now - self._sent.pop(key).at_seconds
        token_seconds = max(0.0, took - self._prefill_token_seconds * prompt_tokens) / max(output_tokens, 8)
        if self._token_seconds is None:
            self._token_seconds = token_seconds
        self._token_seconds += TOKEN_SECONDS_WEIGHT * (token_seconds - self._token_seconds)
        self._policy.observe(
            Ended(
                at=now,
                service_seconds=took,
                in_flight=in_flight,
                succeeded=True,
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
            )
        )
        self._pump(now)

    def refused(self, key: int, now: float, status: int) -> None:
        sent = self._sent.pop(key)
        if status == TOO_LONG:
            self._ledger.drop(key, now, f"refused_{status}")
            return
        if status != CONNECTION_LOST:
            self._policy.refused(now)
        self._queue.appendleft((key, sent.arrival))
        self._paused_until = now + REFUSED_PAUSE_SECONDS

    def _pump(self, now: float) -> None:
        while self._queue and now >= self._paused_until and len(self._sent) < self._policy.limit_requests:
            key, arrival = self._queue.popleft()
            if arrival.deadline_seconds <= now:
                self._ledger.drop(key, now, "deadline_passed_waiting")
                continue
            self._sent[key] = _Sent(now, arrival)
            self._engine.submit(key)
