"""The one change to a payload: a streamed chat or completion that asks for no usage is made to. Pure."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from forebay_schemas.bounded import BoundedMap
from forebay_worker.answers.endpoints import Shape

REFUSED_SECONDS: Final = 600.0
"""An engine that refuses to be asked is left alone for as long."""

REFUSALS: Final = frozenset({400, 422})
"""422 is what servers with pydantic's models answer for a field that they do not know."""

_MEMBER: Final = re.compile(rb'"stream_options"[ \t\r\n]*:[ \t\r\n]*')
_ASKED: Final = b'"stream_options":{"include_usage":true}'
_ABSENT: Final = msgspec.Raw(b"")
_PLACES_MAX: Final = 16
_ENDPOINTS_MAX: Final = 1_000


class _Given(msgspec.Struct, gc=False):
    stream: msgspec.Raw = _ABSENT
    stream_options: msgspec.Raw = _ABSENT


class _Options(msgspec.Struct, gc=False):
    include_usage: msgspec.Raw = _ABSENT


_given_decoder = msgspec.json.Decoder(_Given)
_options_decoder = msgspec.json.Decoder(_Options)


def with_usage(payload: bytes, shape: Shape) -> bytes | None:
    """The payload with ``stream_options.include_usage``, all else byte for byte as it came; None where nothing is to be
    changed: no stream, another API, a client that says itself whether it wants usage, or no valid JSON."""
    if shape not in (Shape.CHAT, Shape.COMPLETION) or b'"stream"' not in payload:
        return None
    try:
        given = _given_decoder.decode(payload)
        if bytes(given.stream) != b"true":
            return None
        options = bytes(given.stream_options)
        if not options:
            rest = payload.lstrip()[1:]
            return b"{%b,%b" % (_ASKED, rest)
        changed = _with_option(options)
        return None if changed is None else _replaced(payload, options, changed)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None  # the engine says what is wrong with it


def _with_option(options: bytes) -> bytes | None:
    if options == b"null":
        return b'{"include_usage":true}'
    if not options.startswith(b"{") or bytes(_options_decoder.decode(options).include_usage):
        return None
    rest = options[1:].lstrip()
    return b'{"include_usage":true%b%b' % (b"" if rest.startswith(b"}") else b",", rest)


def _replaced(payload: bytes, options: bytes, changed: bytes) -> bytes | None:
    """The payload with the top-level member changed. The same bytes may stand in a text or deeper, so each place is
    tried, and the one kept after which the top-level member reads as it should."""
    for count, member in enumerate(_MEMBER.finditer(payload)):
        if count >= _PLACES_MAX:
            break
        start = member.end()
        if payload.startswith(options, start):
            tried = b"%b%b%b" % (payload[:start], changed, payload[start + len(options) :])
            try:
                if bytes(_given_decoder.decode(tried).stream_options) == changed:
                    return tried
            except msgspec.MsgspecError:
                continue  # it stood in a text
    return None


class UsageRefusals:
    """Endpoints that refused to be asked for usage, by URL, until when. Times: the event loop's."""

    def __init__(self) -> None:
        self._until: BoundedMap[str, float] = BoundedMap(entries_max=_ENDPOINTS_MAX)

    def is_refused(self, url: str, now: float) -> bool:
        return self._until.get(url, 0.0) > now

    def refused(self, url: str, now: float) -> None:
        """It took without the wish what it had refused with it."""
        self._until.put(url, now + REFUSED_SECONDS)
