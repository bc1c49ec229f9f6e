"""Each alert has a page that says what to do, and the index lists them all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from chart.panels import FILES, panels_of
from chart.rendered import CHART, ROOT

FOLDER = ROOT / "docs" / "runbooks"
RULES = CHART / "rules" / "forebay.yaml"

SECTIONS = ["What it means", "How to look", "What to do", "What not to do", "How to know it is over"]

PAGES = sorted(page for page in FOLDER.glob("*.md") if page.name != "README.md")


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def test_every_alert_leads_to_a_page_and_every_page_belongs_to_an_alert() -> None:
    urls = {rule["annotations"]["runbook_url"] for rule in alerts()}
    assert {str(page.relative_to(ROOT)) for page in PAGES} == urls
    assert {page.stem for page in PAGES} == {rule["alert"] for rule in alerts()}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_says_what_it_means_how_to_look_what_to_do_and_when_it_is_over(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"# {page.stem}\n")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == SECTIONS
    _, *sections = re.split(r"^## .+$", text, flags=re.MULTILINE)
    meaning, look, what_to_do, avoid, over = sections
    assert len(meaning) > 200
    assert "```console\n$ " in look
    assert re.search(r"^1\. ", what_to_do, re.MULTILINE)
    assert avoid.count("\n- Do not ") >= 1
    assert len(over) > 80


def test_the_index_lists_every_page_and_how_bad_it_is() -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| \[(\w+)\]\(\w+\.md\) \| ([^|]+) \|", text, re.MULTILINE))
    assert set(rows) == {page.stem for page in PAGES}
    for rule in alerts():
        assert rule["labels"]["severity"] in rows[str(rule["alert"])]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_panels_lead_to_pages_that_are_there(path: Path) -> None:
    urls = [link["url"] for panel in panels_of(path) for link in panel["links"]]
    assert urls
    for url in urls:
        assert (FOLDER / url.removeprefix("${runbooks}/")).exists(), url
