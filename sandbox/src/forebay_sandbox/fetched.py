"""Folders in the user's cache that are fetched or built once. Touches the disk; the caller passes what fetches."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

from forebay_sandbox.files import locked

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_MANIFEST = "manifest.json"


def fetched(folder: Path, fetch: Callable[[Path], Path], *, wait_seconds: float) -> Path:
    """The folder, complete. ``fetch`` brings its content into a folder within the one that it is given.

    Safe to call from several processes at once: one fetches, the others wait up to ``wait_seconds`` for it.
    """
    if complete(folder):
        return folder
    with locked(folder.with_name(f"{folder.name}.lock"), wait_seconds=wait_seconds):
        if complete(folder):
            return folder
        # The lock is held, so files of a killed run belong to nobody.
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        content = fetch(partial)
        files = [path for path in sorted(content.rglob("*")) if path.is_file()]
        manifest = {str(path.relative_to(content)): path.stat().st_size for path in files}
        (content / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        content.rename(folder)
        shutil.rmtree(partial)
    return folder


def complete(folder: Path) -> bool:
    """Whether the manifest exists, which is written last, and every file in it has its size."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        return bool(manifest) and all((folder / name).stat().st_size == size for name, size in manifest.items())
    except (OSError, ValueError, AttributeError):
        return False
