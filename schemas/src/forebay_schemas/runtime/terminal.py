"""Makes untrusted text safe for a terminal. Pure: prints nothing."""

from __future__ import annotations

from typing import Any


def printable(text: str) -> str:
    """The text with everything unprintable escaped, line breaks included: untrusted text must not control a
    terminal."""
    return text if text.isprintable() else "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def printable_lines(text: str) -> str:
    """The same for text of several lines; line breaks stay."""
    return "\n".join(map(printable, text.split("\n")))


def printable_json(text: str) -> str:
    """JSON with all that is not printable as \\uXXXX, line breaks between documents left: it means the same."""
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    return "".join(one if one == "\n" or one.isprintable() else _json_escape(one) for one in text)


def _json_escape(one: str) -> str:
    units = one.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))


def printable_document(document: Any) -> Any:
    """A JSON document with each text in it made printable, keys included."""
    if isinstance(document, str):
        return printable(document)
    if isinstance(document, dict):
        return {printable(str(key)): printable_document(value) for key, value in document.items()}
    return [printable_document(value) for value in document] if isinstance(document, list | tuple) else document
