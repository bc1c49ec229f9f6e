"""Whether manifests are what a Kubernetes version takes: right types, no unknown fields or kinds. Reads files only.

Built-in kinds are held to Kubernetes' own schemas (kubernetes-validate brings them), KEDA's and the Prometheus
operator's to the CustomResourceDefinitions in `crds/`. What only a server checks (CEL rules, references) is not seen
here: tests/cluster has one.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
from kubernetes_validate import utils  # type: ignore[import-untyped]
from referencing import Registry, Resource

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from jsonschema.protocols import Validator

VERSIONS: tuple[str, ...] = tuple(utils.all_versions())
"""The Kubernetes versions that can be asked for, oldest first, as 1.34.0; 1.34 is enough."""
CRDS: tuple[Path, ...] = tuple(sorted((Path(__file__).parent / "crds").glob("*.json")))
_DEFINITIONS = "_definitions.json"
_OBJECT_META = f"https://kubernetes.io/api/{_DEFINITIONS}#/$defs/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"


class InvalidManifestsError(Exception):
    """Problems of manifests, a line each: `Kind/name: path: problem`."""


def validate(manifests: Iterable[Mapping[str, Any]], kubernetes_version: str) -> None:
    """Raise InvalidManifestsError unless every manifest is valid. ValueError: no schemas of that version."""
    problems = [problem for manifest in manifests for problem in _problems(manifest, kubernetes_version)]
    if problems:
        raise InvalidManifestsError("\n".join(problems))


def _problems(manifest: Mapping[str, Any], kubernetes_version: str) -> list[str]:
    kind, api_version = str(manifest.get("kind")), str(manifest.get("apiVersion"))
    name = f"{kind}/{(manifest.get('metadata') or {}).get('name')}"
    validator = _validator(kind, api_version, kubernetes_version)
    if validator is None:
        return [f"{name}: Kubernetes {kubernetes_version} and the CRDs know no {kind} of {api_version}"]
    errors = sorted(validator.iter_errors(manifest), key=lambda error: error.json_path)
    return [f"{name}: {error.json_path}: {error.message}" for error in errors]


@cache
def _validator(kind: str, api_version: str, kubernetes_version: str) -> Validator | None:
    registry = _registry(kubernetes_version)
    schema = _custom_schemas().get((kind, api_version)) or _built_in_schema(kind, api_version, kubernetes_version)
    return None if schema is None else jsonschema.Draft202012Validator(schema, registry=registry)


def _folder(kubernetes_version: str) -> str:
    for version in VERSIONS:
        if f"{version}.".startswith(f"{kubernetes_version}."):
            return f"kubernetes-json-schema/v{version}-local-strict"
    raise ValueError(f"no schemas of Kubernetes {kubernetes_version}; there are {', '.join(VERSIONS)}")


@cache
def _registry(kubernetes_version: str) -> Registry[Any]:
    # Reading the definitions takes 60 ms, much more than a manifest: once per version.
    definitions = utils.schema_contents(f"{_folder(kubernetes_version)}/{_DEFINITIONS}", kubernetes_version)
    return Resource.from_contents(definitions) @ Registry()


def _built_in_schema(kind: str, api_version: str, kubernetes_version: str) -> Any:
    # As kubernetes-validate names its files: rbac.authorization.k8s.io/v1 is rbac-v1.
    short = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
    file = f"{_folder(kubernetes_version)}/{kind.lower()}-{short}.json"
    try:
        return utils.schema_contents(file, kubernetes_version)
    except FileNotFoundError:
        return None


@cache
def _custom_schemas() -> dict[tuple[str, str], dict[str, Any]]:
    schemas = {}
    for path in CRDS:
        spec = json.loads(path.read_text(encoding="utf-8"))["spec"]
        for version in spec["versions"]:
            schema = _closed(version["schema"]["openAPIV3Schema"])
            # A definition says nothing of metadata; the server holds it to the type that all kinds share.
            schema["properties"]["metadata"] = {"$ref": _OBJECT_META}
            schemas[spec["names"]["kind"], f"{spec['group']}/{version['name']}"] = schema
    return schemas


def _closed(schema: Any) -> Any:
    """A schema with every object closed: the server calls fields unknown that a definition does not name."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(part) for name, part in schema.items()}
    if schema.get("type") == "object" and "additionalProperties" not in schema:
        closed["additionalProperties"] = False
    return closed
