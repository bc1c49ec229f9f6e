"""`python -m dashboards FOLDER`, run in this package's parent folder: writes the dashboards' files into that folder."""

from __future__ import annotations

import sys
from pathlib import Path

from dashboards.catalogue import write_dashboards

if __name__ == "__main__":
    for path in write_dashboards(Path(sys.argv[1])):
        print(path)  # noqa: T201
