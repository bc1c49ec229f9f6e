"""Reads an engine's /metrics page into an `EngineReading`, by a table of engines and their metric names. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Final

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from forebay_worker.signals.readings import EngineReading, SignalError

REQUESTS_MAX: Final = 1e6
"""No engine holds more requests; more is a wrong unit or a broken counter."""
TOTAL_MAX: Final = 2.0**53
"""From here on a float cannot count by ones."""
LINES_MAX: Final = 1000
"""Parsing them takes 30 ms of the event loop; a hundred models behind one page have as many."""
SHARE_ROUNDING: Final = 0.01
"""A share this little above 1 is 1, rounded; vLLM divides blocks, SGLang tokens."""

_NONE: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Series:
    """A metric's name as on the page (with ``_total`` or ``_sum``), and labels that its series must have."""

    name: str
    labels: Mapping[str, str] = field(default_factory=lambda: _NONE)

    def matches(self, sample: Sample) -> bool:
        return all(sample.labels.get(name) == value for name, value in self.labels.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The metric names of one kind of engine. For each field the first name on the page counts.

    ``ranks``: labels of processes that serve the same requests together and report the same values; they count once.
    ``parts``: labels that split a sum which the page also shows as a whole; the parts do not count.
    """

    name: str
    running: tuple[Series, ...] = ()
    waiting: tuple[Series, ...] = ()
    kv_share: tuple[Series, ...] = ()
    preemptions: tuple[Series, ...] = ()
    prompt_tokens: tuple[Series, ...] = ()
    output_tokens: tuple[Series, ...] = ()
    ranks: frozenset[str] = frozenset()
    parts: frozenset[str] = frozenset()

    def series(self) -> tuple[Series, ...]:
        """All series of this engine."""
        return (
            *(*self.running, *self.waiting, *self.kv_share),
            *(*self.preemptions, *self.prompt_tokens, *self.output_tokens),
        )


ENGINES: Final[tuple[Engine, ...]] = (
    Engine(
        name="vllm",
        running=(Series("vllm:num_requests_running"),),
        waiting=(Series("vllm:num_requests_waiting"),),
        # Renamed in 0.10; versions between show both. Both are shares of 1, in spite of the name.
        kv_share=(Series("vllm:kv_cache_usage_perc"), Series("vllm:gpu_cache_usage_perc")),
        preemptions=(Series("vllm:num_preemptions_total"), Series("vllm:num_preemptions")),
        prompt_tokens=(Series("vllm:prompt_tokens_total"),),
        output_tokens=(Series("vllm:generation_tokens_total"),),
    ),
    Engine(
        name="sglang",
        running=(Series("sglang:num_running_reqs"),),
        waiting=(Series("sglang:num_queue_reqs"),),
        kv_share=(Series("sglang:token_usage"),),
        # Without _total it is a gauge of the last step, which does not show growth.
        preemptions=(Series("sglang:num_retracted_requests_total"), Series("sglang:num_retracted_reqs_total")),
        prompt_tokens=(Series("sglang:prompt_tokens_total"),),
        output_tokens=(Series("sglang:generation_tokens_total"),),
        ranks=frozenset({"tp_rank", "pp_rank", "moe_ep_rank"}),
        parts=frozenset({"priority"}),
    ),
    Engine(
        name="llama.cpp",
        running=(Series("llamacpp:requests_processing"),),
        waiting=(Series("llamacpp:requests_deferred"),),
        kv_share=(Series("llamacpp:kv_cache_usage_ratio"),),  # until 2025
        prompt_tokens=(Series("llamacpp:prompt_tokens_total"),),
        output_tokens=(Series("llamacpp:tokens_predicted_total"),),
    ),
    Engine(
        name="tgi",
        running=(Series("tgi_batch_current_size"),),
        waiting=(Series("tgi_queue_size"),),
        prompt_tokens=(Series("tgi_request_input_length_sum"),),
        output_tokens=(Series("tgi_request_generated_tokens_sum"),),
    ),
    Engine(
        name="trtllm-serve",
        running=(Series("trtllm_num_requests_running"),),
        waiting=(Series("trtllm_num_requests_waiting"),),
        kv_share=(Series("trtllm_kv_cache_utilization"),),
        prompt_tokens=(Series("trtllm_prompt_tokens_total"),),
        output_tokens=(Series("trtllm_generation_tokens_total"),),
    ),
    Engine(
        name="triton",
        running=(Series("nv_trt_llm_request_metrics", {"request_type": "scheduled"}),),
        waiting=(
            Series("nv_trt_llm_request_metrics", {"request_type": "waiting"}),
            Series("nv_inference_pending_request_count"),
        ),
        kv_share=(Series("nv_trt_llm_kv_cache_block_metrics", {"kv_cache_block_type": "fraction"}),),
    ),
    Engine(
        name="xpyd-sim",
        running=(Series("xpyd_sim_decode_batch_size"), Series("xpyd_sim_active_requests")),
        waiting=(Series("xpyd_sim_prefill_queue_depth"),),
        output_tokens=(Series("xpyd_sim_tokens_generated_total"),),
    ),
)
"""If several match a page, the first counts: Triton shows its own metrics beside those of the vLLM inside it."""


def read_engine_metrics(page: str, *, at: float, prefix: str = "") -> EngineReading:
    """Reads a page in Prometheus' text format. ``at``: monotonic seconds.

    ``prefix``: text before the engine's own names, ``ray_`` if Ray exports them: its names have an underscore where the
    engine's have a colon. Counts are summed over models and label sets; of shares the highest counts. A value that is
    not a number, negative or absurd makes its field None. Raises ``SignalError`` if no engine of the table wrote the
    page, or if it has no readable value.
    """
    found, garbled = _samples(page, prefix)
    engine = _engine_of(found.keys() | garbled)
    if engine is None:
        names = ", ".join(engine.name for engine in ENGINES)
        behind = f" behind the prefix {prefix}" if prefix else "; FOREBAY_METRICS_PREFIX names a prefix"
        raise SignalError(f"no metric of {names} is on the page{behind}")
    look = _Look(engine=engine, found=found, garbled=garbled)
    reading = EngineReading(
        at=at,
        running_requests=look.sum(engine.running, REQUESTS_MAX),
        waiting_requests=look.sum(engine.waiting, REQUESTS_MAX),
        kv_used_share=look.highest_share(engine.kv_share),
        preemptions_total=look.sum(engine.preemptions, TOTAL_MAX),
        prompt_tokens_total=look.sum(engine.prompt_tokens, TOTAL_MAX),
        output_tokens_total=look.sum(engine.output_tokens, TOTAL_MAX),
    )
    if reading == EngineReading(at=at):
        raise SignalError(f"none of the metrics of {engine.name} on the page has a value that can be used")
    return reading


def engine_name(page: str, *, prefix: str = "") -> str | None:
    """The engine of the table that wrote the page. Raises ``SignalError`` for one with too many series."""
    found, garbled = _samples(page, prefix)
    engine = _engine_of(found.keys() | garbled)
    return None if engine is None else engine.name


def _engine_of(names: Set[str]) -> Engine | None:
    return next((engine for engine in ENGINES if any(series.name in names for series in engine.series())), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """The content of a page."""

    engine: Engine
    found: Mapping[str, list[Sample]]
    garbled: frozenset[str]

    def sum(self, series: tuple[Series, ...], maximum: float) -> float | None:
        values = self._values(series, maximum)
        return sum(values) if values else None

    def highest_share(self, series: tuple[Series, ...]) -> float | None:
        values = self._values(series, 1 + SHARE_ROUNDING)
        return min(max(values), 1.0) if values else None

    def _values(self, series: tuple[Series, ...], maximum: float) -> list[float]:
        """The values of the first name on the page, each counted once; none if one is absurd."""
        for one in series:
            if one.name in self.garbled:
                return []
            samples = [sample for sample in self.found.get(one.name, ()) if self._counts(sample, one)]
            # The comparison is false for NaN.
            if not all(0 <= sample.value <= maximum for sample in samples):
                return []
            if samples:
                return self._once(samples)
        return []

    def _counts(self, sample: Sample, series: Series) -> bool:
        return series.matches(sample) and not any(sample.labels.get(label) for label in self.engine.parts)

    def _once(self, samples: list[Sample]) -> list[float]:
        by_labels: dict[frozenset[tuple[str, str]], float] = {}
        for sample in samples:
            labels = frozenset(item for item in sample.labels.items() if item[0] not in self.engine.ranks)
            by_labels[labels] = max(sample.value, by_labels.get(labels, 0.0))
        return list(by_labels.values())


def _samples(page: str, prefix: str) -> tuple[dict[str, list[Sample]], frozenset[str]]:
    """The samples of the table's names, and the names on lines that cannot be parsed.

    Only those lines are parsed, one by one. A page of vLLM's has a thousand more, mostly buckets, and the parser takes
    27 microseconds a line. A bad line spoils its own field only. Raises ``SignalError`` if there are too many.
    """
    found: dict[str, list[Sample]] = {}
    garbled = set()
    table_names = _names_behind(prefix)
    for count, match in enumerate(_wanted_lines(prefix).finditer("\n" + page)):
        if count == LINES_MAX:
            raise SignalError(f"more than {LINES_MAX} series of the engine's own metrics are on the page")
        try:
            families = list(text_string_to_metric_families(match[0].strip() + "\n"))
        except (ValueError, IndexError, KeyError):
            garbled.add(table_names[match["name"]])
            continue
        for family in families:
            for sample in family.samples:
                found.setdefault(table_names.get(sample.name, sample.name), []).append(sample)
    return found, frozenset(garbled)


@cache
def _names_behind(prefix: str) -> Mapping[str, str]:
    """The table's names by those on a page whose names begin with ``prefix``."""
    names = {series.name for engine in ENGINES for series in engine.series()}
    if not prefix:
        return {name: name for name in names}
    return {f"{prefix}{said}": name for name in names for said in (name, name.replace(":", "_"))}


@cache
def _wanted_lines(prefix: str) -> re.Pattern[str]:
    names = "|".join(map(re.escape, sorted(_names_behind(prefix))))
    # The newline as a literal, not as ^: the search then jumps from line to line.
    return re.compile(rf"\n(?P<name>{names})(?=[{{ \t]).*")
