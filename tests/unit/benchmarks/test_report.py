"""The benchmarks' own reckoning: their records are valid and of one size, their figures and verdicts are right."""

from __future__ import annotations

import pytest
from benchmarks.clients import ClientTrips
from benchmarks.dead_letters import DeadLetterScans, Scan
from benchmarks.latency import Latency, Series, percentile
from benchmarks.memory import FLAT_SECONDS, SAMPLE_SECONDS, Memory
from benchmarks.metrics import MetricsCost
from benchmarks.records import ENVELOPE_BYTES, envelopes
from benchmarks.report import Findings
from benchmarks.streams import StreamsCost
from benchmarks.throughput import Run, Throughput

from forebay_schemas.contract.envelope import JsonCodec, tier_for
from forebay_schemas.contract.tiers import Tier

_SAMPLES = int(FLAT_SECONDS / SAMPLE_SECONDS)


def run(per_second: float) -> Run:
    return Run(per_second=per_second, committed_seconds=1.0, cpu_microseconds_per_record=10.0)


def latency(*, raw_seconds: float, worker_seconds: float) -> Latency:
    raw, worker = (Series(blocks=[[seconds]] * 3) for seconds in (raw_seconds, worker_seconds))
    return Latency(raw=raw, worker=worker, client=worker)


def scans(*, raw: float, listed: float, most_mb: float) -> DeadLetterScans:
    def scan(per_second: float, most_mb: float = 100.0) -> Scan:
        return Scan(per_second=per_second, cpu_microseconds_per_letter=10.0, most_mb=most_mb)

    return DeadLetterScans(letters=1_000, raw=[scan(raw)], listed=[scan(listed)], audited=scan(1.0, most_mb))


def metrics(*, counting_microseconds: float, scrape_ms: float) -> MetricsCost:
    return MetricsCost(
        scrapes_ms=[scrape_ms, scrape_ms, 900.0],
        page_bytes=20_000,
        counting_microseconds=counting_microseconds,
        request_microseconds=31.0,
    )


def test_records_are_valid_distinct_and_of_one_size() -> None:
    records = list(envelopes(500))
    assert {len(value) for _, value in records} == {ENVELOPE_BYTES}
    assert len({request_id for request_id, _ in records}) == 500
    for request_id, value in records:
        request = JsonCodec().decode(value)
        assert request.request_id == request_id
        assert tier_for(request) is Tier.MID


def test_records_are_the_same_each_time() -> None:
    assert list(envelopes(10)) == list(envelopes(10))


@pytest.mark.parametrize(("percent", "expected"), [(1, 1.0), (50, 50.0), (99, 99.0), (100, 100.0)])
def test_a_percentile_is_the_nearest_rank(percent: float, expected: float) -> None:
    assert percentile([float(value) for value in range(100, 0, -1)], percent) == expected


def test_one_disturbed_block_does_not_decide_a_percentile() -> None:
    series = Series(blocks=[[0.001] * 100, [0.9] * 100, [0.001] * 100])
    assert series.percentile_ms(99) == 1.0


def test_throughput_compares_the_medians() -> None:
    found = Throughput(raw=[run(100.0), run(10.0), run(120.0)], worker=[run(50.0), run(1.0), run(60.0)])
    assert found.ratio == 0.5


@pytest.mark.parametrize(
    ("samples", "flat"),
    [
        ([150.0] * (_SAMPLES - 1), False),  # not watched for long enough
        ([150.0] * _SAMPLES, True),
        ([10.0, 80.0] + [150.0] * _SAMPLES, True),  # what it grew by at the start is forgiven
        ([100.0 + number for number in range(2 * _SAMPLES)], False),
    ],
)
def test_memory_is_flat_when_it_has_stopped_growing(samples: list[float], flat: bool) -> None:
    assert Memory(samples_mb=samples).flat is flat


def test_kept_promises_are_not_reported_broken() -> None:
    found = Findings(
        throughput=Throughput(raw=[run(100.0)], worker=[run(30.0)]),
        latency=latency(raw_seconds=0.001, worker_seconds=0.002),
        memory=Memory(samples_mb=[199.0] * _SAMPLES),
        dead_letters=scans(raw=100.0, listed=20.0, most_mb=149.0),
        metrics=metrics(counting_microseconds=0.9, scrape_ms=49.0),
        streams=StreamsCost(reader_cpu_share=0.5, worker_cpu_share=0.79, first_pieces_ms=[4.9, 4.9, 90.0]),
        clients=ClientTrips(threaded_ms=[2.0], asyncio_ms=[2.1], full_speed_per_second=3_000),
    )
    assert found.broken_promises() == []


def test_each_broken_promise_is_named() -> None:
    found = Findings(
        throughput=Throughput(raw=[run(100.0)], worker=[run(29.0)]),
        latency=latency(raw_seconds=0.001, worker_seconds=0.0031),
        memory=Memory(samples_mb=[200.0 + number for number in range(_SAMPLES)]),
        dead_letters=scans(raw=100.0, listed=19.0, most_mb=150.0),
        metrics=metrics(counting_microseconds=1.0, scrape_ms=50.0),
        streams=StreamsCost(reader_cpu_share=0.5, worker_cpu_share=0.81, first_pieces_ms=[5.1, 5.1, 1.0]),
        clients=ClientTrips(threaded_ms=[2.0], asyncio_ms=[2.3], full_speed_per_second=2_999),
    )
    names = [sentence.split()[0] for sentence in found.broken_promises()]
    ours = ["throughput_ratio", "latency_p50_extra_ms", "latency_p99_ratio", "rss_mb", "rss_mb"]
    theirs = ["dead_letters_ratio", "dead_letters_rss_mb", "metrics_cost_ratio", "metrics_scrape_ms"]
    theirs += ["asyncio_client_ratio", "asyncio_client_per_second", "streams_cpu_ratio", "first_piece_ms"]
    assert names == [*ours, *theirs]


def test_the_json_object_has_the_fixed_names() -> None:
    found = Findings(
        throughput=Throughput(raw=[run(100.0)], worker=[run(30.0)]),
        latency=latency(raw_seconds=0.001, worker_seconds=0.002),
        memory=Memory(samples_mb=[150.0] * _SAMPLES),
        dead_letters=scans(raw=100.0, listed=30.0, most_mb=100.0),
        metrics=metrics(counting_microseconds=0.5, scrape_ms=5.0),
        streams=StreamsCost(reader_cpu_share=0.5, worker_cpu_share=0.6, first_pieces_ms=[2.0]),
        clients=ClientTrips(threaded_ms=[2.0], asyncio_ms=[2.0], full_speed_per_second=7_000),
    ).as_json()
    assert found.keys() >= {
        "throughput_per_second",
        "raw_per_second",
        "throughput_ratio",
        "latency_p50_extra_ms",
        "latency_p99_ratio",
        "rss_mb",
        "dead_letters_per_second",
        "dead_letters_raw_per_second",
        "dead_letters_ratio",
        "dead_letters_rss_mb",
        "metrics_cost_ratio",
        "metrics_scrape_ms",
        "streams_cpu_ratio",
        "first_piece_ms",
        "asyncio_client_ratio",
        "asyncio_client_per_second",
    }


def test_what_was_not_measured_breaks_no_promise() -> None:
    assert Findings().broken_promises() == []
    assert "rss_mb" not in Findings().as_json()
