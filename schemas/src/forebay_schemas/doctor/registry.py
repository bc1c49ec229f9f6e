"""Checks the Schema Registry, if one is configured. One HTTP request on its own thread, which is abandoned when no
answer arrives in time."""

from __future__ import annotations

import threading
from typing import Final

from forebay_schemas.doctor.findings import Finding, failed, ok, skipped
from forebay_schemas.errors import ForebayError
from forebay_schemas.formats.schema_registry import SchemaRegistry

CHECK: Final = "schema_registry"
REGISTRY_SECONDS: Final = 4.0
"""Shorter than a client's timeout, so that a doctor ends in time."""


def check_registry(registry: SchemaRegistry | None, *, seconds: float = REGISTRY_SECONDS) -> Finding:
    """The finding. ``registry``: None where none is configured."""
    if registry is None:
        return skipped(CHECK, "not used: FOREBAY_SCHEMA_REGISTRY_URL is not set")
    findings: list[Finding] = []
    # A call's own limit is longer, and applies to each URL.
    asking = threading.Thread(target=lambda: findings.append(_ask(registry)), name="checkup-registry", daemon=True)
    asking.start()
    asking.join(seconds)
    if findings:
        return findings[0]
    fix = "check FOREBAY_SCHEMA_REGISTRY_URL, and the way there: a firewall that drops, a proxy with nobody behind it"
    return failed(CHECK, f"{registry.url}: no answer within {seconds:g} s", fix=fix)


def _ask(registry: SchemaRegistry) -> Finding:
    try:
        return ok(CHECK, registry.check())
    except ForebayError as error:
        problem, _, fix = str(error).rpartition("; ")
        return failed(CHECK, problem, fix=fix)
    finally:
        registry.close()
