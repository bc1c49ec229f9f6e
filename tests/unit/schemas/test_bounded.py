"""A map with a bound: what it forgets, and that forgetting costs the same however much was forgotten before."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from forebay_schemas.bounded import BoundedMap

ROOT = Path(__file__).resolve().parents[3]


def test_the_entry_that_was_put_longest_ago_is_forgotten_first() -> None:
    entries: BoundedMap[str, int] = BoundedMap(entries_max=2)
    entries.put("a", 1)
    entries.put("b", 2)
    entries.put("a", 3)
    entries.put("c", 4)
    assert dict(entries) == {"a": 3, "c": 4}
    assert entries.oldest() == 3
    assert entries.forget_oldest() == ("a", 3)


def test_what_is_added_again_keeps_its_value_and_its_place() -> None:
    entries: BoundedMap[str, int] = BoundedMap(entries_max=2)
    assert entries.add("a", 1)
    assert entries.add("b", 2)
    assert not entries.add("a", 3)
    assert entries.add("c", 4)
    assert dict(entries) == {"b": 2, "c": 4}


def test_forgetting_costs_no_more_however_many_were_forgotten_before() -> None:
    """The same with a dict whose first key is deleted takes 25 to 60 times as long once it is full."""
    entries: BoundedMap[int, None] = BoundedMap(entries_max=100_000)
    numbers = iter(range(10_000_000))

    def cpu_seconds(count: int) -> float:
        began = time.thread_time()
        for _, number in zip(range(count), numbers, strict=False):
            entries.put(number, None)
        return time.thread_time() - began

    below = cpu_seconds(100_000)
    above = cpu_seconds(100_000)
    assert len(entries) == 100_000
    assert above < 8 * below


@pytest.mark.parametrize("package", ["schemas", "producer", "worker", "sandbox"])
def test_nothing_deletes_the_first_entry_of_a_dict_to_keep_it_small(package: str) -> None:
    first = re.compile(r"(?:del|pop)\b.*next\(iter\(")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sorted((ROOT / package / "src").rglob("*.py"))
        if path.name != "bounded.py"  # which says why
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if first.search(line)
    ]
    assert not found, f"use BoundedMap: {', '.join(found)}"
