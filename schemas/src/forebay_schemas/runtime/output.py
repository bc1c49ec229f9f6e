"""The values of the commands' option --output."""

from __future__ import annotations

from enum import StrEnum


class Output(StrEnum):
    """For people, or as JSON."""

    TABLE = "table"
    JSON = "json"
