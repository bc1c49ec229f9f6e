"""The demo's bookkeeping: ledger, figures, promises, series and plot."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from forebay_sandbox.demo.ledger import DirectCall, DirectOutcome, Ledger, executed_more_than_once, series_of
from forebay_sandbox.demo.picture import draw
from forebay_sandbox.demo.report import Figures, Percentiles, as_json, broken_promises, figures_of
from forebay_sandbox.demo.samples import Sample
from forebay_sandbox.demo.traffic import Arrival
from forebay_sandbox.demo.view import Board, bars, live_line, live_table, plot, report_table
from forebay_schemas.contract.reasons import Status
from forebay_schemas.contract.results import Result
from forebay_schemas.contract.tiers import Tier

STARTED_WALL_MS = 1_700_000_000_000


def arrival(number: int, *, at: float, tier: Tier = Tier.HIGH) -> Arrival:
    return Arrival(number=number, at_seconds=at, tier=tier, prompt_tokens=10, output_tokens=10)


def result(number: int, *, ended: float, service: float | None = 1.0, status: Status = Status.COMPLETED) -> Result:
    return Result(
        request_id=str(number),
        status=status,
        reason=status,
        queue_seconds=0.5,
        service_seconds=service,
        finished_at=STARTED_WALL_MS + round(ended * 1000),
    )


def ledger_of(*arrivals: Arrival) -> Ledger:
    ledger = Ledger(started_wall_ms=STARTED_WALL_MS)
    for one in arrivals:
        ledger.accept(str(one.number), one, at_seconds=one.at_seconds)
    return ledger


def figures_with(ledger: Ledger, *, offered: int, duplicated: int = 0) -> Figures:
    return figures_of(offered=offered, passages=ledger.passages(), direct=[], duplicated=duplicated)


def test_percentiles_are_values_that_occurred() -> None:
    assert Percentiles.of([]) is None
    assert Percentiles.of([3.0]) == Percentiles(p50=3.0, p95=3.0, p99=3.0)
    assert Percentiles.of([float(n) for n in range(1, 101)]) == Percentiles(p50=50.0, p95=95.0, p99=99.0)


def test_accepted_without_an_outcome_is_lost() -> None:
    ledger = ledger_of(arrival(1, at=0), arrival(2, at=1))
    ledger.end(result(1, ended=2), at_seconds=2)
    assert ledger.open_in_all() == 1
    figures = figures_with(ledger, offered=2)
    assert figures.total("lost") == 1
    assert any("lost" in sentence for sentence in broken_promises(figures))


def test_only_the_first_outcome_of_a_request_counts() -> None:
    ledger = ledger_of(arrival(1, at=0))
    ledger.end(result(1, ended=2), at_seconds=2)
    ledger.end(result(1, ended=3, status=Status.FAILED), at_seconds=3)
    figures = figures_with(ledger, offered=1)
    assert (figures.total("completed"), figures.total("failed")) == (1, 0)


def test_a_result_that_overtakes_the_delivery_report_counts() -> None:
    ledger = Ledger(started_wall_ms=STARTED_WALL_MS)
    ledger.end(result(1, ended=2), at_seconds=2)
    ledger.accept("1", arrival(1, at=0.5), at_seconds=2.5)
    assert ledger.open_in_all() == 0
    assert ledger.passages()[0].ended_seconds == 2


def test_results_of_others_do_not_count() -> None:
    ledger = ledger_of(arrival(1, at=0))
    ledger.end(result(99, ended=2), at_seconds=2)
    assert ledger.open_in_all() == 1
    assert ledger.ids() == {"1"}


def test_end_to_end_counts_from_when_a_request_was_due() -> None:
    ledger = Ledger(started_wall_ms=STARTED_WALL_MS)
    ledger.accept("1", arrival(1, at=1.0), at_seconds=1.8)
    ledger.end(result(1, ended=3), at_seconds=3.25)
    figures = figures_with(ledger, offered=1)
    assert figures.tiers[Tier.HIGH].end_to_end == Percentiles(p50=2.25, p95=2.25, p99=2.25)
    assert figures.tiers[Tier.HIGH].queue == Percentiles(p50=0.5, p95=0.5, p99=0.5)
    assert figures.tiers[Tier.LOW].end_to_end is None


def test_requests_the_broker_did_not_take_break_a_promise() -> None:
    ledger = ledger_of(arrival(1, at=0))
    ledger.end(result(1, ended=1), at_seconds=1)
    assert broken_promises(figures_with(ledger, offered=1)) == []
    assert broken_promises(figures_with(ledger, offered=2)) == ["1 of 2 requests were not accepted by the broker"]


def test_too_few_completed_or_a_slow_high_tier_or_a_repeated_execution_breaks_a_promise() -> None:
    ledger = ledger_of(*(arrival(n, at=0) for n in range(20)))
    for n in range(18):
        ledger.end(result(n, ended=4), at_seconds=4)
    for n in (18, 19):
        ledger.end(result(n, ended=4, status=Status.EXPIRED, service=None), at_seconds=4)
    sentences = broken_promises(figures_with(ledger, offered=20, duplicated=1))
    assert [word for word in ("executed", "18 of 20", "P95") if any(word in one for one in sentences)] == [
        "executed",
        "18 of 20",
        "P95",
    ]
    assert len(sentences) == 3


def test_only_our_own_repeated_executions_count() -> None:
    assert executed_more_than_once(["a", "b", "a", "a", "x", "x"], among={"a", "b"}) == 1


def test_the_series_counts_dispatches_when_they_were_made() -> None:
    ledger = ledger_of(arrival(1, at=0.5), arrival(2, at=0.6, tier=Tier.LOW), arrival(3, at=0.7, tier=Tier.LOW))
    ledger.end(result(1, ended=1.6, service=1.0), at_seconds=1.61)
    ledger.end(result(2, ended=3.4, service=1.0), at_seconds=3.41)
    ledger.end(result(3, ended=2.5, service=None, status=Status.EXPIRED), at_seconds=2.5)
    calls = [
        DirectCall(arrival=arrival(1, at=0.5), outcome=DirectOutcome.COMPLETED, ended_seconds=2),
        DirectCall(arrival=arrival(2, at=1.5), outcome=DirectOutcome.REFUSED, ended_seconds=1.6),
        DirectCall(arrival=arrival(3, at=1.6), outcome=DirectOutcome.TIMED_OUT, ended_seconds=9),
    ]
    samples = [
        Sample(at_seconds=at, limit_requests=limit, in_flight={Tier.HIGH: 1, Tier.LOW: 2}, engine_busy_share=0.5)
        for at, limit in ((0.4, 8), (0.9, 9), (2.5, 10))
    ]
    series = series_of(ledger.passages(), calls, samples)
    assert series.arrivals == (3, 0, 0, 0)
    assert series.dispatches == (1, 0, 1, 0)
    assert series.backlog[Tier.HIGH] == (0, 0, 0, 0)
    assert series.backlog[Tier.LOW] == (2, 2, 0, 0)
    assert series.limit == (9, 9, 10, 10)
    assert series.in_flight == (3, 3, 3, 3)
    assert series.engine_busy == (0.5, 0.5, 0.5, 0.5)
    assert series.direct_completed == (1, 0, 0, 0)
    assert series.direct_refused == (0, 1, 0, 0)
    assert series.direct_timed_out == (0, 1, 0, 0)


def test_the_json_object_has_the_fixed_names() -> None:
    ledger = ledger_of(arrival(1, at=0))
    ledger.end(result(1, ended=1), at_seconds=1.23456)
    call = DirectCall(arrival=arrival(1, at=0), outcome=DirectOutcome.REFUSED, ended_seconds=1)
    figures = figures_of(offered=1, passages=ledger.passages(), direct=[call], duplicated=0)
    document = json.loads(json.dumps(as_json(figures)))
    assert {name: document[name] for name in ("accepted", "completed", "expired", "failed", "lost", "duplicated")} == {
        "accepted": 1,
        "completed": 1,
        "expired": 0,
        "failed": 0,
        "lost": 0,
        "duplicated": 0,
    }
    assert document["tiers"]["high"]["p95_seconds"] == 1.235
    assert document["tiers"]["low"]["p50_seconds"] is None
    assert document["direct"]["refused"] == 1
    assert document["direct"]["tiers"]["high"]["p99_seconds"] is None


def test_bars_show_the_least_and_the_most() -> None:
    assert bars([0, 0.01, 4, 8], rows=2, top=8) == ["   █", " ▁██"]
    assert bars([0, 0], rows=1, top=0) == ["  "]


def test_report_plot_and_picture_can_be_made_of_a_run_without_outcomes(tmp_path: Path) -> None:
    ledger = ledger_of(arrival(1, at=0), replace(arrival(2, at=130.0), tier=Tier.LOW))
    figures, series = figures_with(ledger, offered=2), series_of(ledger.passages(), [], [])
    console = Console(width=80, record=True, quiet=True)
    console.print(report_table(figures))
    console.print(plot(series, columns=70))
    draw(series, figures, path=tmp_path / "demo.png")
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("columns", [20, 60, 200])
def test_the_plot_fits_the_columns(columns: int) -> None:
    ledger = ledger_of(*(arrival(n, at=float(n)) for n in range(150)))
    lines = plot(series_of(ledger.passages(), [], []), columns=columns).plain.splitlines()
    assert max(len(line) for line in lines if "█" in line) <= columns + len("       │")


def test_a_running_demo_is_shown_as_a_table_or_as_a_line() -> None:
    high: dict[str, int | str] = {"came": 3, "longest": "2 s"}
    free: dict[str, int | str] = {"came": 5, "longest": "9 s"}
    board = Board(at_seconds=7.4, title="Demo", rows={Tier.HIGH: high, "free": free}, notes=("1 paid", "busy"))
    assert live_line(board) == "  7 s  high 3 came 2 s longest; free 5 came 9 s longest; 1 paid; busy"
    console = Console(width=60, file=StringIO())
    with console.capture() as shown:
        console.print(live_table(board))
    words = shown.get().split()
    assert words[:3] == ["Demo", "7", "s"]
    assert words[-3:] == ["1", "paid", "busy"]
    assert {"came", "longest", "high", "3", "9"} <= set(words)
