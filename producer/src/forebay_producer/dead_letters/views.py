"""One dead letter as a JSON object, and as lines of text. Pure."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

import msgspec

from forebay_producer.dead_letters.letter import Letter
from forebay_producer.dead_letters.state import State
from forebay_schemas.contract import headers as h
from forebay_schemas.contract.reasons import REASONS_BY_CODE
from forebay_schemas.runtime.terminal import printable


def view_of(letter: Letter, *, state: State, deeds: list[dict[str, Any]], payload: bool) -> dict[str, Any]:
    """All of the letter. The payload, and a value that is not an envelope, are included only with ``payload``.
    ``deeds``: what was done with it, from `history.deeds_of`."""
    reason = REASONS_BY_CODE.get(letter.reason or "")
    view: dict[str, Any] = {
        "request_id": letter.request_id,
        "place": letter.place,
        "at": letter.at_ms,
        "state": state.value,
        "replayed": state is State.REPLAYED,
        "reason": letter.reason,
        "meaning": None if reason is None else reason.meaning,
        "action": None if reason is None else reason.action,
        "error": letter.header(h.DLT_EXCEPTION_MESSAGE),
        "error_class": letter.header(h.DLT_EXCEPTION_FQCN),
        "attempt": letter.history.attempt,
        "replay_count": letter.history.replay_count,
        "first_enqueued_at": letter.history.first_enqueued_at,
        "worker": letter.header(h.WORKER),
        "tier": letter.tier,
        "tenant": letter.tenant,
        "original": {
            "topic": letter.header(h.DLT_ORIGINAL_TOPIC),
            "partition": letter.header(h.DLT_ORIGINAL_PARTITION),
            "offset": letter.header(h.DLT_ORIGINAL_OFFSET),
            "timestamp": letter.header(h.DLT_ORIGINAL_TIMESTAMP),
            "group": letter.header(h.DLT_ORIGINAL_CONSUMER_GROUP),
        },
        "history": deeds,
        "key": bytes_shown(letter.key),
        "value_bytes": None if letter.value is None else len(letter.value),
        "headers": [[name, bytes_shown(value)] for name, value in letter.headers],
    }
    if letter.request is not None and letter.value is not None:
        fields = letter.envelopes.fields(letter.value)
        view["envelope"] = {name: item for name, item in fields.items() if payload or name != "payload"}
    else:
        view["problem"] = str(letter.problem)
        if payload:
            view["value"] = bytes_shown(letter.value)
    return view


def view_text(view: dict[str, Any]) -> str:
    """The same as lines ``name value``. Times are RFC 3339 in UTC; text that is not plain is escaped."""
    lines: list[tuple[str, str]] = []
    for name, item in view.items():
        if name == "headers":
            lines += [(f"header {printable(header)}", _line(value)) for header, value in item]
        elif name == "history":
            lines += [("history", _deed_text(deed)) for deed in item]
        elif name in ("envelope", "original"):
            lines += [
                (f"{name} {printable(key)}", _time(value) if (name, key) == ("original", "timestamp") else _line(value))
                for key, value in item.items()
            ]
        else:
            lines.append((name, _time(item) if name in ("at", "first_enqueued_at") else _line(item)))
    width = max(len(name) for name, _ in lines)
    return "".join(f"{name.ljust(width)}  {text}\n" for name, text in lines)


def bytes_shown(value: bytes | None) -> str | dict[str, str] | None:
    """Text if UTF-8, else ``{"base64": ...}``; the bytes can be recovered from both."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _deed_text(deed: dict[str, Any]) -> str:
    text = f"{deed['action']}ed {rfc3339(deed['at'])} by {deed['by']}"
    return printable(text if "to" not in deed else f"{text} to {deed['to']}")


def rfc3339(epoch_ms: int) -> str:
    """The time in UTC, with milliseconds only if not zero: 2026-01-31T09:00:00Z."""
    timespec = "milliseconds" if epoch_ms % 1000 else "seconds"
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def _time(epoch_ms: object) -> str:
    """A header of an untrusted record may hold an invalid time."""
    try:
        return rfc3339(int(str(epoch_ms)))
    except (ValueError, OverflowError, OSError):
        return _line(epoch_ms)


def _line(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, msgspec.Raw):
        return printable(bytes(value).decode(errors="replace"))
    if isinstance(value, dict):
        return f"base64 {value['base64']}"
    return printable(str(value))
