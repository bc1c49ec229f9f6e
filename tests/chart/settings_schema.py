"""The part of the chart's values.schema.json that follows from the settings. Pure."""

from __future__ import annotations

from typing import Any

from forebay_producer.settings import ProducerSettings
from forebay_schemas.settings import CommonSettings
from forebay_worker.settings import WorkerSettings

# These the chart sets itself, or has values of their own for.
OF_THE_CHART = frozenset(
    {
        "backend_api_key",
        "backend_url",
        "bootstrap_servers",
        "drain_seconds",
        "exporter_port",
        "gateway_port",
        "gpu",
        "gpu_devices",
        "gpu_prometheus_query",
        "gpu_prometheus_url",
        "handler",
        "kafka_properties",
        "ops_host",
        "ops_port",
        "pool",
        "worker_id",
    }
)


def definitions() -> dict[str, Any]:
    """The schema's definitions `workerSettings` and `producerSettings`: every setting with its type and meaning."""
    return {
        "workerSettings": _of(WorkerSettings, "Settings of forebay-worker, as docs/settings.md lists them"),
        "producerSettings": _of(ProducerSettings, "Settings of forebay, as docs/settings.md lists them"),
    }


def _of(settings: type[CommonSettings], description: str) -> dict[str, Any]:
    schema = settings.model_json_schema()
    references = schema.get("$defs", {})
    return {
        "description": description,
        "type": "object",
        "additionalProperties": False,
        "properties": {
            name: _plain(field, references) for name, field in schema["properties"].items() if name not in OF_THE_CHART
        },
    }


def _plain(field: dict[str, Any], references: dict[str, Any]) -> dict[str, Any]:
    """One type, without what only Python knows: references, titles, defaults, formats."""
    merged = dict(field)
    for option in [*merged.pop("anyOf", []), *merged.pop("allOf", [])]:
        if option.get("type") != "null":
            merged = {**option, **merged}
    if "$ref" in merged:
        merged = {**references[merged.pop("$ref").rpartition("/")[2]], **merged}
    kept = ("description", "type", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "pattern")
    plain = {name: merged[name] for name in kept if name in merged}
    for inner in ("items", "additionalProperties"):
        if isinstance(merged.get(inner), dict):
            plain[inner] = _plain(merged[inner], references)
    return plain
