"""Values that docs/run-workers.md, docs/kubernetes.md and docs/scaling.md show: helm takes them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from chart.rendered import CHART, ROOT, run_helm
from chart.strict import validate

PAGES = [
    ROOT / "docs" / "run-workers.md",
    ROOT / "docs" / "kubernetes.md",
    ROOT / "docs" / "scaling.md",
    CHART / "README.md",
]
COMMANDS = [
    line.strip().removeprefix("$ ")
    for page in PAGES
    for line in page.read_text(encoding="utf-8").splitlines()
    if re.match(r"\s*\$ helm (install|upgrade|template) ", line)
]
REFUSED = "limit_mxa"
# What a template knows nothing of.
OF_A_SERVER = {"--create-namespace", "--force-conflicts"}


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """The values that the page has the reader write."""
    text = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```yaml\n\s+# mine\.yaml\n(.*?)```", text, re.DOTALL)
    path = tmp_path / "mine.yaml"
    path.write_text(block, encoding="utf-8")
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_helm_takes_what_the_pages_say(helm: Path, mine: Path, command: str) -> None:
    _, _, release, _, *options = shlex.split(command)
    options = [str(mine) if option == "mine.yaml" else option for option in options if option not in OF_A_SERVER]
    done = run_helm(helm, "template", release, CHART, *options)
    assert (done.returncode != 0) == (REFUSED in command), done.stderr
    manifests = [each for each in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if each]
    validate(manifests, "1.34")


def test_a_page_shows_what_helm_says(helm: Path) -> None:
    [refused] = [command for command in COMMANDS if REFUSED in command]
    said = run_helm(helm, *shlex.split(refused)[1:2], "forebay", CHART, *shlex.split(refused)[4:]).stderr.strip()
    assert said in (CHART / "README.md").read_text(encoding="utf-8")
    [capped] = [command for command in COMMANDS if "scaledobject.yaml" in command]
    shown = run_helm(helm, "template", "forebay", CHART, *shlex.split(capped)[4:]).stdout
    text = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    [lines] = re.findall(r"```yaml\n(  minReplicaCount.*?)```", text, re.DOTALL)
    assert lines in shown


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_objects_on_a_page_are_what_kubernetes_takes(page: Path) -> None:
    blocks = re.findall(r"```yaml\n(apiVersion: .*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    validate([yaml.safe_load(block) for block in blocks], "1.34")
