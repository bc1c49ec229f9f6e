"""The result record: what the results topic carries for every request that ended. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from forebay_schemas.errors import ForebayError
from forebay_schemas.reasons import Status

ERROR_CHARS_MAX = 2_000
"""A result's error text is cut to this length."""


class Result(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """How one request ended. The record's key is the request id.

    ``queue_seconds`` runs from the first enqueue to the last dispatch, ``service_seconds`` is the last execution.
    ``finished_at`` is epoch milliseconds by the worker's clock. ``body`` is the backend's JSON answer, else None.
    """

    request_id: str
    status: Status
    reason: str
    tier: str | None = None
    attempt: int = 1
    worker: str | None = None
    queue_seconds: float | None = None
    service_seconds: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    finished_at: int
    error: str | None = None
    body: Any = None


class ResultError(ForebayError):
    """Bytes that are not a result."""

    reason = "undecodable"


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Result)


def encode_result(result: Result) -> bytes:
    """The record value. ``body`` may be ``msgspec.Raw``: JSON bytes that go in as they are."""
    return _encoder.encode(result)


def decode_result(value: bytes) -> Result:
    """The result in a record value; fields that this version does not know are left out. Raises ``ResultError``."""
    try:
        return _decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ResultError(f"not a result: {error}") from None
