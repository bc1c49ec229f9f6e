"""The simulated engine's metrics under vLLM's names, in Prometheus' text format. No I/O."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prometheus_client import Metric

    from forebay_sandbox.engine.physics import ContinuousBatch

# The bucket bounds are vLLM's, so that its dashboards' quantiles mean the same here.
_FIRST_TOKEN_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TOKEN_BOUNDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)
_REQUEST_BOUNDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
FINISH_REASONS = ("stop", "length", "abort", "error")


class _Histogram:
    """Counts per bucket. Unlike prometheus_client's it takes many equal samples in one call: one per step suffices."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def family(self, name: str, documentation: str, *, model: str) -> HistogramMetricFamily:
        cumulative: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip([*map(str, self._bounds), "+Inf"], self._counts, strict=True):
            total += count
            cumulative.append((bound, total))
        family = HistogramMetricFamily(name, documentation, labels=["model_name"])
        family.add_metric([model], cumulative, sum_value=self._sum)
        return family


class EngineMetrics(Collector):
    """The counters of the step loop and their text form. They never decrease, as a scraper expects."""

    def __init__(self, *, batch: ContinuousBatch, model: str) -> None:
        self._batch = batch
        self._model = model
        self.prompt_tokens_total = 0
        self.generation_tokens_total = 0
        self.busy_seconds_total = 0.0
        self.finished_total = dict.fromkeys(FINISH_REASONS, 0)
        self.first_token_seconds = _Histogram(_FIRST_TOKEN_BOUNDS)
        self.token_seconds = _Histogram(_TOKEN_BOUNDS)
        self.request_seconds = _Histogram(_REQUEST_BOUNDS)
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        batch = self._batch
        kv_share = batch.kv_used_tokens / batch.physics.kv_tokens
        yield self._gauge("num_requests_running", "Requests in the batch.", batch.running)
        yield self._gauge("num_requests_waiting", "Requests waiting for a place in the batch.", batch.waiting)
        yield self._gauge("kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1.", kv_share)
        yield self._gauge("gpu_cache_usage_perc", "The same, by the name vLLM used before 0.10.", kv_share)
        yield self._counter("num_preemptions", "Requests put back to be recomputed.", batch.preemptions_total)
        yield self._counter("prompt_tokens", "Prompt tokens prefilled.", self.prompt_tokens_total)
        yield self._counter("generation_tokens", "Tokens put out.", self.generation_tokens_total)
        # Not vLLM's: the simulated engine has no GPU, and this share of time stands for a GPU's utilisation.
        busy = CounterMetricFamily("sandbox:busy_seconds", "Seconds spent in steps.", labels=["model_name"])
        busy.add_metric([self._model], self.busy_seconds_total)
        yield busy
        finished = CounterMetricFamily(
            "vllm:request_success", "Requests finished, by reason.", labels=["model_name", "finished_reason"]
        )
        for reason, count in self.finished_total.items():
            finished.add_metric([self._model, reason], count)
        yield finished
        for name, documentation, histogram in (
            ("time_to_first_token_seconds", "From arrival to the first token.", self.first_token_seconds),
            ("inter_token_latency_seconds", "Between two tokens of a request.", self.token_seconds),
            ("time_per_output_token_seconds", "The same, by the name vLLM used before.", self.token_seconds),
            ("e2e_request_latency_seconds", "From arrival to the last token.", self.request_seconds),
        ):
            yield histogram.family(f"vllm:{name}", documentation, model=self._model)

    def _gauge(self, name: str, documentation: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(f"vllm:{name}", documentation, labels=["model_name"])
        family.add_metric([self._model], value)
        return family

    def _counter(self, name: str, documentation: str, value: float) -> CounterMetricFamily:
        family = CounterMetricFamily(f"vllm:{name}", documentation, labels=["model_name"])
        family.add_metric([self._model], value)
        return family
