"""Checks that no Python file of the workspace is longer than 400 lines. Reads the files; prints those that are.

python tools/lengths.py     fails for a file that is longer
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

LINES_MAX: Final = 400
FOLDERS: Final = ("schemas/src", "producer/src", "worker/src", "sandbox/src", "helm", "tests", "benchmarks", "tools")


def too_long(root: Path) -> Iterator[str]:
    """A sentence for each file that has more lines than it may."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            lines = len(path.read_text(encoding="utf-8").splitlines())
            if lines > LINES_MAX:
                yield f"{name} has {lines} lines; split it by subject, so that no file has more than {LINES_MAX}"


def main() -> int:
    """Prints what is too long; returns the exit code."""
    found = [*too_long(Path(__file__).parents[1])]
    sys.stderr.writelines(f"{sentence}\n" for sentence in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
