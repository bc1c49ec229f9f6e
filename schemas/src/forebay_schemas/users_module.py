"""Imports a user's module by its name, as `python -m` would find it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType


def import_users_module(name: str) -> ModuleType:
    """The module; the current folder is searched too. Raises whatever the import raises."""
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(name)
