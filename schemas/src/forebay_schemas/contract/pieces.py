"""Pieces of streamed answers, on a pool's streams topic: what an engine has sent so far of an answer. Pure.

The result stays the truth. A reader shows pieces only while they are in order and without a gap.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from forebay_schemas.errors import ForebayError

PIECE_BYTES_MAX: Final = 1024 * 1024
"""The largest record value. An event that is larger comes with the result alone."""

_NUMBER_MAX: Final = 2**53


class StreamFault(StrEnum):
    """Why a run sends no more pieces. A later version may add to these."""

    BROKEN = "stream_broken"
    """The engine's stream broke, or the run failed; a retry may follow."""

    DIFFERS = "text_differs"
    """A retry's text does not begin with what was sent before."""

    TOO_LARGE = "event_too_large"
    """An event does not fit into a piece."""


class StreamEvent(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One server-sent event of an engine: its JSON data, unchanged, and its name if it has one (/v1/responses)."""

    data: msgspec.Raw
    event: str | None = None


class Piece(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Some events of one execution of a request. The record's key is the request id.

    - ``attempt``: as in the result. ``run``: made anew for each execution: after a crash one attempt may run twice, and
      pieces of two runs do not fit together. ``number``: from 0, one more with each piece of a run.
    - ``events``: in the engine's order, without ``[DONE]``. Empty only with ``last`` or ``error``.
    - ``last``: the run's stream has ended, completely; the result follows.
    - ``error``: the run sends no more pieces, and why: a `StreamFault`. Whoever showed some of its text waits for the
      result.
    - ``continues``: (run, number) of the piece that this one follows directly, on the first piece of a retry that goes
      on where a former run stopped. Without it a run begins its text anew, and a reader that has shown text of another
      run waits for the result.
    - ``replay_count``: as in the result.
    """

    request_id: str
    attempt: int
    run: str = ""
    number: int
    events: list[StreamEvent] = []
    last: bool = False
    error: str | None = None
    continues: tuple[str, int] | None = None
    replay_count: int = 0

    def __post_init__(self) -> None:
        if not (0 < self.attempt <= _NUMBER_MAX and 0 <= self.number <= _NUMBER_MAX):
            raise ValueError("attempt or number is out of range")


class PieceError(ForebayError, ValueError):
    """Bytes that are no piece, or a piece that cannot be written: too large, or no JSON."""

    reason = "undecodable"


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Piece)


def encode_piece(piece: Piece) -> bytes:
    """The record value. The events' data goes in unchanged and unchecked.

    Raises ``PieceError`` above ``PIECE_BYTES_MAX``.
    """
    try:
        value = _encoder.encode(piece)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise PieceError(f"cannot be written as a piece: {error}") from None
    if len(value) > PIECE_BYTES_MAX:
        raise PieceError(f"a piece of {len(value):,} bytes; the most is {PIECE_BYTES_MAX:,}")
    return value


def decode_piece(value: bytes | None) -> Piece:
    """The piece in a record value; fields that this version does not know are left out.

    Raises ``PieceError``, and nothing else, whatever the value is.
    """
    if value is None:
        raise PieceError("not a piece: a null value")
    if len(value) > PIECE_BYTES_MAX:
        raise PieceError(f"not a piece: {len(value):,} bytes; the most is {PIECE_BYTES_MAX:,}")
    try:
        return _decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PieceError(f"not a piece: {error}") from None
