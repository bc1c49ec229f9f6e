"""Metrics pages of engines: readings, and refusals. The pages are real ones, shortened."""

from __future__ import annotations

import math

import pytest

from forebay_worker.signals.engine_metrics import ENGINES, read_engine_metrics
from forebay_worker.signals.readings import EngineReading, SignalError

VLLM_NEW = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="qwen2.5-72b"} 7.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="qwen2.5-72b"} 3.0
# HELP vllm:num_requests_waiting_by_reason Number of waiting requests by reason.
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="qwen2.5-72b",reason="capacity"} 3.0
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="qwen2.5-72b"} 0.4375
# HELP vllm:num_preemptions_total Cumulative number of preemption from the engine.
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="qwen2.5-72b"} 2.0
# HELP vllm:num_preemptions_created Cumulative number of preemption from the engine.
# TYPE vllm:num_preemptions_created gauge
vllm:num_preemptions_created{engine="0",model_name="qwen2.5-72b"} 1.7356e+09
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="qwen2.5-72b"} 8.128902e+06
# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="qwen2.5-72b"} 7.557572e+06
# HELP vllm:iteration_tokens_total Histogram of number of tokens per engine_step.
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="qwen2.5-72b"} 3.0
"""

VLLM_OLD = """\
vllm:num_requests_running{model_name="llama"} 5.0
vllm:num_requests_swapped{model_name="llama"} 1.0
vllm:num_requests_waiting{model_name="llama"} 0.0
vllm:gpu_cache_usage_perc{model_name="llama"} 0.35
vllm:cpu_cache_usage_perc{model_name="llama"} 0.99
vllm:num_preemptions_total{model_name="llama"} 0.0
vllm:prompt_tokens_total{model_name="llama"} 12.0
vllm:generation_tokens_total{model_name="llama"} 34.0
"""

LLAMA_CPP = """\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed, excluding cached tokens
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 120
# HELP llamacpp:prompt_tokens_cached_total Number of prompt tokens reused from the cache
# TYPE llamacpp:prompt_tokens_cached_total counter
llamacpp:prompt_tokens_cached_total 8
# HELP llamacpp:tokens_predicted_total Number of generation tokens processed
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 340
# HELP llamacpp:requests_processing Number of requests processing
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 2
# HELP llamacpp:requests_deferred Number of requests deferred
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 1
"""

SGLANG = """\
# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total{model_name="meta-llama/Llama-3.1-8B-Instruct"} 8.128902e+06
sglang:generation_tokens_total{model_name="meta-llama/Llama-3.1-8B-Instruct"} 7.557572e+06
sglang:token_usage{model_name="meta-llama/Llama-3.1-8B-Instruct"} 0.28
sglang:num_running_reqs{model_name="meta-llama/Llama-3.1-8B-Instruct"} 162.0
sglang:num_queue_reqs{model_name="meta-llama/Llama-3.1-8B-Instruct"} 2826.0
sglang:num_retracted_requests_total{model_name="meta-llama/Llama-3.1-8B-Instruct"} 4.0
"""

SGLANG_RANKS = """\
sglang:num_running_reqs{model_name="m",tp_rank="0",pp_rank="0",dp_rank="0",priority=""} 10.0
sglang:num_running_reqs{model_name="m",tp_rank="0",pp_rank="0",dp_rank="0",priority="5"} 6.0
sglang:num_running_reqs{model_name="m",tp_rank="1",pp_rank="0",dp_rank="0",priority=""} 10.0
sglang:num_running_reqs{model_name="m",tp_rank="4",pp_rank="0",dp_rank="1",priority=""} 4.0
sglang:token_usage{model_name="m",tp_rank="0",dp_rank="0"} 0.2
sglang:token_usage{model_name="m",tp_rank="4",dp_rank="1"} 0.7
"""

TGI = """\
tgi_batch_current_size 4
tgi_queue_size 9
tgi_request_generated_tokens_bucket{le="+Inf"} 150
tgi_request_generated_tokens_sum 12500
tgi_request_generated_tokens_count 150
tgi_request_input_length_sum 18000
"""

TRITON = """\
nv_inference_request_success{model="ensemble",version="1"} 10
nv_inference_pending_request_count{model="tensorrt_llm",version="1"} 77
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 12
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} 512
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active",version="1"} 15
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 3
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm",version="1"} 0.4875
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="tensorrt_llm",version="1"} 3041
"""

TRITON_PLAIN = 'nv_inference_pending_request_count{model="whisper",version="1"} 6\n'

TRTLLM_SERVE = """\
trtllm_num_requests_running{model_name="llama-8b",engine_type="trtllm"} 3
trtllm_num_requests_waiting{model_name="llama-8b",engine_type="trtllm"} 1
trtllm_kv_cache_utilization{model_name="llama-8b",engine_type="trtllm"} 0.62
"""

XPYD = """\
# TYPE xpyd_sim_tokens_generated_total counter
xpyd_sim_tokens_generated_total 512
xpyd_sim_active_requests 9
xpyd_sim_prefill_queue_depth 2
xpyd_sim_decode_batch_size 6
"""


def reading(
    running: float | None = None,
    waiting: float | None = None,
    kv: float | None = None,
    preemptions: float | None = None,
    prompt: float | None = None,
    output: float | None = None,
) -> EngineReading:
    return EngineReading(
        at=5.0,
        running_requests=running,
        waiting_requests=waiting,
        kv_used_share=kv,
        preemptions_total=preemptions,
        prompt_tokens_total=prompt,
        output_tokens_total=output,
    )


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        pytest.param(VLLM_NEW, reading(7, 3, 0.4375, 2, 8128902, 7557572), id="vllm"),
        pytest.param(VLLM_OLD, reading(5, 0, 0.35, 0, 12, 34), id="vllm-before-0.10"),
        pytest.param(LLAMA_CPP, reading(2, 1, None, None, 120, 340), id="llama.cpp"),
        pytest.param("llamacpp:kv_cache_usage_ratio 0.25\n", reading(kv=0.25), id="llama.cpp-before-2025"),
        pytest.param(SGLANG, reading(162, 2826, 0.28, 4, 8128902, 7557572), id="sglang"),
        pytest.param(SGLANG_RANKS, reading(14, kv=0.7), id="sglang-ranks-and-priorities"),
        pytest.param(TGI, reading(4, 9, prompt=18000, output=12500), id="tgi"),
        pytest.param(TRITON, reading(12, 3, 0.4875), id="triton-tensorrt-llm"),
        pytest.param(TRITON_PLAIN, reading(waiting=6), id="triton"),
        pytest.param(TRTLLM_SERVE, reading(3, 1, 0.62), id="trtllm-serve"),
        pytest.param(XPYD, reading(6, 2, output=512), id="xpyd-sim"),
        pytest.param(TRITON_PLAIN + VLLM_OLD, reading(5, 0, 0.35, 0, 12, 34), id="vllm-inside-triton"),
        pytest.param(VLLM_OLD.replace("\n", "\r\n"), reading(5, 0, 0.35, 0, 12, 34), id="crlf"),
        pytest.param("vllm:num_requests_running 2 1735689600000", reading(2), id="timestamp-and-no-last-newline"),
    ],
)
def test_every_engine_of_the_table_is_read_by_its_own_names(page: str, expected: EngineReading) -> None:
    assert read_engine_metrics(page, at=5.0) == expected


def test_counts_are_summed_over_models_and_of_shares_the_highest_counts() -> None:
    page = """\
vllm:num_requests_running{engine="0",model_name="a"} 7.0
vllm:num_requests_running{engine="1",model_name="a"} 5.0
vllm:num_requests_running{engine="0",model_name="b, \\"quoted\\" }"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="a"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="a"} 0.9
"""
    assert read_engine_metrics(page, at=5.0) == reading(13, kv=0.9)


def test_of_an_old_and_a_new_name_on_one_page_only_the_new_one_counts() -> None:
    page = "vllm:gpu_cache_usage_perc 0.9\nvllm:kv_cache_usage_perc 0.2\n"
    assert read_engine_metrics(page, at=5.0) == reading(kv=0.2)


@pytest.mark.parametrize("value", ["NaN", "-1", "+Inf", "9e18", "1000001", "banana", "", "0x10"])
def test_an_absurd_count_is_refused_and_takes_nothing_else_with_it(value: str) -> None:
    others = "vllm:num_requests_running 3\nvllm:num_requests_waiting 4\n"
    page = f'vllm:num_requests_running{{model_name="a"}} {value}\n{others}'
    assert read_engine_metrics(page, at=5.0) == reading(waiting=4)


@pytest.mark.parametrize(
    ("value", "share"),
    [("1.004", 1.0), ("1", 1.0), ("0", 0.0), ("1.2", None), ("55.0", None), ("-0.1", None), ("nan", None)],
)
def test_a_share_is_of_one(value: str, share: float | None) -> None:
    page = f"vllm:kv_cache_usage_perc {value}\nvllm:num_requests_waiting 4\n"
    assert read_engine_metrics(page, at=5.0) == reading(waiting=4, kv=share)


@pytest.mark.parametrize("total", [2.0**53 * 2, math.nan, -3])
def test_an_absurd_total_is_refused(total: float) -> None:
    page = f"vllm:num_preemptions_total {total}\nvllm:generation_tokens_total {total}\nvllm:num_requests_waiting 4\n"
    assert read_engine_metrics(page, at=5.0) == reading(waiting=4)


@pytest.mark.parametrize(
    "page",
    ["", "<html><body>not found</body></html>", "process_cpu_seconds_total 12.5\n", "\x00\xff{{{", "vllm:other 1\n"],
)
def test_a_page_of_no_known_engine_is_an_error_that_names_the_known_ones(page: str) -> None:
    with pytest.raises(
        SignalError,
        match=r"^no metric of vllm, sglang, llama\.cpp, .* is on the page; FOREBAY_METRICS_PREFIX names a prefix$",
    ):
        read_engine_metrics(page, at=5.0)


def test_a_page_without_one_usable_value_is_an_error() -> None:
    with pytest.raises(SignalError, match=r"^none of the metrics of vllm on the page has a value that can be used$"):
        read_engine_metrics("vllm:num_requests_running NaN\nvllm:kv_cache_usage_perc{ 3\n", at=5.0)


def test_a_page_with_thousands_of_the_engines_own_series_is_refused_before_it_costs_the_loop_seconds() -> None:
    page = "".join(f'vllm:num_requests_running{{model_name="{i}"}} 1\n' for i in range(5000))
    with pytest.raises(SignalError, match=r"^more than 1000 series"):
        read_engine_metrics(page, at=5.0)


def test_no_name_stands_for_two_engines() -> None:
    names = [(engine.name, name) for engine in ENGINES for name in {series.name for series in engine.series()}]
    assert len({name for _, name in names}) == len(names)


def test_names_behind_a_prefix_are_read_with_colons_or_underscores() -> None:
    ray = VLLM_NEW.replace("vllm:", "ray_vllm_")
    assert read_engine_metrics(ray, at=1.0, prefix="ray_") == read_engine_metrics(VLLM_NEW, at=1.0)
    half_renamed = VLLM_NEW.replace("vllm:", "ray_vllm:")
    assert read_engine_metrics(half_renamed, at=1.0, prefix="ray_") == read_engine_metrics(VLLM_NEW, at=1.0)
    with pytest.raises(SignalError, match="FOREBAY_METRICS_PREFIX names a prefix"):
        read_engine_metrics(ray, at=1.0)
    with pytest.raises(SignalError, match="behind the prefix ray_"):
        read_engine_metrics(VLLM_NEW, at=1.0, prefix="ray_")
