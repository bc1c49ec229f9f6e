"""One dead letter: its key, value and headers. Pure; never raises, whatever the record holds."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import msgspec

from forebay_schemas.contract import headers as h
from forebay_schemas.contract.envelope import NO_JSON, Request, payload_hints
from forebay_schemas.contract.envelope_problems import NAME_CHARS_MAX, is_request_id
from forebay_schemas.contract.headers import Header, History, Record, read_history, record_headers
from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_schemas.contract.topics import RETRY_DELAYS_SECONDS, Pool
from forebay_schemas.errors import EnvelopeError
from forebay_schemas.formats.envelope_reader import EnvelopeReader, NoSchemas

SAMPLES_MAX: Final = 3

_JSON_AND_OUR_AVRO: Final = EnvelopeReader(NoSchemas())


class _Model(msgspec.Struct, frozen=True, gc=False):
    model: str | None = None


class _Said(msgspec.Struct, frozen=True, gc=False):
    """The fields read of many letters. Skipping all others is several times as fast."""

    request_id: str | None = None
    biz_type: str | None = None
    tenant: str | None = None
    payload: _Model | None = None


class _RawModel(msgspec.Struct, frozen=True, gc=False):
    model: msgspec.Raw = NO_JSON


class _RawSaid(msgspec.Struct, frozen=True, gc=False):
    """The same for a value with other types in these fields, which may be as large as the value."""

    request_id: msgspec.Raw = NO_JSON
    biz_type: msgspec.Raw = NO_JSON
    tenant: msgspec.Raw = NO_JSON
    payload: msgspec.Raw = NO_JSON


_said_decoder: Final = msgspec.json.Decoder(_Said)
_raw_said_decoder: Final = msgspec.json.Decoder(_RawSaid)
_raw_model_decoder: Final = msgspec.json.Decoder(_RawModel)


class Letter:
    """One dead letter. Decodes each part on first use, and never raises.

    Its attributes are read even if its value is not a valid envelope, and cut to `NAME_CHARS_MAX` characters, as the
    record may come from anyone.
    """

    __slots__ = (
        "_headers",
        "_history",
        "_last",
        "_opened",
        "_record",
        "_said",
        "_tiers",
        "at_ms",
        "envelopes",
        "offset",
        "partition",
    )

    def __init__(self, record: Record, *, tiers: Mapping[bytes | None, Tier], envelopes: EnvelopeReader) -> None:
        self._record = record
        self.envelopes = envelopes
        """Decodes the value."""
        self._tiers = tiers
        self.partition: int = record.partition()
        self.offset: int = record.offset()
        self.at_ms: int = record.timestamp()[1]
        """The record's timestamp, epoch milliseconds: the time of death."""
        self._headers: list[Header] | None = None
        self._last: dict[str, bytes | None] | None = None
        self._history: History | None = None
        self._said: _Said | None = None
        self._opened: Request | EnvelopeError | None = None

    @property
    def key(self) -> bytes | None:
        """The key's bytes."""
        key: bytes | None = self._record.key()
        return key

    @property
    def value(self) -> bytes | None:
        """The value's bytes."""
        value: bytes | None = self._record.value()
        return value

    @property
    def value_bytes(self) -> int:
        """The value's size."""
        return len(self._record.value() or b"")

    @property
    def headers(self) -> list[Header]:
        """All headers, unchanged."""
        if self._headers is None:
            self._headers = record_headers(self._record)
        return self._headers

    @property
    def history(self) -> History:
        """The history in its headers."""
        if self._history is None:
            self._history = read_history(self.headers)
        return self._history

    @property
    def request(self) -> Request | None:
        """The request; None if the value is not an envelope. `problem` then holds the error."""
        opened = self._open()
        return opened if isinstance(opened, Request) else None

    @property
    def problem(self) -> EnvelopeError | None:
        """The error of a value that is not an envelope."""
        opened = self._open()
        return None if isinstance(opened, Request) else opened

    def _open(self) -> Request | EnvelopeError:
        if self._opened is None:
            try:
                self._opened = self.envelopes.read(self.value, content_type=self.history.content_type)
            except EnvelopeError as error:
                self._opened = error
        return self._opened

    @property
    def place(self) -> str:
        """Its place, as the commands print it: partition:offset."""
        return f"{self.partition}:{self.offset}"

    @property
    def request_id(self) -> str | None:
        """The envelope's id, if readable."""
        found = self._say().request_id
        return found if isinstance(found, str) and is_request_id(found) else None

    @property
    def name(self) -> str:
        """The name shown to users: the request id, else a key that can be one, else the place."""
        return self.request_id or self._key_text or self.place

    @property
    def _key_text(self) -> str | None:
        text = (self.key or b"").decode(errors="replace")
        return text if is_request_id(text) and "\ufffd" not in text else None

    def is_called(self, names: frozenset[str]) -> set[str]:
        """Those of ``names`` that are its request id, key or place."""
        own = (self.request_id, self._key_text, self.place)
        return {name for name in own if name is not None and name in names}

    def header(self, name: str) -> str | None:
        """The last header with this name, as text."""
        value = self._header_values().get(name)
        return None if value is None else value.decode(errors="replace")

    def _header_values(self) -> dict[str, bytes | None]:
        if self._last is None:
            self._last = dict(self.headers)
        return self._last

    @property
    def tier(self) -> Tier | None:
        """The tier of the topic it died in; None if the pool has no such topic."""
        return self._tiers.get(self._header_values().get(h.DLT_ORIGINAL_TOPIC))

    @property
    def reason(self) -> str | None:
        """The reason code it died of."""
        return _name(self.header(h.REASON))

    @property
    def error_class(self) -> str | None:
        """The class of the error, from Spring's header."""
        return _name(self.header(h.DLT_EXCEPTION_FQCN))

    @property
    def error(self) -> str | None:
        """The error message."""
        return self.header(h.DLT_EXCEPTION_MESSAGE)

    @property
    def replay_count(self) -> int:
        """The number of its replays."""
        return self.history.replay_count if h.REPLAY_COUNT in self._header_values() else 0

    @property
    def tenant(self) -> str | None:
        """The tenant, from the envelope or else the header."""
        return _name(self._say().tenant) or (self.history.tenant if h.TENANT in self._header_values() else None)

    @property
    def biz_type(self) -> str | None:
        """The request's biz_type."""
        return _name(self._say().biz_type)

    @property
    def model(self) -> str | None:
        """The model named in the payload."""
        said = self._say()
        return None if said.payload is None else _name(said.payload.model)

    def _say(self) -> _Said:
        if self._said is None:
            self._said = self._read()
        return self._said

    def _read(self) -> _Said:
        value = self.value or b""
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            try:
                return _said_decoder.decode(value)
            except msgspec.ValidationError:
                return _said_loosely(value)
        opened = self._open()
        if not isinstance(opened, Request):
            return _Said(opened.request_id)
        return _Said(opened.request_id, opened.biz_type, opened.tenant, _Model(payload_hints(opened).model))


def _said_loosely(value: bytes) -> _Said:
    said = _raw_said_decoder.decode(value)
    payload = _Model()
    if bytes(memoryview(said.payload)[:1]) == b"{":
        payload = _Model(_text(_raw_model_decoder.decode(said.payload).model))
    return _Said(_text(said.request_id), _text(said.biz_type), _text(said.tenant), payload)


def _text(raw: msgspec.Raw) -> str | None:
    return msgspec.json.decode(raw, type=str) if bytes(memoryview(raw)[:1]) == b'"' else None


def _name(found: object) -> str | None:
    return found[:NAME_CHARS_MAX] if isinstance(found, str) and found else None


class LetterDecoder:
    """Decodes the records of a pool's dead-letter topic."""

    def __init__(self, pool: Pool, *, envelopes: EnvelopeReader = _JSON_AND_OUR_AVRO) -> None:
        """``envelopes`` decodes the values; the default cannot read values framed for a Schema Registry."""
        self._envelopes = envelopes
        tiers = {pool.requests(tier): tier for tier in TIERS}
        tiers |= {pool.retry(tier, delay): tier for tier in TIERS for delay in RETRY_DELAYS_SECONDS}
        self._tiers: dict[bytes | None, Tier] = {topic.encode(): tier for topic, tier in tiers.items()}

    def decode(self, record: Record) -> Letter:
        """Never raises, whatever the record holds."""
        return Letter(record, tiers=self._tiers, envelopes=self._envelopes)
