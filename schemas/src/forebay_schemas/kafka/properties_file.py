"""Reads a file of librdkafka settings: which names are allowed, and which values may appear in logs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from forebay_schemas.errors import UsageError
from forebay_schemas.properties import property_lines

PROPERTIES_FIELD: Final = "--kafka-properties / FOREBAY_KAFKA_PROPERTIES"
"""The name of the properties file's setting, for errors."""

_ACKS: Final = "results must be on every in-sync replica before an offset is committed"
_COMMITS: Final = "offsets are committed only after the outcome is durable"

# Guarantees depend on these settings, so that a file may not change them, under any of their names.
_OURS: Final = {
    "acks": _ACKS,
    "allow.auto.create.topics": "a missing topic is to be named, not made",
    "auto.commit.enable": _COMMITS,
    "auto.offset.reset": "what was accepted must be read from its first record",
    "delivery.report.only.error": "what is not reported as delivered is not taken for delivered",
    "enable.auto.commit": _COMMITS,
    "enable.auto.offset.store": _COMMITS,
    "enable.idempotence": "a retried produce must not become two records",
    "enable.partition.eof": "the end of a partition is known by it alone where its last offsets hold no record",
    "group.id": "the groups' names are part of the contract",
    "group.instance.id": "a static member keeps its partitions for the whole session timeout after it is gone",
    "isolation.level": "requests of an aborted transaction must not run",
    "message.max.bytes": "the topics' size limits build on each other",
    "partition.assignment.strategy": "partitions are assigned and revoked one by one, as cooperative-sticky does",
    "partitioner": "the same key must reach the same partition from every client",
    "request.required.acks": _ACKS,
    "test.mock.num.brokers": "requests go to real brokers",
    "topic.blacklist": "every topic of the pool is needed",
    "transactional.id": "Forebay does not use transactions",
}

# librdkafka reads an integer up to the first other character: 5.4e+06 milliseconds become 5.
_INTEGER: Final = re.compile(
    r".*\.(ms|bytes|kbytes|messages|retries|fails|cnt|threshold|level|size)"
    r"|retries|log_level|max\.in\.flight(\.requests\.per\.connection)?"
)

# confluent-kafka expects Python objects under these names.
_NOT_TEXT: Final = re.compile(r".*_cb|logger|on_commit|on_delivery|opaque|default\.topic\.config")

# Values that may be printed. A list of secrets would miss a misspelt password.
_PRINTABLE: Final = re.compile(
    r".*\.(ms|bytes|kbytes|messages|location|interval|backoff|enable|max|min)"
    r"|acks|allow\.auto\.create\.topics|auto\.offset\.reset|bootstrap\.servers|client\.id|client\.rack|compression\..*"
    r"|debug|enable\..*|group\.id|group\.protocol|group\.remote\.assignor|isolation\.level|partition\.assignment\.strategy"
    r"|max\.in\.flight.*|partitioner|retries|sasl\.mechanisms?|security\.protocol"
)

# librdkafka reports a missing file as "BIO lib".
_FILES: Final = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.keystore.location")


def read_properties(path: Path) -> dict[str, str]:
    """Reads a properties file of librdkafka settings: ``name=value`` lines in UTF-8, ``#`` and ``!`` begin comments.

    Values have no escapes and no continuation lines; ``${directory:/a/folder:file}`` is the content of that file
    without its final newline. Raises ``UsageError`` naming the line, for an invalid or repeated line and for a name
    that may not be set; values are never shown.
    """

    def refuse(problem: str, fix: str) -> UsageError:
        return UsageError(PROPERTIES_FIELD, problem, fix=fix)

    properties: dict[str, str] = {}
    for where, name, value in property_lines(path, refuse):
        if name in _OURS:
            raise refuse(f"{where} sets {name}, which is fixed because {_OURS[name]}", "remove that line")
        if _NOT_TEXT.fullmatch(name):
            raise refuse(f"{where} sets {name}, which a file cannot", "remove that line")
        if name == "metadata.broker.list":
            raise refuse(f"{where} sets {name}", "call it bootstrap.servers")
        if name in _FILES and value != "probe" and not Path(value).exists():
            raise refuse(f"{where} sets {name}: {value} is not there", "name a readable file")
        if _INTEGER.fullmatch(name) and not _is_integer(value):
            raise refuse(f"{where} sets {name} to {value[:40]!r}, which is no whole number", "write it in digits alone")
        properties[name] = value
    return properties


def _is_integer(value: str) -> bool:
    return value.removeprefix("-").isdecimal() and value.isascii()


def redacted(config: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings, fit to be printed: only what is known to be harmless keeps its value."""
    return {name: value if _PRINTABLE.fullmatch(name) else "[hidden]" for name, value in config.items()}
