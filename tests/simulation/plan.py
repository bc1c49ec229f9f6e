"""Plans: the workers, traffic, rates and faults of a history, drawn from a seed. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from forebay_schemas.contract.offsets_metadata import METADATA_BYTES_MAX
from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_worker.bounds import BOUNDS, Bounds
from simulation.backend import Latency
from simulation.broker import FaultRates

MEMORY_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The history of a seed."""

    seed: int
    tiers: list[Tier]
    partitions: int
    uses_consumer_protocol: bool
    has_wrong_clocks: bool
    workers: int
    limit: int
    max_retries: int
    drain_seconds: float
    fault_seconds: float
    requests: int
    gap_rate: float
    latency: Latency
    rates: FaultRates
    bounds: Bounds
    control_share: float
    fetch_seconds_max: float
    scaled_to_zero_at: float | None
    results_partitions: int
    awaited_share: float
    copied_share: float
    faults: list[tuple[float, str]] = field(default_factory=list)


def draw_plan(seed: int) -> Plan:
    """The plan of a seed."""
    random = Random(seed)
    tiers = [tier for tier in TIERS if random.random() < 0.5] or [random.choice(TIERS)]
    fault_seconds = random.uniform(10, 40)
    is_rough = random.random() < 0.6

    def rate(share: float, most: float) -> float:
        return random.random() * most if is_rough and random.random() < share else 0.0

    rates = FaultRates(
        produce_failed=rate(0.3, 0.3),
        produce_failed_but_written=rate(0.3, 0.2),
        produce_slow=rate(0.2, 0.2),
        produce_queue_full=rate(0.2, 0.2),
        commit_failed=rate(0.4, 0.5),
        commit_partly_failed=rate(0.3, 0.5),
        commit_failed_but_written=rate(0.3, 0.3),
        commit_answer_lost=rate(0.2, 0.1),
        commit_slow=rate(0.2, 0.1),
        committed_failed=rate(0.4, 0.6),
        read_raises=rate(0.4, 0.3),
        read_error_event=rate(0.3, 0.3),
        lookup_failed=rate(0.2, 0.3),
    )
    # From a generator of their own, as with controls below.
    more = Random(seed + 7_000_003)
    if more.random() < 0.3:
        rates.last_commit_failed = more.choice((0.3, 0.8))
    if more.random() < 0.12:
        rates.commit_slow, rates.commit_slow_seconds = 0.3, 25.0
        rates.commit_failed = max(rates.commit_failed, 0.3)
    # In three of ten: what the others stood for before there were any is left as it was.
    replies = Random(seed + 19_000_003) if seed % 10 in (1, 5, 9) else None
    is_small = random.random() < 0.5
    lookahead = random.choice((2, 4, 8)) if is_small else BOUNDS.lookahead_records_min
    bounds = Bounds(
        lookahead_records_min=lookahead,
        lookahead_records_max=lookahead if is_small else BOUNDS.lookahead_records_max,
        retry_room_records=random.choice((1, 2, 8)) if is_small else 256,
        parked_records_max=random.choice((2, 4)) if is_small else 64,
        reported_requests_max=random.choice((3, 10)) if is_small else 50_000,
        undelivered_records_max=random.choice((1, 3, 10)) if is_small else 20_000,
        notices_max=random.choice((20, 50)) if is_small else 10_000,
        metadata_bytes_max=random.choice((24, 50, 90)) if random.random() < 0.2 else METADATA_BYTES_MAX,
        result_bytes_max=8_192,
        request_overhead_bytes=Random(seed + 17_000_003).choice(
            (BOUNDS.request_overhead_bytes,) * 3 + (MEMORY_BYTES_MAX // 2,)
        ),
    )
    kinds = ["kill", "stop", "term", "add", "cut", "brokers", "backend", "refuse", "restart", "grow", "truncate"]
    weights = [6, 4, 6, 4, 3, 2, 4, 1, 5, 1, 0.5]
    chosen = random.choices(kinds, weights, k=random.choice((0, 1, 2, 3, 4, 6, 8)))
    return Plan(
        seed=seed,
        tiers=tiers,
        partitions=random.choice((1, 2, 3)),
        uses_consumer_protocol=random.random() < 0.3,
        workers=random.choice((1, 2, 2, 3)),
        limit=random.choice((1, 2, 4, 8)),
        max_retries=random.choice((0, 1, 3, 3)),
        drain_seconds=random.choice((0.0, 3.0, 30.0)),
        fault_seconds=fault_seconds,
        requests=random.randint(10, 60),
        gap_rate=random.choice((0.0, 0.0, 0.1, 0.4)),
        latency=Latency(
            typical=random.choice((0.1, 0.3, 1.0, 2.0)),
            long=random.choice((3.0, 30.0)),
            long_share=random.random() * 0.1,
        ),
        rates=rates,
        bounds=bounds,
        faults=sorted((random.uniform(1, fault_seconds), kind) for kind in chosen),
        has_wrong_clocks=random.random() < 0.3,
        # From a generator of its own: what a seed stood for before there were any is left as it was.
        control_share=Random(seed + 2_000_003).choice((0.0, 0.1, 0.3, 0.8)),
        fetch_seconds_max=Random(seed + 5_000_003).choice((0.0, 0.0, 1.0, 6.0)),
        scaled_to_zero_at=more.uniform(5, fault_seconds) if more.random() < 0.2 else None,
        results_partitions=1 if replies is None else replies.choice((1, 2, 3)),
        awaited_share=0.0 if replies is None else replies.choice((0.0, 0.2, 0.8)),
        copied_share=0.0 if replies is None else replies.choice((0.0, 0.2, 0.6)),
    )
