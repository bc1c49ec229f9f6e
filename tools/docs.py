"""The documents: `check` that their links lead somewhere, `stage` them as the source of a site. Reads files only.

A link is relative, to a file or a heading; addresses of the network are not asked. Headings get GitHub's anchors.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
STYLE = "site.css"
LINK = re.compile(r"!?\[(?P<shown>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^()\s]+)\)")
FENCE = re.compile(r"\s*```")
HEADING = re.compile(r"#{1,6}\s+(.*)")
ELSEWHERE = re.compile(r"^[a-z][a-z+.-]*:")


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A link that leads nowhere."""

    page: Path
    line: int
    target: str
    why: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.target}: {self.why}"


def pages(root: Path) -> list[Path]:
    """Every document, relative to the root."""
    found = [*root.glob("*.md"), *(root / "docs").rglob("*.md"), root / "helm" / "forebay" / "README.md"]
    return sorted(path.relative_to(root) for path in found if path.exists())


def _masked(text: str) -> str:
    """The document with its code as blanks, every character at its place."""
    lines: list[str] = []
    fenced = False
    for line in text.splitlines(keepends=True):
        fence = FENCE.match(line) is not None
        lines.append(re.sub(r"[^\n]", " ", line) if fenced or fence else line)
        fenced ^= fence
    return re.sub(r"`[^`]*`", lambda code: re.sub(r"[^\n]", " ", code[0]), "".join(lines))


def links(text: str) -> Iterator[re.Match[str]]:
    """The relative links of a document; their spans are those in the text."""
    return (link for link in LINK.finditer(_masked(text)) if not ELSEWHERE.match(link["target"]))


def anchors(text: str) -> set[str]:
    """The anchors of a document's headings."""
    found: dict[str, int] = {}
    anchors: set[str] = set()
    for masked, line in zip(_masked(text).splitlines(), text.splitlines(), strict=True):
        if HEADING.match(masked) and (heading := HEADING.match(line)):
            shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1])
            slug = re.sub(r"[^\w\- ]", "", shown.strip().lower()).replace(" ", "-")
            before = found.get(slug, 0)
            found[slug] = before + 1
            anchors.add(f"{slug}-{before}" if before else slug)
    return anchors


def broken(root: Path) -> Iterator[Broken]:
    """The links of all documents that lead to no file, or to no heading of it."""
    for page in pages(root):
        text = (root / page).read_text(encoding="utf-8")
        for link in links(text):
            path, _, anchor = link["target"].partition("#")
            goal = root / page.parent / path if path else root / page
            why = None
            if not goal.exists():
                why = "no such file"
            elif anchor and goal.suffix == ".md" and anchor not in anchors(goal.read_text(encoding="utf-8")):
                why = "no such heading"
            if why is not None:
                line = text.count("\n", 0, link.start()) + 1
                yield Broken(page=page, line=line, target=link["target"], why=why)


def _place(path: PurePosixPath) -> PurePosixPath:
    """Where a file of the repository lies on the site, whose root is docs/."""
    return path.relative_to("docs") if path.parts[0] == "docs" else path


def stage(root: Path, into: Path) -> None:
    """Writes the documents, and the files that they link to, as the source of a site; replaces what is there.

    README.md of the repository stays out, since the site has a start page. A link to it or to a folder, neither of
    which has a page, becomes plain text.
    """
    shutil.rmtree(into, ignore_errors=True)
    for page in pages(root):
        if page == Path("README.md"):
            continue
        text = (root / page).read_text(encoding="utf-8")
        pieces: list[str] = []
        done = 0
        for link in links(text):
            pieces += (
                text[done : link.start()],
                _moved(root, into, page, text[link.start("shown") : link.end("shown")], link),
            )
            done = link.end()
        path = into / _place(PurePosixPath(page))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join([*pieces, text[done:]]), encoding="utf-8")
    if (root / "docs" / STYLE).exists():
        shutil.copyfile(root / "docs" / STYLE, into / STYLE)


def _moved(root: Path, into: Path, page: Path, shown: str, link: re.Match[str]) -> str:
    """The link as it stands on the site."""
    path, mark, anchor = link["target"].partition("#")
    image = "!" if link[0].startswith("!") else ""
    if not path:
        return f"{image}[{shown}]({link['target']})"
    goal = PurePosixPath(os.path.normpath(page.parent / path))
    if goal == PurePosixPath("README.md") or (root / goal).is_dir():
        return shown
    place = _place(goal)
    if goal.suffix != ".md":
        (into / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / goal, into / place)
    return f"{image}[{shown}]({os.path.relpath(place, _place(PurePosixPath(page)).parent)}{mark}{anchor})"


def main(arguments: list[str]) -> int:
    """0: all links lead somewhere, or the source was written; 1: some do not; 2: wrong usage."""
    match arguments:
        case ["check"]:
            found = list(broken(ROOT))
            print(*found, sep="\n", end="\n" if found else "", file=sys.stderr)  # noqa: T201
            return 1 if found else 0
        case ["stage", into]:
            stage(ROOT, Path(into))
            return 0
    print("usage: tools/docs.py check | stage FOLDER", file=sys.stderr)  # noqa: T201
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
