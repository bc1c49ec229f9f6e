"""A slice of a real trace of LLM requests, shipped with this package. Reads that one file."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from typing import Final

_SLICE: Final = "azure_llm_2023_conv_slice.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """One request of the trace. ``at_seconds`` counts from the slice's first row, which is at 0."""

    at_seconds: float
    prompt_tokens: int
    output_tokens: int


def load_trace() -> tuple[TraceRow, ...]:
    """The slice, in order of time: 700 conversation requests of the Azure LLM inference dataset 2023."""
    text = (files("forebay_sandbox") / "data" / _SLICE).read_text(encoding="utf-8")
    raw = list(csv.DictReader(text.splitlines()))
    first = _moment(raw[0])
    return tuple(
        TraceRow(
            at_seconds=(_moment(row) - first).total_seconds(),
            prompt_tokens=int(row["ContextTokens"]),
            output_tokens=int(row["GeneratedTokens"]),
        )
        for row in raw
    )


def _moment(row: dict[str, str]) -> datetime:
    return datetime.fromisoformat(row["TIMESTAMP"][:26])
