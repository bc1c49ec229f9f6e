"""A run's findings as a JSON object and a table, and the promises that they break. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from rich.table import Table

from benchmarks.clients import PER_SECOND, ClientTrips
from benchmarks.controls import ControlStart
from benchmarks.dead_letters import AUDIT_RECORDS, DeadLetterScans
from benchmarks.imports import ImportCost
from benchmarks.latency import Latency
from benchmarks.memory import FLAT_GROWTH_MB_MAX, Memory
from benchmarks.metrics import TENANTS, MetricsCost
from benchmarks.outcomes import OutcomeWaits
from benchmarks.streams import STREAMS, TOKENS_PER_SECOND, StreamsCost
from benchmarks.throughput import Throughput

THROUGHPUT_RATIO_MIN = 0.30
LATENCY_P50_EXTRA_MS_MAX = 1.0
LATENCY_P99_RATIO_MAX = 2.0
RSS_MB_MAX = 200.0
# 50,000 a second where the raw loop counts 250,000, as it does on a quiet machine of two cores.
DEAD_LETTERS_RATIO_MIN = 0.20
DEAD_LETTERS_RSS_MB_MAX = 150.0
METRICS_COST_RATIO_MAX = 0.03
METRICS_SCRAPE_MS_MAX = 50.0
CONTROL_START_SECONDS_MAX = 10.0
OUTCOME_WAIT_RATIO_MAX = 2.0
OUTCOME_GROWTH_MB_MAX = 50.0
STREAMS_CPU_RATIO_MAX = 1.6
FIRST_PIECE_MS_MAX = 5.0
# 0.3 s and 0.45 s of CPU where an empty interpreter takes 0.015 s.
HELP_IMPORT_RATIO_MAX = 20.0
WORKER_IMPORT_RATIO_MAX = 30.0


CLIENT_RATIO_MAX = 1.1
CLIENT_PER_SECOND_MIN = 3_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Measurements of a run. None: it was not asked for."""

    throughput: Throughput | None = None
    latency: Latency | None = None
    memory: Memory | None = None
    dead_letters: DeadLetterScans | None = None
    metrics: MetricsCost | None = None
    controls: ControlStart | None = None
    outcomes: OutcomeWaits | None = None
    streams: StreamsCost | None = None
    clients: ClientTrips | None = None
    imports: ImportCost | None = None

    def broken_promises(self) -> list[str]:
        """One sentence for each promise that was not kept."""
        broken = []
        if (one := self.throughput) and one.ratio < THROUGHPUT_RATIO_MIN:
            broken.append(f"throughput_ratio is {one.ratio:.2f}, promised is at least {THROUGHPUT_RATIO_MIN}")
        if (two := self.latency) and two.p50_extra_ms > LATENCY_P50_EXTRA_MS_MAX:
            broken.append(
                f"latency_p50_extra_ms is {two.p50_extra_ms:.2f}, promised is at most {LATENCY_P50_EXTRA_MS_MAX}"
            )
        if two and two.p99_ratio > LATENCY_P99_RATIO_MAX:
            broken.append(f"latency_p99_ratio is {two.p99_ratio:.2f}, promised is at most {LATENCY_P99_RATIO_MAX}")
        if (three := self.memory) and three.most_mb >= RSS_MB_MAX:
            broken.append(f"rss_mb is {three.most_mb:.0f}, promised is under {RSS_MB_MAX:.0f}")
        if three and not three.flat:
            broken.append(f"rss_mb still grew by {three.growth_mb:.1f}, promised is at most {FLAT_GROWTH_MB_MAX:.0f}")
        if (four := self.dead_letters) and four.ratio < DEAD_LETTERS_RATIO_MIN:
            broken.append(f"dead_letters_ratio is {four.ratio:.2f}, promised is at least {DEAD_LETTERS_RATIO_MIN}")
        if four and four.most_mb >= DEAD_LETTERS_RSS_MB_MAX:
            broken.append(f"dead_letters_rss_mb is {four.most_mb:.0f}, promised is under {DEAD_LETTERS_RSS_MB_MAX:.0f}")
        if (five := self.metrics) and five.cost_ratio >= METRICS_COST_RATIO_MAX:
            broken.append(f"metrics_cost_ratio is {five.cost_ratio:.3f}, promised is under {METRICS_COST_RATIO_MAX}")
        if five and five.scrape_ms >= METRICS_SCRAPE_MS_MAX:
            broken.append(f"metrics_scrape_ms is {five.scrape_ms:.1f}, promised is under {METRICS_SCRAPE_MS_MAX:.0f}")
        if (six := self.controls) and six.extra_seconds >= CONTROL_START_SECONDS_MAX:
            broken.append(
                f"control_start_seconds is {six.extra_seconds:.1f}, promised is under {CONTROL_START_SECONDS_MAX:.0f}"
            )
        if six and six.skipped:
            broken.append(f"{six.skipped} partitions were opened before all cancels were read, promised is none")
        if six and six.most_mb >= RSS_MB_MAX:
            broken.append(f"control_start_rss_mb is {six.most_mb:.0f}, promised is under {RSS_MB_MAX:.0f}")
        if (seven := self.outcomes) and seven.ratio > OUTCOME_WAIT_RATIO_MAX:
            broken.append(f"outcome_wait_ratio is {seven.ratio:.2f}, promised is at most {OUTCOME_WAIT_RATIO_MAX}")
        if seven and seven.grown_mb >= OUTCOME_GROWTH_MB_MAX:
            broken.append(f"outcome_growth_mb is {seven.grown_mb:.1f}, promised is under {OUTCOME_GROWTH_MB_MAX:.0f}")
        if (ten := self.clients) and ten.ratio > CLIENT_RATIO_MAX:
            broken.append(f"asyncio_client_ratio is {ten.ratio:.2f}, promised is at most {CLIENT_RATIO_MAX}")
        if ten and ten.full_speed_per_second < CLIENT_PER_SECOND_MIN:
            broken.append(
                f"asyncio_client_per_second is {ten.full_speed_per_second:,.0f}, promised is {CLIENT_PER_SECOND_MIN:,}"
            )
        if (nine := self.streams) and nine.cpu_ratio > STREAMS_CPU_RATIO_MAX:
            broken.append(f"streams_cpu_ratio is {nine.cpu_ratio:.2f}, promised is at most {STREAMS_CPU_RATIO_MAX}")
        if nine and nine.first_piece_ms > FIRST_PIECE_MS_MAX:
            broken.append(f"first_piece_ms is {nine.first_piece_ms:.1f}, promised is at most {FIRST_PIECE_MS_MAX:.0f}")
        if eight := self.imports:
            for name, ratio, most in (
                ("help_import_ratio", eight.ratio(eight.producer_help), HELP_IMPORT_RATIO_MAX),
                ("worker_import_ratio", eight.ratio(eight.worker_main), WORKER_IMPORT_RATIO_MAX),
            ):
                if ratio > most:
                    broken.append(f"{name} is {ratio:.1f}, promised is at most {most:.0f}")
        return broken

    def as_json(self) -> dict[str, Any]:
        """The object that people script against; the names at its top level are fixed, ``details`` is not."""
        found: dict[str, Any] = {}
        details: dict[str, Any] = {}
        if one := self.throughput:
            found["throughput_per_second"] = round(one.per_second)
            found["raw_per_second"] = round(one.raw_per_second)
            found["throughput_ratio"] = round(one.ratio, 3)
            details["throughput"] = asdict(one)
        if two := self.latency:
            found["latency_p50_extra_ms"] = round(two.p50_extra_ms, 3)
            found["latency_p99_ratio"] = round(two.p99_ratio, 3)
            for way, series in (("raw", two.raw), ("worker", two.worker), ("client", two.client)):
                details[f"latency_{way}_ms"] = {
                    f"p{percent}": round(series.percentile_ms(percent), 3) for percent in (50, 90, 99)
                }
        if three := self.memory:
            found["rss_mb"] = round(three.most_mb, 1)
            details["rss_growth_mb"] = round(three.growth_mb, 1)
        if four := self.dead_letters:
            found["dead_letters_per_second"] = round(four.per_second)
            found["dead_letters_raw_per_second"] = round(four.raw_per_second)
            found["dead_letters_ratio"] = round(four.ratio, 3)
            found["dead_letters_rss_mb"] = round(four.most_mb, 1)
            details["dead_letters"] = asdict(four)
        if five := self.metrics:
            found["metrics_cost_ratio"] = round(five.cost_ratio, 4)
            found["metrics_scrape_ms"] = round(five.scrape_ms, 1)
            details["metrics"] = asdict(five)
        if six := self.controls:
            found["control_start_seconds"] = round(six.extra_seconds, 2)
            found["control_start_rss_mb"] = round(six.most_mb, 1)
            details["controls"] = asdict(six)
        if seven := self.outcomes:
            found["outcome_wait_ratio"] = round(seven.ratio, 3)
            found["outcome_growth_mb"] = round(seven.grown_mb, 1)
            details["outcomes"] = asdict(seven)
        if ten := self.clients:
            found["asyncio_client_ratio"] = round(ten.ratio, 3)
            found["asyncio_client_per_second"] = round(ten.full_speed_per_second)
            details["clients"] = asdict(ten)
        if nine := self.streams:
            found["streams_cpu_ratio"] = round(nine.cpu_ratio, 3)
            found["first_piece_ms"] = round(nine.first_piece_ms, 2)
            details["streams"] = asdict(nine)
        if eight := self.imports:
            found["help_import_ratio"] = round(eight.ratio(eight.producer_help), 1)
            found["worker_import_ratio"] = round(eight.ratio(eight.worker_main), 1)
            details["imports"] = asdict(eight)
        return {**found, "broken_promises": self.broken_promises(), "details": details}

    def as_table(self) -> Table:
        """One line a figure, with what was promised beside it."""
        table = Table("", "raw", "worker", "compared", "promised", title="Forebay beside a raw Kafka loop")
        for column in table.columns[1:]:
            column.justify = "right"
        if one := self.throughput:
            table.add_row(
                "records a second, first result to last",
                f"{one.raw_per_second:,.0f}",
                f"{one.per_second:,.0f}",
                f"{one.ratio:.0%}",
                f"≥ {THROUGHPUT_RATIO_MIN:.0%}",
            )
            for name, field in (
                ("seconds, first result to last commit", "committed_seconds"),
                ("CPU µs a record", "cpu_microseconds_per_record"),
            ):
                raw, worker = (sorted(getattr(run, field) for run in runs) for runs in (one.raw, one.worker))
                table.add_row(name, f"{raw[len(raw) // 2]:.2f}", f"{worker[len(worker) // 2]:.2f}", "", "")
        if two := self.latency:
            for percent, compared, promised in (
                (50, f"{two.p50_extra_ms:+.2f} ms", f"≤ +{LATENCY_P50_EXTRA_MS_MAX:.0f} ms"),
                (99, f"×{two.p99_ratio:.2f}", f"≤ ×{LATENCY_P99_RATIO_MAX:.0f}"),
            ):
                raw_ms, worker_ms = (series.percentile_ms(percent) for series in (two.raw, two.worker))
                name = f"round trip p{percent}, ms"
                table.add_row(name, f"{raw_ms:.2f}", f"{worker_ms:.2f}", compared, promised)
                table.add_row("  with Forebay's client", "", f"{two.client.percentile_ms(percent):.2f}", "", "")
        if three := self.memory:
            grew = f"{three.growth_mb:+.1f} MB at last"
            table.add_row("resident MB, records waiting", "", f"{three.most_mb:.0f}", grew, "< 200, flat")
        if four := self.dead_letters:
            table.add_row(
                f"dead letters listed a second, of {four.letters:,}",
                f"{four.raw_per_second:,.0f}",
                f"{four.per_second:,.0f}",
                f"{four.ratio:.0%}",
                f"≥ {DEAD_LETTERS_RATIO_MIN:.0%}",
            )
            raw, listed = (
                sorted(scan.cpu_microseconds_per_letter for scan in scans) for scans in (four.raw, four.listed)
            )
            table.add_row("CPU µs a letter", f"{raw[len(raw) // 2]:.2f}", f"{listed[len(listed) // 2]:.2f}", "", "")
            name = f"resident MB, {AUDIT_RECORDS:,} audit records"
            table.add_row(name, "", f"{four.most_mb:.0f}", "", f"< {DEAD_LETTERS_RSS_MB_MAX:.0f}")
        if five := self.metrics:
            counting = f"{five.counting_microseconds:.2f}"
            promised = f"< {METRICS_COST_RATIO_MAX:.0%}"
            table.add_row("µs of counting a request", "", counting, f"{five.cost_ratio:.1%}", promised)
            name = f"ms a page of metrics, {TENANTS} tenants"
            table.add_row(name, "", f"{five.scrape_ms:.1f}", "", f"< {METRICS_SCRAPE_MS_MAX:.0f}")
        if six := self.controls:
            name = f"seconds a start takes longer, {six.cancels:,} cancels"
            promised = f"< {CONTROL_START_SECONDS_MAX:.0f}"
            table.add_row(name, f"{six.without:.1f}", f"{six.with_cancels:.1f}", f"{six.extra_seconds:+.1f}", promised)
            table.add_row("  resident MB meanwhile", "", f"{six.most_mb:.0f}", "", f"< {RSS_MB_MAX:.0f}")
        if seven := self.outcomes:
            fresh, later = sorted(seven.fresh_ms), sorted(seven.later_ms)
            table.add_row(
                f"ms to an outcome, after {seven.theirs:,} of others",
                f"{fresh[len(fresh) // 2]:.1f}",
                f"{later[len(later) // 2]:.1f}",
                f"×{seven.ratio:.2f}",
                f"≤ ×{OUTCOME_WAIT_RATIO_MAX:.0f}",
            )
            table.add_row("  resident MB more", "", f"{seven.grown_mb:+.1f}", "", f"< {OUTCOME_GROWTH_MB_MAX:.0f}")
        if ten := self.clients:
            table.add_row(
                f"ms to an outcome at {PER_SECOND}/s, asyncio beside threads",
                f"{median(ten.threaded_ms):.1f}",
                f"{median(ten.asyncio_ms):.1f}",
                f"×{ten.ratio:.2f}",
                f"≤ ×{CLIENT_RATIO_MAX}",
            )
            table.add_row(
                "  outcomes a second, at full speed",
                "",
                f"{ten.full_speed_per_second:,.0f}",
                "",
                f"≥ {CLIENT_PER_SECOND_MIN:,}",
            )
        if nine := self.streams:
            table.add_row(
                f"CPU ms a second, {STREAMS} streams of {TOKENS_PER_SECOND} tokens/s",
                f"{1000 * nine.reader_cpu_share:.0f}",
                f"{1000 * nine.worker_cpu_share:.0f}",
                f"×{nine.cpu_ratio:.2f}",
                f"≤ ×{STREAMS_CPU_RATIO_MAX}",
            )
            table.add_row(
                "ms to the first piece, p50", "", f"{nine.first_piece_ms:.1f}", "", f"≤ {FIRST_PIECE_MS_MAX:.0f}"
            )
        if eight := self.imports:
            empty = f"{median(eight.empty):.3f}"
            for name, seconds, promised in (
                ("CPU seconds of forebay --help", eight.producer_help, f"≤ ×{HELP_IMPORT_RATIO_MAX:.0f}"),
                ("CPU seconds until forebay-worker's main", eight.worker_main, f"≤ ×{WORKER_IMPORT_RATIO_MAX:.0f}"),
                ("  until all that run uses is imported", eight.worker_run, ""),
            ):
                table.add_row(name, empty, f"{median(seconds):.3f}", f"×{eight.ratio(seconds):.1f}", promised)
        return table
