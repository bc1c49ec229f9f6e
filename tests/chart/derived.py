"""Parts of the chart that follow from elsewhere: settings in its schema, the table in README.md, the plain rules.
`tools/make-chart-values` writes them; tests compare them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

from chart.rendered import CHART
from forebay_producer.settings import ProducerSettings
from forebay_schemas.runtime.settings import CommonSettings
from forebay_worker.settings import WorkerSettings

SCHEMA_PATH = CHART / "values.schema.json"
README_PATH = CHART / "README.md"
TEMPLATE_PATH = CHART / "rules" / "forebay.yaml.in"
RULES_PATH = CHART / "rules" / "forebay.yaml"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))

# These the chart sets itself, or has values of their own for.
OF_THE_CHART = frozenset(
    {
        "backend_api_key",
        "backend_url",
        "bootstrap_servers",
        "drain_seconds",
        "exporter_host",
        "exporter_port",
        "exporter_tier_times",
        "gateway_port",
        "gpu",
        "gpu_devices",
        "gpu_prometheus_query",
        "gpu_prometheus_url",
        "handler",
        "kafka_properties",
        "kafka_token_provider",
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
    choices = [option for option in merged.get("anyOf", ()) if option.get("type") != "null"]
    if len(choices) > 1:
        return {"anyOf": [_plain(option, references) for option in choices]}
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
    if "propertyNames" in merged:
        keys = _plain(merged["propertyNames"], references)["enum"]
        # Each by its name: of propertyNames Helm's validator says a random place.
        each = plain.pop("additionalProperties")
        plain["properties"] = {key: {"description": f"Of {key}", **each} for key in keys}
        plain["additionalProperties"] = False
    return plain


def schema() -> dict[str, Any]:
    """values.schema.json as it stands."""
    return json.loads(SCHEMA_PATH.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def resolved(node: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """A part of the schema with what it refers to; its own description counts."""
    for reference in node.get("allOf", []):
        target = definitions[reference["$ref"].rpartition("/")[2]]
        return {**target, **{name: value for name, value in node.items() if name != "allOf"}}
    return node


def readme_table(schema: dict[str, Any]) -> str:
    """Every value of values.yaml with its default and what the schema says of it, in Markdown."""
    rows = ["| Value | Default | What it is |", "| --- | --- | --- |"]
    for path, value, description in _values(VALUES, schema, schema["definitions"]):
        cells = (f"`{path}`", f"`{json.dumps(value)}`", description)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def _values(
    values: Any, node: dict[str, Any], definitions: dict[str, Any], path: str = ""
) -> Iterator[tuple[str, Any, str]]:
    """Path, default and description. A map that anything may be put into is one value."""
    node = resolved(node, definitions)
    if isinstance(values, dict) and values and "properties" in node:
        for name, value in values.items():
            yield from _values(value, node["properties"][name], definitions, f"{path}.{name}".removeprefix("."))
    else:
        yield path, values, node["description"]


_PLAIN_HEAD = """\
# Recording rules and alerts of Forebay, for Prometheus 2.42 or later: for whoever has no Helm. Of every pool that is
# scraped, with the chart's default numbers; `> Inf` is a number that only you can give. Written from forebay.yaml.in,
# which the chart renders for its pools, by tools/make-chart-values.
#
# - `namespace` is kept where the scrape gives it, so that two installations with a pool of the same name stay apart.
"""


def plain_rules() -> str:
    """The rules without Helm: of all pools, with the numbers of poolDefaults. The comments stay."""
    numbers: dict[str, str] = {}
    for name, value in VALUES["poolDefaults"]["alerts"].items():
        if isinstance(value, dict):
            # 0 seconds, where none are promised, are never reached.
            numbers |= {f"{name}.{part}": json.dumps(number) if number else "Inf" for part, number in value.items()}
        else:
            numbers[name] = json.dumps(value)
    _, _, text = TEMPLATE_PATH.read_text(encoding="utf-8").partition("# - Exporters")
    labels = VALUES["prometheusRule"]["aggregateBy"]
    text = text.replace("<scalerFailuresExpression>", _scaler_failures([*labels, "exported_namespace", "scaledObject"]))
    text = text.replace("<orAtMaximum>", "").replace("{<pools>}", "").replace("{<pools>, ", "{")
    text = text.replace("<by>", ", ".join([*labels, "pool"]))
    return f"{_PLAIN_HEAD}# - Exporters" + re.sub(r"<([A-Za-z.]+)>", lambda match: numbers[match[1]], text)


def _scaler_failures(labels: list[str]) -> str:
    """Of ScaledObjects that the chart names, as pools."""
    either = " or ".join(
        f'sum by ({", ".join(labels)}) (increase({metric}{{scaledObject=~"(.+-)?worker-.+"}}[10m])) >= <scalerFailures>'
        for metric in ("keda_scaler_detail_errors_total", "keda_scaled_object_errors_total")
    )
    of_namespace = f'label_replace({either}, "namespace", "$1", "exported_namespace", "(.+)")'
    return f'label_replace({of_namespace}, "pool", "$1", "scaledObject", "(?:.+-)?worker-(.+)")'


def main() -> None:
    """Writes the chart's files anew, where they differ."""
    RULES_PATH.write_text(plain_rules(), encoding="utf-8")
    written = schema()
    written["definitions"] |= definitions()
    SCHEMA_PATH.write_text(json.dumps(written, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    before, _, rest = README_PATH.read_text(encoding="utf-8").partition("| Value | Default |")
    _, _, after = rest.partition("\n\n")
    README_PATH.write_text(f"{before}{readme_table(written)}\n\n{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
