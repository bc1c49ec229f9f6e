"""Links of the documents lead to a file and a heading, in the repository and on the site."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PAGE = """# A page

[up](#a-page) [code `x`](other.md#what-is-x) [net](https://example.com/none) `[no](link.md)`
[over
two lines](../ARCHITECTURE.md) ![a picture](one.png)

```
[no](link.md)
# no heading
```
"""


@pytest.fixture(scope="module")
def docs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_tool", ROOT / "tools" / "docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A page whose links are right, and what it links to."""
    for name, text in {
        "docs/page.md": PAGE,
        "docs/other.md": "# Other\n\n## What is `x`?\n\n## Twice\n\n## Twice\n",
        "docs/one.png": "",
        "ARCHITECTURE.md": "[a page](docs/page.md#a-page) [folder](docs) [second](docs/other.md#twice-1)\n",
        "README.md": "[the map](ARCHITECTURE.md)\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_every_page_has_its_place_on_the_site(docs: ModuleType, tmp_path: Path) -> None:
    docs.stage(ROOT, tmp_path)
    staged = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.md")}
    site = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
    listed = set(re.findall(r"'([^']*\.md)'", str(site["nav"])))
    assert listed == staged


def test_every_link_of_the_documents_leads_somewhere(docs: ModuleType) -> None:
    assert len(docs.pages(ROOT)) > 40
    assert [str(each) for each in docs.broken(ROOT)] == []


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("other.md#", "othre.md#", "docs/page.md:3: othre.md#what-is-x: no such file"),
        ("#what-is-x", "#what-is-y", "docs/page.md:3: other.md#what-is-y: no such heading"),
        ("#a-page", "#no-heading", "docs/page.md:3: #no-heading: no such heading"),
        ("(../ARCHITECTURE.md)", "(ARCHITECTURE.md)", "docs/page.md:4: ARCHITECTURE.md: no such file"),
        ("one.png", "two.png", "docs/page.md:5: two.png: no such file"),
    ],
)
def test_a_link_that_leads_nowhere_is_named(
    docs: ModuleType, repository: Path, right: str, wrong: str, said: str
) -> None:
    assert list(docs.broken(repository)) == []
    (repository / "docs" / "page.md").write_text(PAGE.replace(right, wrong), encoding="utf-8")
    assert [str(each) for each in docs.broken(repository)] == [said]


def test_on_the_site_links_lead_to_the_same_pages(docs: ModuleType, repository: Path) -> None:
    site = repository / "site"
    docs.stage(repository, site)
    assert sorted(path.name for path in site.rglob("*.*")) == ["ARCHITECTURE.md", "one.png", "other.md", "page.md"]
    assert (site / "page.md").read_text(encoding="utf-8") == PAGE.replace("(../ARCHITECTURE.md)", "(ARCHITECTURE.md)")
    staged = (site / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert staged == "[a page](page.md#a-page) folder [second](other.md#twice-1)\n"
