"""Schemas of a Schema Registry, each fetched once: for readers that must not block, and for those that may.

`SchemaFetcher.schema` never blocks; a thread that repeats `step` sends the requests. Any thread may read.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

import structlog

from forebay_schemas.bounded import BoundedMap
from forebay_schemas.clock import Clock
from forebay_schemas.errors import EnvelopeError, ForebayError
from forebay_schemas.formats.avro import ours_or
from forebay_schemas.formats.avro_schema import AvroSchema, parse_avro_schema
from forebay_schemas.formats.envelope_reader import SchemaPendingError
from forebay_schemas.formats.schema_registry import SchemaRegistry

SCHEMAS_MAX: Final = 1_000
"""The most schemas kept, and the most requested at a time."""

TYPES_MAX: Final = 50_000
"""The most text of all schemas kept: 20 MB."""

UNKNOWN_SECONDS: Final = 10.0
"""How long an unknown id is remembered before the registry is asked again."""

WAIT_SECONDS_MIN: Final = 0.5
WAIT_SECONDS_MAX: Final = 5.0
_POLL_SECONDS: Final = 0.2

_log = structlog.get_logger("forebay.schemas")


class SchemaFetcher:
    """A `SchemaSource` over a registry."""

    def __init__(self, registry: SchemaRegistry, *, clock: Clock) -> None:
        self._registry = registry
        self._clock = clock
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._pause = threading.Event()
        self._known: OrderedDict[int, AvroSchema] = OrderedDict()
        self._types = 0
        self._unknown: BoundedMap[int, tuple[float, str]] = BoundedMap(entries_max=SCHEMAS_MAX)
        self._wanted: OrderedDict[int, None] = OrderedDict()
        self._wait_seconds = 0.0
        self._again_at = 0.0
        self.trouble: str | None = None
        """Why schemas cannot be fetched now; None if they can."""

    def schema(self, schema_id: int) -> AvroSchema:
        """As `SchemaSource.schema`. Never blocks: an unknown id is queued for fetching."""
        known = self._known.get(schema_id)
        if known is not None:
            return known
        until, why = self._unknown.get(schema_id, (0.0, ""))
        if self._clock.monotonic() < until:
            fix = "register it there and replay, or correct the sender"
            raise EnvelopeError("envelope", f"is framed with schema {schema_id}, {why}", fix=fix)
        with self._lock:
            if len(self._wanted) < SCHEMAS_MAX:
                self._wanted[schema_id] = None
        self._wake.set()
        raise SchemaPendingError(f"schema {schema_id} is not known yet")

    def step(self) -> None:
        """One turn: fetches one queued schema. Blocks for 0.2 s, or for a request and one for each referenced
        schema."""
        left = self._again_at - self._clock.monotonic()
        if left > 0:
            self._pause.wait(min(left, _POLL_SECONDS))
        elif self._wake.wait(_POLL_SECONDS):
            with self._lock:
                wanted = next(iter(self._wanted), None)
                if wanted is None:
                    self._wake.clear()
                    return
            try:
                self.fetch(wanted)
            except ForebayError as error:
                self._note_failure(wanted, error)

    def fetch(self, schema_id: int) -> None:
        """Fetches one schema now. Raises the registry's ``ForebayError``."""
        known, why = None, "which its Schema Registry does not know as an Avro schema"
        try:
            texts = self._registry.schema_texts(schema_id)
            if texts is not None:
                known = ours_or(parse_avro_schema(texts.text, texts.references))
        except ValueError as error:
            why = f"which cannot be used: {error}"
        with self._lock:
            if known is None:
                self._unknown.put(schema_id, (self._clock.monotonic() + UNKNOWN_SECONDS, why))
            else:
                self._keep(schema_id, known)
            self._wanted.pop(schema_id, None)
        if self.trouble is not None:
            _log.info("the Schema Registry answers again")
        self.trouble = None
        self._wait_seconds = 0.0

    def _keep(self, schema_id: int, schema: AvroSchema) -> None:
        replaced = self._known.pop(schema_id, None)
        if replaced is not None:
            self._types -= replaced.types
        while self._known and (len(self._known) >= SCHEMAS_MAX or self._types + schema.types > TYPES_MAX):
            self._types -= self._known.popitem(last=False)[1].types
        self._known[schema_id] = schema
        self._types += schema.types

    def close(self) -> None:
        """Closes the connection to the registry."""
        self._registry.close()

    def _note_failure(self, schema_id: int, error: ForebayError) -> None:
        if self.trouble is None:
            _log.warning("records wait for a schema", schema=schema_id, error=str(error))
        self.trouble = str(error)
        self._wait_seconds = min(WAIT_SECONDS_MAX, max(WAIT_SECONDS_MIN, 2 * self._wait_seconds))
        self._again_at = self._clock.monotonic() + self._wait_seconds
        with self._lock:
            # The next one first: perhaps only this schema fails.
            self._wanted.pop(schema_id, None)
            self._wanted[schema_id] = None


class WaitingSchemas:
    """A `SchemaSource` for commands: waits for the registry, and remembers a failure for a while."""

    def __init__(self, registry: SchemaRegistry, *, clock: Clock) -> None:
        self._fetcher = SchemaFetcher(registry, clock=clock)
        self._clock = clock
        self._failure = ""
        self._again_at = 0.0

    def schema(self, schema_id: int) -> AvroSchema:
        """As `SchemaSource.schema`, but an unreachable registry is an ``EnvelopeError``, never pending."""
        try:
            return self._fetcher.schema(schema_id)
        except SchemaPendingError:
            self._fetch(schema_id)
        return self._fetcher.schema(schema_id)

    def _fetch(self, schema_id: int) -> None:
        now = self._clock.monotonic()
        try:
            if now >= self._again_at:
                self._fetcher.fetch(schema_id)
                return
        except ForebayError as error:
            self._failure = str(error)
            self._again_at = now + WAIT_SECONDS_MAX
        problem = f"is framed with schema {schema_id}, which could not be fetched: {self._failure}"
        raise EnvelopeError("envelope", problem, fix="try again when the registry answers")
