"""How commands print, as their option --output says."""

from __future__ import annotations

from enum import StrEnum


class Output(StrEnum):
    """For people, or as JSON."""

    TABLE = "table"
    JSON = "json"
