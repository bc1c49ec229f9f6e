"""The release: its workflow as actionlint reads it, and that nothing in it stands in for what was not set."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.tools_at_hand import at_hand

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / ".github/workflows/release.yml"


def lint(path: Path) -> subprocess.CompletedProcess[str]:
    # Without the programs it would run where it finds them: the same verdict everywhere.
    command = [str(at_hand("actionlint")), "-shellcheck=", "-pyflakes=", "-no-color", str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def job() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]["release"]
    return found


def test_actionlint_finds_nothing_in_the_workflow() -> None:
    done = lint(WORKFLOW)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_actionlint_would_find_a_misspelt_word(tmp_path: Path) -> None:
    wrong = tmp_path / "release.yml"
    wrong.write_text(WORKFLOW.read_text(encoding="utf-8").replace("runs-on:", "run-on:"), encoding="utf-8")
    done = lint(wrong)
    assert done.returncode == 1
    assert "run-on" in done.stdout


def test_registry_base_and_keys_are_the_repository_s_own_and_have_no_default() -> None:
    text = WORKFLOW.read_text(encoding="utf-8")
    expressions = re.findall(r"\$\{\{(.*?)\}\}", text)
    assert not [each for each in expressions if "||" in each or "&&" in each]
    environment = job()["env"]
    for name in ("REGISTRY", "PYTHON_IMAGE", "COSIGN_PUBLIC_KEY"):
        assert environment[name] == f"${{{{ vars.{name} }}}}"
    # What the first step looks at is all that the others take from there.
    first = job()["steps"][0]
    taken = set(re.findall(r"\$\{\{ (?:vars|secrets)\.(\w+) \}\}", text))
    [looked_at] = re.findall(r"for name in ([A-Z_ ]+); do", first["run"])
    assert set(looked_at.split()) == taken


def test_a_secret_is_given_to_the_steps_that_need_it_alone() -> None:
    assert "secrets." not in str(job()["env"])
    assert not [step for step in job()["steps"] if "secrets." in step.get("run", "")]


def test_actions_of_others_are_named_by_their_commit() -> None:
    used = [step["uses"] for step in job()["steps"] if "uses" in step]
    assert used
    assert all(re.fullmatch(r"[a-z-]+/[a-z-]+@[0-9a-f]{40}", each) for each in used)


@pytest.mark.parametrize("missing", ["REGISTRY", "COSIGN_KEY", "COSIGN_PUBLIC"])
def test_the_script_names_what_was_not_set(missing: str) -> None:
    given = {"REGISTRY": "registry.example.com/forebay", "COSIGN_KEY": "cosign.key", "COSIGN_PUBLIC": "cosign.pub"}
    environment = {name: value for name, value in os.environ.items() if name not in given}
    done = subprocess.run(
        [ROOT / "tools/release"],
        env=environment | given | {missing: ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (2, f"release: {missing} is not set; it has no default\n")
