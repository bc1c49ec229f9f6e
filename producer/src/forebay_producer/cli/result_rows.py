"""Prints results, as rows or as JSON."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from forebay_producer.cli.common import to_json
from forebay_producer.cli.tables import Rows
from forebay_schemas.contract.results import Result
from forebay_schemas.runtime.output import Output

_WIDTHS: Final = {
    "request_id": 36,
    "status": 9,
    "reason": 23,
    "tier": 4,
    "attempt": 7,
    "replay_count": 12,
    "queue_seconds": 13,
    "service_seconds": 15,
    "output_tokens": 13,
}

_LEAVE_OUT: Final = (
    *("replay_count", "output_tokens", "queue_seconds", "attempt", "service_seconds"),
    *("detail", "tier"),
)

_DETAIL_CHARS_MAX: Final = 100


class ResultRows:
    """Prints results: as JSON with all their fields, or as a row whose last column is the error or the body's start.

    ``bodies``: False leaves bodies out of both.
    """

    def __init__(self, output: Output, *, bodies: bool) -> None:
        self._output = output
        self._bodies = bodies
        self._rows = Rows(output, widths=_WIDTHS | {"detail": 0}, leave_out=_LEAVE_OUT)

    def add(self, result: Result) -> None:
        """Prints one result."""
        record: dict[str, Any] = msgspec.to_builtins(result)
        if not self._bodies:
            del record["body"]
        if self._output is Output.TABLE:
            record["detail"] = self._detail(result)
        self._rows.add(record)

    def flush(self) -> None:
        """Shows what was added."""
        self._rows.flush()

    def _detail(self, result: Result) -> str:
        if result.error is not None:
            text = result.error
        elif self._bodies and result.body is not None:
            text = to_json(result.body)
        else:
            return ""
        return text if len(text) <= _DETAIL_CHARS_MAX else text[:_DETAIL_CHARS_MAX] + "..."
