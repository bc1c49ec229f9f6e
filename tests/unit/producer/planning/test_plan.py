"""Plans, and the command `forebay plan`."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from forebay_producer.cli.app import app
from forebay_producer.cli.plan import _loads
from forebay_producer.planning.demand import Demand, Load, Service
from forebay_producer.planning.plan import make_plan, shown_seconds
from forebay_producer.planning.waits import DAY_SECONDS
from forebay_schemas.contract.calibration import VERSION, Calibration, Recommendation
from forebay_schemas.contract.tiers import DEFAULT_TIER_TIMES, Tier, TierTimes, tier_times
from forebay_schemas.errors import UsageError

SERVICE = Service(seconds=4.0, limit_requests=40, cv=0.5)  # ten a second


def demand(**loads: Load) -> Demand:
    return Demand(loads={Tier(name): load for name, load in loads.items()}, service=SERVICE)


@pytest.mark.parametrize(
    ("loads", "engines"),
    [
        ({"high": Load(per_second=1.0, deadline_seconds=10.0)}, 1),
        ({"high": Load(per_second=9.0, deadline_seconds=10.0)}, 1),
        ({"high": Load(per_second=5.0, peak_factor=4.0, peak_seconds=900.0, deadline_seconds=10.0)}, 3),
        # Low does not need its peak to be done while it lasts: it drains overnight.
        ({"low": Load(per_second=5.0, peak_factor=4.0, peak_seconds=900.0, deadline_seconds=86_400.0)}, 1),
        ({"low": Load(per_second=19.0, deadline_seconds=86_400.0)}, 2),
        (
            {
                "mid": Load(per_second=9.0, deadline_seconds=30.0),
                "low": Load(per_second=5.0, deadline_seconds=86_400.0),
            },
            2,
        ),
    ],
)
def test_as_many_engines_as_the_deadlines_take(loads: dict[str, Load], engines: int) -> None:
    found = make_plan(demand(**loads))
    assert found.engines_needed == found.engines == engines
    assert all(tier.is_kept for tier in found.tiers.values())


def test_a_drain_that_must_be_over_sooner_takes_more_engines() -> None:
    low = Load(per_second=8.0, peak_factor=6.0, peak_seconds=7200.0, deadline_seconds=86_400.0)
    slow = make_plan(demand(low=low))
    fast = make_plan(changed(demand(low=low), drain_seconds=3600.0))
    assert slow.engines_needed is not None
    assert fast.engines_needed is not None
    assert slow.engines_needed < fast.engines_needed
    drained = fast.tiers["low"].drained_seconds
    assert drained is not None
    assert drained <= 3600


def changed(made: Demand, *, drain_seconds: float | None = None, engines: int | None = None) -> Demand:
    return Demand(loads=made.loads, service=made.service, drain_seconds=drain_seconds, engines=engines)


def test_too_few_engines_are_said_to_be_too_few() -> None:
    found = make_plan(changed(demand(high=Load(per_second=25.0, deadline_seconds=10.0)), engines=1))
    assert found.engines_needed == 3
    assert not found.tiers["high"].is_kept
    assert any("1 engines are too few: 3 are needed" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("load", "service", "says"),
    [
        (
            Load(per_second=0.1, deadline_seconds=5.0),
            Service(seconds=15.0, limit_requests=16),
            "none can be done in time",
        ),
        (Load(per_second=0.1, deadline_seconds=60.0), Service(seconds=15.0, limit_requests=16), "refused at once"),
        (
            Load(per_second=0.1, deadline_seconds=5.0),
            Service(seconds=3.0, limit_requests=16),
            "are more than its deadline",
        ),
        (Load(per_second=9.5, deadline_seconds=60.0), Service(seconds=1.0, limit_requests=10), "a little more"),
    ],
)
def test_what_cannot_go_well_is_warned_of(load: Load, service: Service, says: str) -> None:
    found = make_plan(Demand(loads={Tier.HIGH: load}, service=service, engines=1))
    assert any(says in warning for warning in found.warnings), found.warnings


def test_more_workers_than_partitions_are_useless() -> None:
    loads = {Tier.LOW: Load(per_second=5000.0, deadline_seconds=86_400.0)}
    service = Service(seconds=0.1, limit_requests=1000)
    found = make_plan(Demand(loads=loads, service=service, partitions=2))
    assert found.workers > found.workers_max == 2
    assert any("useless" in warning for warning in found.warnings)
    free = make_plan(Demand(loads=loads, service=service))
    assert free.partitions >= 2 * free.workers
    assert free.partitions % free.workers == 0


def test_what_breaks_first_breaks_at_that_factor() -> None:
    high = Load(per_second=4.0, deadline_seconds=10.0)
    found = make_plan(demand(high=high))
    first = found.breaks[0]
    assert "high waits longer" in first.what
    for factor, is_kept in ((0.95 * first.factor, True), (1.05 * first.factor, False)):
        grown = demand(high=Load(per_second=4.0 * factor, deadline_seconds=10.0))
        assert make_plan(changed(grown, engines=1)).tiers["high"].is_kept is is_kept


def test_kafka_keeps_what_comes_for_as_long_as_the_topics_say() -> None:
    one = Demand(
        loads={Tier.LOW: Load(per_second=1.0, deadline_seconds=86_400.0)},
        service=SERVICE,
        request_bytes=9_700,
        result_bytes=4_700,
        replication=3,
    )
    found = make_plan(one).kafka
    assert found.disk_bytes == pytest.approx(3 * DAY_SECONDS * (8 * 10_000 + 7 * 5_000))
    assert found.in_bytes_per_second == pytest.approx(15_000)
    assert found.between_bytes_per_second == pytest.approx(30_000)
    assert found.retention_needed_seconds <= found.retention_seconds


def test_a_peak_with_more_than_the_day_has_is_refused() -> None:
    with pytest.raises(UsageError, match="--peak: high: 10 times the mean for 4"):
        make_plan(demand(high=Load(per_second=1.0, peak_factor=10.0, peak_seconds=14_400.0, deadline_seconds=5.0)))


def test_a_load_for_more_partitions_than_a_topic_has_is_refused() -> None:
    giant = Demand(
        loads={Tier.HIGH: Load(per_second=1e6, deadline_seconds=86_400.0)},
        service=Service(seconds=86_400.0, limit_requests=100_000),
    )
    with pytest.raises(UsageError, match="take 100,000 workers and 200,000 partitions; a topic has 10,000"):
        make_plan(giant)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.25, "0.25 s"), (18.0, "18 s"), (720.0, "12 min"), (51_840.0, "14.4 h"), (691_200.0, "8 d")],
)
def test_times_are_shown_short(seconds: float, shown: str) -> None:
    assert shown_seconds(seconds) == shown


# --- the command


def calibrated(folder: Path) -> Path:
    made = Calibration(
        version=VERSION,
        state="complete",
        stopped_by=None,
        backend="http://127.0.0.1:8000",
        model=None,
        engine="vllm",
        load="some",
        seconds=1.0,
        steps=(),
        fit=None,
        recommended=Recommendation(
            stable_concurrency=256,
            stable_requests_per_second=12.0,
            limit_requests=40,
            limit_min=4,
            limit_start=40,
            limit_max=256,
            requests_per_second=10.0,
            service_seconds=4.0,
            service_cv=0.1,
            tpot_seconds=0.04,
            tpot_target_seconds=0.04,
            prefill_seconds_max=0.05,
            queue_high_requests=30,
            queue_mid_requests=180,
        ),
    )
    file = folder / "calibration.json"
    file.write_bytes(msgspec.json.encode(made))
    return file


def test_the_command_reads_a_calibration_and_prints_for_people_and_machines(tmp_path: Path) -> None:
    file = calibrated(tmp_path)
    words = ["plan", "--rate", "high=2", "--rate", "low=200000/d", "--peak", "low=3x2h", "--calibration", str(file)]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    assert "What breaks first:" in shown.output
    assert "It assumes:" in shown.output
    machine = CliRunner().invoke(app, [*words, "--output", "json"])
    assert json.loads(machine.output)["engines"] == 1
    few = CliRunner().invoke(app, ["plan", "--rate", "high=99", "--engines", "1", "--calibration", str(file)])
    assert few.exit_code == 1
    assert "too few" in few.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--rate", "high=fast"], "--rate: is 'fast'"),
        (["--rate", "urgent=5"], "--rate: is 'urgent=5'"),
        (["--rate", "high=5", "--rate", "high=6"], "--rate: is given twice for high"),
        (["--rate", "high=0"], "--rate: is '0'"),
        (["--rate", "high=5", "--peak", "high=4"], "--peak: is '4'"),
        (["--rate", "high=5", "--peak", "low=4x1h"], "--peak: is given for low, which has no rate"),
        (["--rate", "high=5", "--peak", "high=40x1h"], "--peak: high: 40 times the mean"),
        (["--rate", "high=5", "--deadline", "high=soon"], "--deadline: is 'soon'"),
        (["--rate", "high=5", "--engines", "0"], "--engines: is 0"),
        (["--rate", "high=5", "--request-bytes", "big"], "--request-bytes: is 'big'"),
        (["--rate", "high=5", "--calibration", "x.json"], "both given"),
    ],
)
def test_what_was_typed_wrong_is_said_in_a_line(words: list[str], says: str) -> None:
    done = CliRunner().invoke(app, ["plan", *words, "--service-seconds", "1", "--limit", "10"])
    assert done.exit_code == 2
    assert says in done.output


def test_an_engine_that_nothing_is_known_of_cannot_be_planned_for(tmp_path: Path) -> None:
    for words, says in (
        ([], "both missing"),
        (["--service-seconds", "1"], "--limit: is missing"),
        (["--calibration", str(tmp_path / "none.json")], "No such file"),
    ):
        done = CliRunner().invoke(app, ["plan", "--rate", "high=5", *words])
        assert done.exit_code == 2
        assert says in done.output


GOOD: dict[str, str] = {"--rate": "high=5", "--service-seconds": "1", "--limit": "10"}


@pytest.mark.parametrize(
    ("option", "least", "below", "most", "above"),
    [
        ("--service-seconds", "0.0001", "1e-300", "86400", "86401"),
        ("--service-seconds", "0.0001", "nan", "86400", "inf"),
        ("--limit", "1", "0", "100000", "100001"),
        ("--rate", "high=1/d", "high=0.5/d", "high=1000000", "high=1000001"),
        ("--rate", "high=1/d", f"high=0.{300 * '0'}1", "high=1000000", f"high={300 * '9'}"),
        ("--peak", "high=1x1s", "high=0.9x1s", "high=1000x1s", "high=1001x1s"),
        ("--deadline", "high=1ms", "high=0.1ms", "high=7d", "high=8d"),
        ("--drain", "1ms", "0.1ms", "7d", "8d"),
        ("--engines", "1", "0", "10000", "10001"),
        ("--partitions", "1", "0", "10000", "10001"),
        ("--replication", "1", "-1", "10000", f"1{300 * '0'}"),
        ("--service-cv", "0", "-1", "100", "101"),
        ("--request-bytes", "0", "-1", "1024MiB", "1025MiB"),
        ("--result-bytes", "0", "-1", "1024MiB", f"{300 * '9'}MiB"),
    ],
)
def test_what_no_load_is_is_refused_and_the_bounds_fit_into_the_table(
    option: str, least: str, below: str, most: str, above: str
) -> None:
    def planned(value: str) -> tuple[int, str]:
        words = [word for pair in {**GOOD, option: value}.items() for word in pair]
        done = CliRunner().invoke(app, ["plan", *words])
        assert done.exception is None or isinstance(done.exception, SystemExit)
        return done.exit_code, done.output

    for value in (below, above):
        code, said = planned(value)
        assert code == 2
        assert f"{option}: is " in said
        assert max(map(len, said.splitlines())) < 200
    for value in (least, most):
        code, said = planned(value)
        assert code in (0, 1)
        assert max(map(len, said.splitlines())) <= 140, said


def test_a_tier_may_wait_for_as_long_as_it_tolerates() -> None:
    tolerant = make_plan(demand(high=Load(per_second=1.0, deadline_seconds=60.0, tolerated_seconds=10.0)))
    assert tolerant.tiers["high"].allowed_wait_seconds == 10.0
    assert "a request may wait for as long as its tier tolerates" in tolerant.assumes
    usual = make_plan(demand(high=Load(per_second=1.0, deadline_seconds=60.0)))
    assert usual.tiers["high"].allowed_wait_seconds == 36.0
    assert "a request may wait for 60% of its deadline" in usual.assumes


@pytest.mark.parametrize(
    ("deadlines", "times", "deadline_seconds", "allowed_seconds"),
    [
        ([], DEFAULT_TIER_TIMES, 5.0, 3.0),
        ([], tier_times({Tier.HIGH: 60_000}, {}), 60.0, 3.0),
        ([], tier_times({Tier.HIGH: 60_000}, {Tier.HIGH: 10_000}), 60.0, 10.0),
        (["high=20s"], tier_times({Tier.HIGH: 60_000}, {Tier.HIGH: 10_000}), 20.0, 12.0),
    ],
)
def test_without_a_deadline_given_the_settings_count(
    deadlines: list[str], times: TierTimes, deadline_seconds: float, allowed_seconds: float
) -> None:
    load = _loads(["high=1/s"], [], deadlines, times)[Tier.HIGH]
    assert (load.deadline_seconds, load.allowed_wait_seconds) == (deadline_seconds, allowed_seconds)
