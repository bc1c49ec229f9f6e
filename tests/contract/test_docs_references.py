"""Modules and tests that the documents name exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = sorted(path.parent for source in ROOT.glob("*/src/forebay_*") for path in source.rglob("*/__init__.py"))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PLACES = [ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs" / "internals").glob("*.md"))]


def is_there(place: Path) -> bool:
    """Whether it is a folder or a module."""
    return place.is_dir() or place.with_suffix(".py").exists()


def names_of_tests() -> set[str]:
    """The name of every test."""
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    return {name for source in sources for name in re.findall(r"^(?:async )?def (test_\w+)", source, re.MULTILINE)}


def named_in(tree: str) -> Iterator[Path]:
    """The modules and rooms that a file tree names: packages stand at the line's start, what is in them below."""
    package = Path()
    for line in tree.splitlines():
        if line.endswith("/") and not line.startswith(" "):
            package = ROOT / line
            yield package
        else:
            yield from (package / found.strip(" /") for found in re.findall(r"\b\w+\.py\b|^  [\w/]+/ ", line))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests_that_are_named_exist(page: Path) -> None:
    named = set(re.findall(r"`(test_\w+)`", page.read_text(encoding="utf-8")))
    assert named - names_of_tests() == set()


def test_the_map_names_every_room_and_what_it_names_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    [tree] = re.findall(r"^```text\n(schemas/.*?)^```", text, re.MULTILINE | re.DOTALL)
    named = set(named_in(tree))
    assert sorted(str(path) for path in named if not path.exists()) == []
    assert len(ROOMS) > 30
    assert sorted(str(room.relative_to(ROOT)) for room in set(ROOMS) - named) == []


@pytest.mark.parametrize("page", PLACES, ids=lambda page: page.name)
def test_rooms_and_modules_that_are_named_exist(page: Path) -> None:
    named = re.findall(r"`([a-z_0-9]+(?:/[a-z_0-9]+)+)/?`", page.read_text(encoding="utf-8"))
    roots = [ROOT, *ROOT.glob("*/src/forebay_*")]
    assert [place for place in named if not any(is_there(root / place) for root in roots)] == []


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: str(room.relative_to(ROOT)))
def test_a_room_says_what_is_in_it_and_is_no_warehouse(room: Path) -> None:
    said = ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8"))) or ""
    assert len(said.splitlines()) >= 2
    assert "import" in said, "it should say what it may import"
    assert len(list(room.glob("*.py"))) - 1 <= 20
