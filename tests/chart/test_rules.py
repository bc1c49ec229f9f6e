"""The chart's rules under the real promtool: every rule has been seen to speak and to be silent."""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from chart.derived import plain_rules
from chart.rendered import render

ROOT = Path(__file__).parents[2]
RULES = ROOT / "helm" / "forebay" / "rules" / "forebay.yaml"
CASES = sorted((Path(__file__).parent / "rules").glob("*.yaml"))

ALERTS = {
    "ForebayEndToEndSlow",
    "ForebayRequestsFailing",
    "ForebayBacklogHigh",
    "ForebayOldestAgeNearDeadline",
    "ForebayDeadLettersGrowing",
    "ForebayNoCapacity",
    "ForebayBackendRefusesAll",
    "ForebayExporterGone",
    "ForebayWorkersUnscraped",
    "ForebayWorkersDiffer",
    "ForebaySignalDown",
    "ForebayCertificateExpiring",
    "ForebayKafkaWritesFailing",
    "ForebayReplicasAtCap",
    "ForebayScalerFailing",
    "ForebayOnTimeBudgetBurning",
    "ForebayPartitionStuck",
    "ForebayLimitAtFloor",
    "ForebayGpuSick",
    "ForebayClockSkew",
}

Rule = dict[str, Any]
Key = tuple[str, tuple[tuple[str, str], ...]]


def rules() -> list[Rule]:
    return [rule for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]


def alert_rules() -> list[Rule]:
    return [rule for rule in rules() if "alert" in rule]


def key_of(rule: Rule) -> Key:
    """An alert by its name and own labels: several rules may have one name."""
    return rule["alert"], tuple(sorted(rule["labels"].items()))


def rule_of(alertname: str, labels: dict[str, str]) -> Rule:
    """The rule that an alert with these labels is of."""
    named = [rule for rule in alert_rules() if rule["alert"] == alertname]
    # The one with the most labels in common: another rule's may be a part of them.
    fitting = [rule for rule in named if rule["labels"].items() <= labels.items()]
    return max(fitting, key=lambda rule: len(rule["labels"]))


def cases() -> list[dict[str, Any]]:
    return [test for path in CASES for test in yaml.safe_load(path.read_text(encoding="utf-8"))["tests"]]


def with_constant_annotations(path: Path, rules_path: Path) -> dict[str, Any]:
    """The page of cases, with what it leaves out of each expected alert put in from the rule."""
    page: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    page.pop("values", None)
    page["rule_files"] = [str(rules_path)]
    # Else promtool takes them in any order, and a figure may be an interval old or not.
    groups = yaml.safe_load(rules_path.read_text(encoding="utf-8"))["groups"]
    page["group_eval_order"] = [group["name"] for group in groups]
    for test in page["tests"]:
        for case in test.get("alert_rule_test", ()):
            for expected in case["exp_alerts"]:
                rule = rule_of(case["alertname"], expected["exp_labels"])
                expected["exp_annotations"] = rule["annotations"] | expected["exp_annotations"]
    return page


def test_promtool_finds_nothing_wrong_with_the_rules(promtool: Path) -> None:
    ran = subprocess.run([promtool, "check", "rules", RULES], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def rules_for(path: Path, helm: Path, folder: Path) -> Path:
    """The rule file that a page of cases is about: the plain one, or what the chart renders for the page's values."""
    values = yaml.safe_load(path.read_text(encoding="utf-8")).get("values")
    if values is None:
        return RULES
    values_path = folder / "values.yaml"
    values_path.write_text(yaml.safe_dump(values), encoding="utf-8")
    manifests = render(helm, "--values", values_path, "--set", "prometheusRule.enabled=true")
    [rule] = [each for each in manifests if each["kind"] == "PrometheusRule"]
    rendered = folder / "rules.yaml"
    rendered.write_text(yaml.safe_dump(rule["spec"]), encoding="utf-8")
    return rendered


def test_the_plain_file_follows_from_the_template() -> None:
    assert RULES.read_text(encoding="utf-8") == plain_rules(), "write it again: tools/make-chart-values"


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_every_rule_says_what_its_cases_expect(helm: Path, promtool: Path, tmp_path: Path, path: Path) -> None:
    page = tmp_path / path.name
    rules_path = rules_for(path, helm, tmp_path)
    page.write_text(yaml.safe_dump(with_constant_annotations(path, rules_path)), encoding="utf-8")
    ran = subprocess.run([promtool, "test", "rules", page], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    seen: defaultdict[Key, set[bool]] = defaultdict(set)
    for test in cases():
        for case in test.get("alert_rule_test", ()):
            fired = [key_of(rule_of(case["alertname"], one["exp_labels"])) for one in case["exp_alerts"]]
            for rule in alert_rules():
                if rule["alert"] == case["alertname"]:
                    seen[key_of(rule)].add(key_of(rule) in fired)
    assert [key for key in map(key_of, alert_rules()) if seen[key] != {True, False}] == []


def test_every_recording_rule_has_a_case_with_a_value_and_one_without() -> None:
    seen: defaultdict[str, set[bool]] = defaultdict(set)
    for test in cases():
        for case in test.get("promql_expr_test", ()):
            for name in re.findall(r"forebay:\w+:\w+", case["expr"]):
                seen[name].add(bool(case["exp_samples"]))
    records = [rule["record"] for rule in rules() if "record" in rule]
    assert [name for name in records if seen[name] != {True, False}] == []


def test_every_alert_says_how_bad_it_is_what_is_the_matter_and_where_to_read_on() -> None:
    assert {rule["alert"] for rule in alert_rules()} == ALERTS
    for rule in alert_rules():
        assert rule["labels"]["severity"] in {"page", "ticket"}, rule["alert"]
        assert re.fullmatch(r"\d+m", rule["for"]), rule["alert"]
        assert re.fullmatch(r"\d+m", rule.get("keep_firing_for", "0m")), rule["alert"]
        notes = rule["annotations"]
        assert set(notes) == {"summary", "description", "runbook_url"}, rule["alert"]
        assert notes["summary"].startswith("{{ $labels.pool }}: "), rule["alert"]
        # The cases leave these out, so they must not depend on anything.
        assert "{{" not in notes["description"] + notes["runbook_url"], rule["alert"]
        assert notes["runbook_url"] == f"docs/runbooks/{rule['alert']}.md"


def test_recording_rules_are_named_by_level_metric_and_operation() -> None:
    names = [rule["record"] for rule in rules() if "record" in rule]
    assert [name for name in names if not re.fullmatch(r"forebay:[a-z0-9_]+:[a-z0-9_]+", name)] == []
    assert len(names) == len(set(names))
