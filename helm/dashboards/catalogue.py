"""The list of Forebay's dashboards. Writes their files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dashboards.dead_letters import DEAD_LETTERS
from dashboards.model import Dashboard, as_json
from dashboards.overview import OVERVIEW
from dashboards.worker import WORKER_PACING

DASHBOARDS: Final[tuple[Dashboard, ...]] = (OVERVIEW, WORKER_PACING, DEAD_LETTERS)


def write_dashboards(folder: Path) -> list[Path]:
    """Writes each dashboard to a file in ``folder``; returns the files."""
    paths = []
    for dashboard in DASHBOARDS:
        path = folder / f"{dashboard.name}.json"
        path.write_text(as_json(dashboard), encoding="utf-8")
        paths.append(path)
    return paths
