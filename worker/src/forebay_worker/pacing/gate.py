"""The gate of one backend: whether one more request may start, by number, tokens and memory, and why not. Pure.

The policy finds the number of requests. The gate counts the tokens that those in flight still need.
"""

from __future__ import annotations

from collections import deque

from forebay_worker.pacing.external_load import ExternalLoad
from forebay_worker.pacing.kv_cache import KvCache
from forebay_worker.pacing.limitation import Limitation, LimitChange, Pace
from forebay_worker.pacing.metering import AtStart, meter
from forebay_worker.pacing.policy import Ended, PacingPolicy, Signals
from forebay_worker.pacing.service_model import ServiceModel
from forebay_worker.pacing.slots.sharing import SILENT_SECONDS, Others
from forebay_worker.request.work import Work
from forebay_worker.signals.readings import EngineReading, GpuReading

CHANGES_KEPT = 20
AS_OTHERS = "agreed among the workers that share the backend"
MIX_ALPHA = 0.1
"""Recent requests: a mean of the last ten or twenty."""

KV_SHARE_MAX = 0.9
"""Beyond, the longest answers overflow the cache and the engine preempts; `slo_aimd` cuts hard from .95 on."""

IN_FLIGHT_ALPHA = 0.05
"""Over twenty answers, so that requests that wait together are put in order by the same costs."""

LUCK = 0.9
"""Tuned on the pacing benchmark: .8 wastes more on late answers, 1.0 drops more that would be in time."""

PREFILL_GAIN = 0.5
"""An answer corrects half of the estimate's error: the time of its own prefill is an estimate too."""

TELLING_DECODE_SECONDS = 0.5
"""An answer with a longer decoding time shows little about the time of its prefill."""

LOADED_KNEE_SHARE = 0.125
"""From an eighth of the knee on, a third of what a token takes is load. On the pacing benchmark (`mixed`, caps and
noisy hints, 20 seeds) 0, where each step counts as slow by load, has .743 and .786 of the bound in time, an eighth .748
and .787, a half .747 and .788; of the high requests all have .77 and .80."""

OTHERS_BUSY_MIN = 1.0
"""With this many external requests on average, the engine is not idle when this worker is."""


class Gate:
    """Asked before each start, and updated at each start and end. Times are monotonic seconds.

    ``prefill_seconds_max``: the most prefill that may wait in the backend, where its order is fixed. None: only the
    number of requests counts, no tokens.

    ``memory_bytes_max``: the most of this worker's memory that requests in flight may take; None: no bound. The next
    request, however large, starts once there is any room: each has its turn, and one at most exceeds the bound.

    The limit is the whole backend's. Where several workers share it, `shares` holds this worker's share and the
    others'. The engine's metrics may also show external load: requests of no worker. Then the workers' part of the
    knee is the larger of two: the knee less the external load, or their share of all requests in flight or allowed.
    """

    def __init__(
        self, *, policy: PacingPolicy, prefill_seconds_max: float | None, memory_bytes_max: int | None = None
    ) -> None:
        self.policy = policy
        self.memory_bytes_max = memory_bytes_max
        self.model = ServiceModel()
        self.changes: deque[LimitChange] = deque(maxlen=CHANGES_KEPT)
        self.changes_total = 0
        self._kv_cache = KvCache()
        self._external = ExternalLoad()
        self.others = Others()
        """The other workers that share the backend."""
        self._others_dropped = 0
        self.common_limit: float | None = None
        """The limit on which all workers agree, this one included; None while it is alone."""
        self._share: int | None = None
        self._silent_seconds: float | None = None
        self._prefill_seconds_max = prefill_seconds_max
        self.tokens_in_flight = 0
        """Predicted, prompts and outputs together."""
        self._output_in_flight = 0
        self._prompt_tokens_started = 0
        self._prefill_tokens = 0.0
        self._prefill_at = 0.0
        self._in_flight = 0
        self._wanted = 0
        self._busy_since = 0.0
        self._in_flight_mean = 1.0
        self._prompt_tokens_mean, self._output_tokens_mean = 1000.0, 100.0
        self._in_flight_seconds = 0.0
        self._starts: dict[int, AtStart] = {}
        self._in_flight_at = 0.0
        self._last_reading: EngineReading | None = None

    @property
    def kv_tokens(self) -> float | None:
        """Estimated size of the backend's KV cache in tokens; None until its metrics are known."""
        return self._kv_cache.tokens

    @property
    def limit_requests(self) -> int:
        """The limit for all workers on the backend together."""
        return self.policy.limit_requests

    @property
    def share_requests(self) -> int:
        """The number of requests that this worker may have in flight."""
        limit = self.policy.limit_requests
        return limit if self._share is None or self._share > limit else self._share

    @property
    def others_requests(self) -> float:
        """Requests in flight at the backend from others: workers, and external load."""
        return self.others.in_flight + self._external.requests

    def shares(
        self, *, share_requests: int, others: Others, common_limit: float | None, silent_seconds: float | None
    ) -> None:
        """Current sharing of the backend. ``silent_seconds``: how long this worker has not received its own records, if
        it has no share for that reason."""
        self._share, self.others, self.common_limit = share_requests, others, common_limit
        self._external.note_in_flight(self._in_flight + others.in_flight)
        self._silent_seconds = silent_seconds

    @property
    def is_slow_by_load(self) -> bool:
        """Whether an output token takes longer than the policy's target, and would take notably less with fewer
        requests in flight. A step that is slow by itself is no reason to leave the engine empty."""
        target, seconds = self.policy.token_seconds_target, self.model.token_seconds
        if target is None or seconds is None or seconds <= target:
            return False
        return self._in_flight + self.others.in_flight >= LOADED_KNEE_SHARE * self.knee_requests

    def prefill_tokens(self, now: float) -> float:
        """This worker's prompt tokens that wait for prefill in the backend, estimated from the fitted pace and the
        answers. Other workers' prompts have their part of the backend's prefill."""
        pace = self._prefill_token_seconds
        own = self._prefill_tokens
        if own:
            taken_in = (now - self._prefill_at) / pace if pace else own
            self._prefill_tokens = max(0.0, own - taken_in * own / (own + self._prefill_tokens_of_others(pace)))
        self._prefill_at = now
        return self._prefill_tokens

    def prefill_tokens_of_all(self, now: float) -> float:
        """The same with the prompts of other workers: the wait of a new prompt."""
        own = self.prefill_tokens(now)
        pace = self._prefill_token_seconds
        return own + self._prefill_tokens_of_others(pace)

    @property
    def _prefill_token_seconds(self) -> float:
        """Present prefill time of a prompt token that waits in the backend."""
        return self.model.prefill_token_seconds(self._in_flight + self.others_requests)

    def _prefill_tokens_of_others(self, pace: float) -> float:
        """A guess: as many for each of their requests as for each of ours. But they hold back too, so at most one
        prompt and what may wait before it."""
        if not self.others_requests or not self._in_flight:
            return 0.0
        most = self._prompt_tokens_mean
        if pace and self._prefill_seconds_max is not None:
            most += self._prefill_seconds_max / pace
        return min(most, self._prefill_tokens * self.others_requests / self._in_flight)

    def blocked_by(self, now: float, in_flight: int, memory_bytes: int) -> Limitation | None:
        """Why no request may start now. Does not depend on the request: a large one passes once there is any room.

        ``memory_bytes``: memory of those in flight, by `request.memory`.
        """
        share = self.share_requests
        if in_flight >= share:
            if self._silent_seconds is not None:
                return Limitation("coordination", round(self._silent_seconds, 1), SILENT_SECONDS)
            return Limitation("share" if share < self.policy.limit_requests else "limit", in_flight, share)
        if in_flight and self.memory_bytes_max is not None and memory_bytes >= self.memory_bytes_max:
            return Limitation("memory", memory_bytes, self.memory_bytes_max)
        if not in_flight or self._prefill_seconds_max is None:
            return None
        pace = self.model.prefill_token_seconds(in_flight + self.others_requests)
        waiting_seconds = self.prefill_tokens_of_all(now) * pace
        if waiting_seconds >= self._prefill_seconds_max:
            return Limitation("prefill_seconds", round(waiting_seconds, 3), self._prefill_seconds_max)
        if self.kv_tokens is not None:
            # Others' tokens are assumed to be like ours.
            tokens, tokens_max = self.tokens_in_flight / self._own_part(in_flight), KV_SHARE_MAX * self.kv_tokens
            if tokens >= tokens_max:
                return Limitation("kv_tokens", round(tokens), round(tokens_max))
        return None

    def memory_open_to_all(self, reserved: int) -> int | None:
        """The memory that mid and low may fill beyond their guaranteed shares. The rest is kept for high, in the
        proportion of ``reserved`` to all slots. None: there is no bound."""
        if self.memory_bytes_max is None:
            return None
        share = self.share_requests
        return self.memory_bytes_max * (share - reserved) // share if share else self.memory_bytes_max

    def service_seconds(self, work: Work, now: float) -> float:
        """Expected duration of the request if it started now; 0 while the backend is unknown."""
        return self.model.seconds(
            prompt_tokens=work.prompt_tokens + self.prefill_tokens_of_all(now),
            output_tokens=work.output_tokens,
            in_flight=self._in_flight + self.others_requests,
        )

    def service_seconds_min(self, work: Work, now: float) -> float:
        """Duration in a lucky case. A request that misses its deadline even so is not worth starting."""
        prompt_tokens = work.prompt_tokens + self.prefill_tokens_of_all(now)
        return LUCK * self.model.seconds(
            prompt_tokens=prompt_tokens,
            output_tokens=work.output_tokens_min,
            in_flight=self._in_flight + self.others_requests,
        )

    def pace(self, now: float) -> Pace:
        """The parameters of `service_seconds`, to apply to many requests at once."""
        token_seconds = self.model.token_seconds
        if token_seconds is None:
            return Pace(0.0, 0.0, 0.0)
        prompt_token_seconds = self._prefill_token_seconds
        return Pace(prompt_token_seconds * self.prefill_tokens_of_all(now), prompt_token_seconds, token_seconds)

    def pace_min(self, now: float) -> Pace:
        """The parameters of `service_seconds_min`, to apply to many requests at once."""
        pace = self.pace(now)
        return Pace(LUCK * pace.ahead_seconds, LUCK * pace.prompt_token_seconds, LUCK * pace.output_token_seconds)

    def full_cost_seconds(self, prompt_tokens: int, output_tokens: int) -> float:
        """As `cost_seconds`, for a backend at its limit, as it is while requests wait."""
        model = self.model
        of_a_step = model.sequence_seconds + model.step_seconds / self.policy.limit_requests
        return model.prompt_token_seconds * prompt_tokens + of_a_step * output_tokens

    def prefill_seconds(self, now: float) -> float:
        """Remaining prefill time of the prompts that wait in the backend."""
        return self.prefill_tokens_of_all(now) * self._prefill_token_seconds

    @property
    def knee_requests(self) -> float:
        """The workers' part of the engine's knee (`ServiceModel.knee_requests`), for recent requests."""
        knee = self.model.knee_requests(prompt_tokens=self._prompt_tokens_mean, output_tokens=self._output_tokens_mean)
        external, workers = self._external.requests, max(self._in_flight + self.others.in_flight, self._wanted)
        return max(knee - external, knee * workers / (workers + external) if workers else 0.0)

    def cost_seconds(self, prompt_tokens: int, output_tokens: int) -> float:
        """Backend time that a request uses: its prefill, and its share of its decoding steps."""
        model = self.model
        of_a_step = model.sequence_seconds + model.step_seconds / (self._in_flight_mean + self.others_requests)
        return model.prompt_token_seconds * prompt_tokens + of_a_step * output_tokens

    def started(self, work: Work, now: float) -> None:
        """Notes the start of a request."""
        prefilled_tokens = self._prompt_tokens_started - self.prefill_tokens(now)
        self._prefill_tokens += work.prompt_tokens
        self._prompt_tokens_started += work.prompt_tokens
        self.tokens_in_flight += work.prompt_tokens + work.output_tokens
        self._output_in_flight += work.output_tokens
        self._count(now, 1)
        self._starts[id(work)] = AtStart(prefilled_tokens, self._prompt_tokens_started, self._in_flight_seconds)

    def ended(
        self,
        work: Work,
        now: float,
        *,
        in_flight: int,
        prompt_tokens: int | None,
        output_tokens: int | None,
        succeeded: bool,
    ) -> None:
        """Notes the end of a request; ``in_flight`` counts it. Token counts are the backend's, None if it gave none."""
        at_start = self._starts.pop(id(work), AtStart())
        self.tokens_in_flight -= work.prompt_tokens + work.output_tokens
        self._output_in_flight -= work.output_tokens
        self._in_flight_mean += IN_FLIGHT_ALPHA * (in_flight - self._in_flight_mean)
        self._count(now, -1)
        prompt = work.prompt_tokens if prompt_tokens is None else prompt_tokens
        output = work.output_tokens if output_tokens is None else output_tokens
        seconds = now - work.started
        if succeeded:
            self._prompt_tokens_mean += MIX_ALPHA * (prompt - self._prompt_tokens_mean)
            self._output_tokens_mean += MIX_ALPHA * (output - self._output_tokens_mean)
            self._correct_prefill(at_start, now, output)
            self.model.learn(
                service_seconds=seconds,
                prompt_tokens=prompt,
                output_tokens=output,
                ahead_tokens=at_start.prompt_tokens - work.prompt_tokens - at_start.prefilled_tokens,
                prefilled_tokens=self._prompt_tokens_started - self._prefill_tokens - at_start.prefilled_tokens,
                in_flight=at_start.mean_in_flight(self._in_flight_seconds, seconds) if seconds > 0 else in_flight,
            )
        self.policy.observe(
            Ended(
                at=now,
                service_seconds=seconds,
                in_flight=in_flight + self.others.in_flight,
                succeeded=succeeded,
                prompt_tokens=prompt,
                output_tokens=output,
            )
        )

    def _correct_prefill(self, at_start: AtStart, now: float, output_tokens: int) -> None:
        """Backends prefill in order of arrival. An answer shows that its prompt, and all before it, were taken in
        before its first token. Later prompts cannot be further than the pace allows."""
        self.prefill_tokens(now)
        decode_seconds = output_tokens * (self.model.token_seconds or 0.0)
        pace = self.model.prompt_token_seconds
        taken_in_since = (self._own_part(self._in_flight) or 1.0) * decode_seconds / pace if pace else 0.0
        seen = max(0.0, self._prompt_tokens_started - at_start.prompt_tokens - taken_in_since)
        gain = PREFILL_GAIN * min(1.0, TELLING_DECODE_SECONDS / decode_seconds if decode_seconds else 1.0)
        self._prefill_tokens += gain * (seen - self._prefill_tokens)

    def _was_busy(self, since: float) -> bool:
        return (self._in_flight > 0 and self._busy_since <= since) or self.others_requests >= OTHERS_BUSY_MIN

    def _own_part(self, in_flight: int) -> float:
        """This worker's part of the engine's requests, 0 to 1."""
        return in_flight / (in_flight + self.others_requests) if in_flight else 0.0

    def _count(self, now: float, change: int) -> None:
        self._in_flight_seconds += self._in_flight * (now - self._in_flight_at)
        self._in_flight_at = now
        if not self._in_flight:
            self._busy_since = now
        self._in_flight += change
        self._external.note_in_flight(self._in_flight + self.others.in_flight)

    def refused(self, now: float, now_ms: int) -> None:
        """Notes that the backend refused a request because it is overloaded."""
        before = self.limit_requests
        self._note(before, self.policy.refused(now), now_ms)

    def cut_to(self, limit: float, now: float, now_ms: int) -> None:
        """Applies a cut of the backend's limit that another worker made."""
        before = self.limit_requests
        self._note(before, self.policy.cut_to(limit, now), now_ms)

    def step(
        self,
        now: float,
        now_ms: int,
        *,
        in_flight: int,
        waiting: int,
        reserved: int = 0,
        dropped: int,
        engine: EngineReading | None,
        gpu: GpuReading | None,
    ) -> None:
        """Lets the policy decide, once a second. ``in_flight`` and ``waiting``: this worker's."""
        others = self.others
        # A waiting request counts like one in flight. Otherwise workers held up by a long prompt would have no part.
        self._wanted = min(self.limit_requests, in_flight + waiting + others.wanted)
        last = self._last_reading
        self._external.read(
            _requests_of(engine),
            is_new=last is None or (engine is not None and engine.at > last.at),
            in_flight=self._in_flight + others.in_flight,
        )
        # A running answer has put out half of its tokens on average.
        self._kv_cache.learn(
            None if engine is None else engine.kv_used_share,
            tokens_in_flight=self.tokens_in_flight - self._output_in_flight / 2,
            own_part=self._own_part(in_flight),
        )
        last, self._last_reading = self._last_reading, engine
        meter(self.model, last, engine, was_busy=self._was_busy)
        before = self.limit_requests
        if self.common_limit is not None:
            self.policy.adopt(self.common_limit, now)
        cause = self.policy.step(
            Signals(
                now=now,
                in_flight=in_flight + others.in_flight,
                waiting=waiting + max(0, others.wanted - others.in_flight),
                reserved=reserved,
                dropped=dropped + others.dropped_total - self._others_dropped,
                token_seconds=self.model.token_seconds,
                knee_requests=self.knee_requests,
                engine=engine,
                gpu=gpu,
            )
        )
        self._others_dropped = others.dropped_total
        self._note(before, cause or AS_OTHERS, now_ms)

    def _note(self, before: int, cause: str | None, now_ms: int) -> None:
        if cause is not None and before != self.limit_requests:
            self.changes_total += 1
            self.changes.append(LimitChange(at_ms=now_ms, before=before, after=self.limit_requests, cause=cause))


def _requests_of(engine: EngineReading | None) -> float | None:
    if engine is None or engine.running_requests is None:
        return None
    return engine.running_requests + (engine.waiting_requests or 0.0)
