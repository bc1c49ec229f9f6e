"""A rolling restart of four workers under load, on a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.rolling import roll
from forebay_sandbox.kafka_access import KafkaAccess


@pytest.mark.timeout(400)
def test_a_rolling_restart_repeats_nothing_and_keeps_the_high_tier_going(kafka: KafkaAccess, tmp_path: Path) -> None:
    report = roll(kafka, folder=tmp_path, seed=1, per_second=12.0, work_seconds_max=6.0)
    assert report.ledger.lost == ()
    assert report.run_twice == []
    assert report.ledger.doubled_outcomes == 0
    assert set(report.exit_codes) == {0}
    assert report.high_still_seconds <= 2.0
