"""The envelope's ``reply``: where a request's result goes, and whether its answer is streamed there. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from forebay_schemas.contract.envelope import NO_JSON

ECHO_BYTES_MAX: Final = 4 * 1024
"""A larger reply is echoed as its partition and job alone."""

PARTITION_MAX: Final = 2**31 - 1
JOB_CHARS_MAX: Final = 200
"""A longer job is left out."""

_PARTITION_DIGITS_MAX: Final = 10
_JOB_BYTES_MAX: Final = 12 * JOB_CHARS_MAX + 2
"""A character outside the basic plane takes twelve bytes as two escapes."""


class Reply(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Where the outcome of a request is awaited.

    - ``partition``: the partition of the results and streams topics that its reader follows; None: by the key.
    - ``stream``: whether pieces of the answer are wanted while it is made.
    - ``job``: what the request belongs to, for whoever reads the result; at most ``JOB_CHARS_MAX`` characters.
    - ``echo``: the JSON for the result's ``reply``, at most ``ECHO_BYTES_MAX`` bytes.
    """

    partition: int | None
    stream: bool
    job: str | None
    echo: msgspec.Raw


class _Fields(msgspec.Struct, frozen=True, gc=False):
    partition: msgspec.Raw = NO_JSON
    stream: msgspec.Raw = NO_JSON
    job: msgspec.Raw = NO_JSON


class _Short(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    partition: int | None = None
    job: str | None = None


_decoder = msgspec.json.Decoder(_Fields)
_string_decoder = msgspec.json.Decoder(str)


def read_reply(raw: msgspec.Raw | bytes) -> Reply | None:
    """Reads an envelope's ``reply``. Never raises.

    None for anything but an object, and for a ``partition`` that is no integer from 0 to ``PARTITION_MAX``: such a
    reply belongs to somebody else and passes unread. A missing or null ``partition`` is None. Takes time and memory in
    proportion to its fields' bytes, whatever they hold.
    """
    text = bytes(raw)
    if text.lstrip(b" \t\r\n")[:1] != b"{":
        return None
    try:
        fields = _decoder.decode(text)
        partition = _partition(bytes(fields.partition))
        job = _job(bytes(fields.job))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        return None
    is_echoed = len(text) <= ECHO_BYTES_MAX and _is_json(text)
    echo = text if is_echoed else msgspec.json.encode(_Short(partition, job))
    return Reply(partition=partition, stream=bytes(fields.stream) == b"true", job=job, echo=msgspec.Raw(echo))


def _partition(text: bytes) -> int | None:
    if text == b"null":
        return None
    # isdigit() of bytes knows only ASCII, and refuses signs, fractions, exponents and true.
    if not text.isdigit() or len(text) > _PARTITION_DIGITS_MAX or int(text) > PARTITION_MAX:
        raise ValueError("no partition")
    return int(text)


def _job(text: bytes) -> str | None:
    if text[:1] != b'"' or len(text) > _JOB_BYTES_MAX:
        return None
    job = _string_decoder.decode(text)
    return job if len(job) <= JOB_CHARS_MAX else None


def _is_json(text: bytes) -> bool:
    # Decoding to raw fields skips what is in them; a result with an invalid echo could not be read.
    try:
        msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True
