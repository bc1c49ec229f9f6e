"""What others script against has not changed unless somebody said so: surface_v1.json lists all of it.

A change on purpose is written down with `PYTHONPATH=tests .venv/bin/python -m contract.surface`, and in CHANGELOG.md.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from contract import surface


@pytest.mark.parametrize("section", surface.SECTIONS)
def test_what_others_script_against_is_as_it_was(section: str) -> None:
    assert surface.SECTIONS[section]() == surface.golden()[section]


def test_the_list_is_no_empty_one() -> None:
    document = surface.golden()
    assert set(document) == {*surface.SECTIONS, "status"}
    assert all(document.values())
    assert len(document["settings"]["WorkerSettings"]) > 30
    assert len(document["commands"]) > 25
    assert len(document["loggers"]) > 15
    assert len(document["status"]) > 60


@pytest.mark.parametrize("module", surface.golden()["imports"]["modules to run"])
def test_modules_that_are_run_by_name_can_be(module: str) -> None:
    program = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    assert subprocess.run([sys.executable, "-P", "-c", program], check=False, timeout=60).returncode == 0


def test_key_paths_are_of_every_key() -> None:
    document = {"a": {"b": [{"c": 1}, {"d": None}]}, "tiers": {"high": {"x": 1}, "low": {"y": 2}}}
    assert surface.key_paths(document) == {
        "a",
        "a.b",
        "a.b[].c",
        "a.b[].d",
        "tiers",
        "tiers.*",
        "tiers.*.x",
        "tiers.*.y",
    }
