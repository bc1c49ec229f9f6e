"""Rules in quick time, and what is scraped of a stack."""

from __future__ import annotations

import pytest

from forebay_sandbox.stack.prometheus import in_quick_time, jobs_of


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        ("rate(forebay_enqueued_total[5m])", "rate(forebay_enqueued_total[10000ms])"),
        ("max_over_time(forebay_exporter_up[1h])", "max_over_time(forebay_exporter_up[120000ms])"),
        ("avg_over_time(forebay:late:rate5m[3d])", "avg_over_time(forebay:late:rate5m[8640000ms])"),
        ("        for: 5m", "        for: 10000ms"),
        ("        keep_firing_for: 5m", "        keep_firing_for: 10000ms"),
        ("      - record: forebay:outcomes:rate5m", "      - record: forebay:outcomes:rate5m"),
        ("forebay:deadline_risk:ratio > 0.7", "forebay:deadline_risk:ratio > 0.7"),
        ("description: wait for 5m", "description: wait for 5m"),
    ],
)
def test_quick_time_shortens_windows_and_for_and_nothing_else(rule: str, wanted: str) -> None:
    assert in_quick_time(rule, factor=30) == wanted


def test_a_stack_is_scraped_as_workers_and_exporter() -> None:
    jobs = jobs_of(workers=["http://127.0.0.1:1", "http://127.0.0.1:2"], exporter="http://127.0.0.1:3")
    assert jobs == {"forebay-worker": ["127.0.0.1:1", "127.0.0.1:2"], "forebay-exporter": ["127.0.0.1:3"]}
