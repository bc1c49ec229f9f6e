"""The key that a backend asks for, from a setting or from a file that may change. Reads that file; never shows it."""

from __future__ import annotations

from typing import Final

import structlog

from forebay_schemas.properties import from_file, is_from_file

LOOK_SECONDS: Final = 10.0
"""Between two readings of the file, which has a few dozen bytes."""

log = structlog.get_logger("forebay.backend")


class ApiKey:
    """``text``: the key itself, or ``${directory:/a/folder:file}``. Times are monotonic seconds."""

    def __init__(self, text: str, *, now: float) -> None:
        """Raises ``OSError`` and ``ValueError`` for a file that cannot be read."""
        self._text = text
        self._value = from_file(text)
        self._look_at = now + LOOK_SECONDS if is_from_file(text) else float("inf")

    def value(self, now: float) -> str:
        """The key, as its file had it a few seconds ago at most."""
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self._read()
        return self._value

    def has_another(self, refused: str) -> bool:
        """Whether there is another key than the one that was refused; reads the file for it."""
        if self._value == refused and is_from_file(self._text):
            self._read()
        return self._value != refused

    def _read(self) -> None:
        try:
            value = from_file(self._text)
        except (OSError, ValueError) as error:
            # While it is put in place; the key that was read last may still be good.
            why = error.strerror if isinstance(error, OSError) else str(error)
            log.warning("the file of FOREBAY_BACKEND_API_KEY cannot be read; the last key goes on", error=why)
            return
        if value != self._value:
            self._value = value
            log.info("the backend's key changed")
