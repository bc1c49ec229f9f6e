"""Estimates and admission in virtual time: real dispatch, real capacity records, real decisions, a simulated engine."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

from benchmarks.waits.__main__ import ERROR_RATIO_MAX, ON_TIME_MIN, WITHIN_P90_MIN, broken_promises
from benchmarks.waits.chart import chart
from benchmarks.waits.scenarios import OVERLOAD, SCENARIOS, Pair, accuracy, play

from forebay_schemas.contract.tiers import Tier


def test_at_nearly_full_load_estimates_hold() -> None:
    found = accuracy(play(replace(SCENARIOS["load .95"], seconds=240.0), seed=2).pairs)
    assert found.waits > 1_000
    assert found.error_ratio is not None
    assert found.error_ratio <= ERROR_RATIO_MAX
    assert found.within_p90 is not None
    assert found.within_p90 >= WITHIN_P90_MIN


def test_at_twice_the_sustainable_load_the_admitted_end_on_time_and_others_are_refused() -> None:
    found = play(OVERLOAD, seed=2)
    assert found.refused > found.offered / 3
    assert found.admitted > found.offered / 3, "refusing everything would be easy"
    assert found.on_time / found.admitted >= ON_TIME_MIN
    assert all(seconds > 0 for seconds in found.retry_after_seconds)


def pair(estimate: float, actual: float, *, at: float = 100.0) -> Pair:
    return Pair(at_seconds=at, tier=Tier.LOW, p50_seconds=estimate, p90_seconds=2 * estimate, actual_seconds=actual)


def test_errors_of_short_waits_are_absolute() -> None:
    assert accuracy([pair(0.1, 0.2)]).error_ratio == 0.2, "of half a second"
    assert accuracy([pair(8.0, 10.0)]).error_ratio == 0.2
    assert accuracy([pair(8.0, 10.0, at=1.0)]).waits == 0, "while models learn"
    assert accuracy([pair(1.0, 1.9), pair(1.0, 2.1)]).within_p90 == 0.5


def test_a_broken_promise_is_named() -> None:
    good = {"error_ratio": 0.1, "within_p90": 0.9}
    found = {
        "waits": {name: {"all": dict(good)} for name in SCENARIOS},
        "overload": {"on_time_share": 0.97},
        "refusal_microseconds": 50.0,
    }
    assert broken_promises(found) == []
    found["waits"]["load .8"]["all"]["error_ratio"] = 0.5  # type: ignore[index]
    found["overload"]["on_time_share"] = 0.9  # type: ignore[index]
    assert broken_promises(found) == [
        "load .8: the median error is 50%",
        "overload: 90.0% of the admitted end on time",
    ]


def test_the_plot_is_an_svg_with_a_panel_a_scenario() -> None:
    pairs = [pair(number / 10, number / 9, at=60.0 + number) for number in range(200)]
    drawn = ElementTree.fromstring(chart({"a <b>": pairs, "empty": []}, title="Waits"))  # noqa: S314 - our own
    assert drawn.tag.endswith("svg")
    texts = [each.text for each in drawn.iter() if each.tag.endswith("text")]
    assert {"Waits", "a <b>", "empty"} <= set(texts)
    assert sum(each.tag.endswith("polyline") for each in drawn.iter()) == 4
