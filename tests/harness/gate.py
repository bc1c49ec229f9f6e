"""Requests that run until a test lets them end, by way of a folder that `harness.handlers` looks into. Touches files.

With it a test says *when* something runs instead of guessing how long it takes.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

HANDLER = "harness.handlers:obey"


class Gate:
    """``folder`` is shared with the workers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def payload(self, name: str = "all", *, do: str = "wait_at_gate") -> dict[str, Any]:
        """For a request that ends, or kills its worker, once this gate is open."""
        return {"do": do, "folder": str(self._folder), "gate": name}

    def noted(self) -> dict[str, Any]:
        """For a request that ends at once and is counted in `starts`."""
        return {"do": "note", "folder": str(self._folder)}

    def open(self, name: str = "all") -> None:
        """Releases all requests that wait at it, now and later."""
        (self._folder / f"open-{name}").touch()

    def shut(self, name: str = "all") -> None:
        """Holds what comes from now on."""
        (self._folder / f"open-{name}").unlink()

    def starts(self) -> Counter[str]:
        """Number of starts of each request, by whatever worker."""
        log = self._folder / "starts"
        return Counter(log.read_text(encoding="utf-8").split()) if log.exists() else Counter()
