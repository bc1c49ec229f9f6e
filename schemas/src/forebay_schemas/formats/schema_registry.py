"""A Schema Registry (Confluent's API, which others implement too): schemas by id, ids of schemas, a check. Each call is
an HTTP request on the caller's thread and takes up to `CALL_SECONDS_MAX` per URL."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

from forebay_schemas.errors import ExitCode, ForebayError, UsageError
from forebay_schemas.formats.avro import latest_schema
from forebay_schemas.properties import property_lines

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError

CALL_SECONDS_MAX: Final = 10.0

REFERENCES_MAX: Final = 32
"""The most schemas that one may refer to, directly or not."""

REFERENCES_DEPTH_MAX: Final = 16

_NAMES: Final = re.compile(
    r"ssl\.(ca|certificate|key)\.location|ssl\.key\.password|basic\.auth\.user\.info|bearer\.auth\..+|proxy"
)
_SETTING: Final = "FOREBAY_SCHEMA_REGISTRY_PROPERTIES"

_SUBJECT_NOT_FOUND: Final = 40401
_VERSION_NOT_FOUND: Final = 40402
_SCHEMA_NOT_FOUND: Final = 40403

_Answer = TypeVar("_Answer")


class SchemaRegistryUnreachableError(ForebayError):
    """The registry did not answer, or not with its own answer."""

    reason = "schema_registry_unreachable"
    exit_code = ExitCode.UNREACHABLE


class SchemaRegistryRefusedError(ForebayError):
    """The registry refused: ``code`` is its own error code, 0 without one."""

    reason = "schema_registry_refused"

    def __init__(self, message: str, *, code: int) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class SchemaTexts:
    """A schema as JSON, and the schemas it refers to, each behind those that it needs."""

    text: str
    references: tuple[str, ...] = ()


def check_registry_url(text: str) -> str:
    """The same URLs without spaces. Raises ``ValueError``, without a field's name, for anything but a list of http
    URLs."""
    urls = [url.strip() for url in text.split(",")]
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("that is no http URL")
        if parts.username is not None:
            raise ValueError("credentials belong into FOREBAY_SCHEMA_REGISTRY_PROPERTIES, as basic.auth.user.info")
    return ",".join(urls)


def read_registry_properties(path: Path) -> dict[str, str]:
    """TLS, credentials and proxy by the names of confluent-kafka's client. Raises ``UsageError``; shows no value."""

    def refuse(problem: str, fix: str) -> UsageError:
        return UsageError(_SETTING, problem, fix=fix)

    properties = {}
    for where, name, value in property_lines(path, refuse):
        if not _NAMES.fullmatch(name):
            known = (
                "ssl.ca.location, ssl.certificate.location, ssl.key.location, ssl.key.password, basic.auth.user.info"
            )
            raise refuse(f"{where} sets {name}, which is not known", f"use {known}, bearer.auth.* or proxy")
        properties[name] = value
    return properties


class SchemaRegistry:
    """One registry. Thread-safe. Connects on first use; rereads the properties file after a failure."""

    def __init__(self, url: str, *, properties: Path | None) -> None:
        """``url``: one or more, comma-separated, tried in turn."""
        self.url = url
        self._properties = properties
        self._lock = threading.Lock()
        self._client: SchemaRegistryClient | None = None

    def schema_texts(self, schema_id: int) -> SchemaTexts | None:
        """The Avro schema of this id with all that it refers to; None when the registry knows none of that id.

        A call for each of them, `REFERENCES_MAX` at most. Raises ``ValueError``, saying why, when what it refers to
        cannot be had; ``SchemaRegistryUnreachableError``, ``SchemaRegistryRefusedError``, ``UsageError``.
        """
        try:
            found = self._call(f"asking for schema {schema_id}", lambda client: client.get_schema(schema_id))
        except SchemaRegistryRefusedError as error:
            # A 404 without the registry's own code comes from a URL that is not the registry's.
            if error.code == _SCHEMA_NOT_FOUND:
                return None
            raise
        if not _is_avro(found):
            return None
        references: dict[tuple[str, int], str | None] = {}
        self._fetch_references(found, references, depth=0)
        return SchemaTexts(found.schema_str or "", tuple(text for text in references.values() if text is not None))

    def _fetch_references(self, schema: Schema, found: dict[tuple[str, int], str | None], *, depth: int) -> None:
        """Adds the referenced schemas, by subject and version, each behind those that it needs."""
        if depth > REFERENCES_DEPTH_MAX:
            raise ValueError(f"its references are nested deeper than {REFERENCES_DEPTH_MAX}")
        for reference in schema.references or ():
            subject, version = reference.subject, reference.version
            if subject is None or version is None:
                raise ValueError("it refers to a schema without saying which")
            key = (subject, version)
            if key in found:
                continue  # fetched before, or one that refers to itself: its types are known by then, or never
            if len(found) >= REFERENCES_MAX:
                raise ValueError(f"it refers to more than {REFERENCES_MAX} other schemas")
            found[key] = None
            named = self._version_of(subject, version)
            self._fetch_references(named, found, depth=depth + 1)
            # Behind what it needs: a dict keeps the order of its keys.
            del found[key]
            found[key] = named.schema_str or ""

    def _version_of(self, subject: str, version: int) -> Schema:
        name = f"version {version} of {subject}"
        try:
            # Deleted ones too: a schema that refers to one is still in use.
            found = self._call(f"asking for {name}", lambda client: client.get_version(subject, version, True))
        except SchemaRegistryRefusedError as error:
            if error.code not in (_SUBJECT_NOT_FOUND, _VERSION_NOT_FOUND, _SCHEMA_NOT_FOUND):
                raise
            raise ValueError(f"it refers to {name}, which its Schema Registry does not know"[:300]) from None
        if not _is_avro(found.schema):
            raise ValueError(f"it refers to {name}, which is no Avro"[:300])
        return found.schema

    def id_of_latest(self, topic: str) -> int:
        """The id of the envelope's schema under the subject of the topic's values; registered if it is not there yet.

        Asking first needs no right to write where somebody else has registered it. Raises as `schema_texts`.
        """
        from confluent_kafka.schema_registry import Schema

        subject = f"{topic}-value"
        schema = Schema(latest_schema().text, "AVRO")
        doing = f"looking for the envelope's schema under {subject}"
        try:
            found = self._call(doing, lambda client: client.lookup_schema(subject, schema))
        except SchemaRegistryRefusedError as error:
            if error.code not in (_SUBJECT_NOT_FOUND, _SCHEMA_NOT_FOUND):
                raise
        else:
            if found.schema_id is not None:
                return found.schema_id
        doing = f"registering the envelope's schema under {subject}"
        return self._call(doing, lambda client: client.register_schema(subject, schema))

    def check(self) -> str:
        """Makes a real call, with the credentials. What was found, in words.

        Raises ``SchemaRegistryUnreachableError``, ``SchemaRegistryRefusedError``, ``UsageError``.
        """
        subjects = self._call("listing its subjects", lambda client: client.get_subjects())
        return f"{self.url} answers and has {len(subjects)} subjects"

    def close(self) -> None:
        """Closes the connection. The next call opens another."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _call(self, doing: str, ask: Callable[[SchemaRegistryClient], _Answer]) -> _Answer:
        from confluent_kafka.schema_registry import SchemaRegistryError

        client = self._connected()
        try:
            return ask(client)
        except SchemaRegistryError as error:
            raise self._refused(doing, error) from None
        except Exception as error:  # noqa: BLE001 - httpx's, OAuth's, and what an answer leads to that is no registry's
            self.close()
            why = str(error) or type(error).__name__
            raise SchemaRegistryUnreachableError(
                f"no Schema Registry answered at {self.url} while {doing} ({why}); "
                "check FOREBAY_SCHEMA_REGISTRY_URL and that it runs"
            ) from None

    def _refused(self, doing: str, error: SchemaRegistryError) -> ForebayError:
        status, code = error.http_status_code, error.error_code or 0
        said = f"the Schema Registry at {self.url} refused while {doing}: HTTP {status}, {error.error_message}"[:500]
        if status in (401, 403):
            self.close()
            fix = f"check the credentials in {_SETTING}, and what they may do"
        elif status == 409:
            fix = "what lies there is not compatible with it: it is no schema of the envelope, or a newer one"
        elif status == 404:
            fix = "check FOREBAY_SCHEMA_REGISTRY_URL: it may need a path, /apis/ccompat/v7 for Apicurio say"
        elif status >= 500 or status in (408, 429):
            return SchemaRegistryUnreachableError(f"{said}; try again later")
        else:
            fix = "see what it says"
        return SchemaRegistryRefusedError(f"{said}; {fix}", code=code)

    def _connected(self) -> SchemaRegistryClient:
        # Imported only with a registry: it brings an HTTP client and cryptography.
        from confluent_kafka.schema_registry import SchemaRegistryClient

        with self._lock:
            if self._client is None:
                properties: dict[str, Any] = {}
                if self._properties is not None:
                    properties |= read_registry_properties(self._properties)
                properties |= {"url": self.url, "timeout": CALL_SECONDS_MAX, "max.retries": 0}
                try:
                    self._client = SchemaRegistryClient(properties)
                except (ValueError, TypeError, OSError) as error:
                    raise UsageError(_SETTING, f"cannot be used: {error}", fix="correct that file") from None
            return self._client


def _is_avro(schema: Schema) -> bool:
    return schema.schema_type in (None, "AVRO")
