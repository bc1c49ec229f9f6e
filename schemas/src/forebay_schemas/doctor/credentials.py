"""A client's credentials, and contradictions in its properties. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from forebay_schemas.doctor.findings import Finding, failed, ok, skipped, warning
from forebay_schemas.errors import AuthenticationFailedError, KafkaFailedError
from forebay_schemas.kafka.principal import ANONYMOUS, mechanism_of, principal_of

TLS: Final = "kafka.tls"
CREDENTIALS: Final = "kafka.credentials"

_FILE: Final = "the file that FOREBAY_KAFKA_PROPERTIES names"
_CLEAR: Final = ("PLAIN", "OAUTHBEARER")
"""Mechanisms whose secret an eavesdropper can use."""


def credentials_findings(properties: Mapping[str, str]) -> list[Finding]:
    """The accepted credentials, and properties without effect. Secrets are not shown."""
    protocol = _protocol(properties)
    encrypted, authenticates = protocol.endswith("SSL"), protocol.startswith("SASL")
    who = principal_of(properties)
    how = mechanism_of(properties) if authenticates else "without credentials" if who == ANONYMOUS else "certificate"
    findings = [
        ok(TLS, "the brokers' certificate is accepted") if encrypted else skipped(TLS, f"not used: {protocol}"),
        ok(CREDENTIALS, f"accepted: {who} ({how})"),
    ]
    for prefix, takes_effect in (("sasl.", authenticates), ("ssl.", encrypted)):
        ignored = sorted(name for name in properties if name.startswith(prefix))
        if ignored and not takes_effect:
            findings.append(
                warning(
                    CREDENTIALS,
                    f"{', '.join(ignored)} has no effect with security.protocol={protocol}",
                    fix=f"set security.protocol in {_FILE} to what the brokers' port speaks, or remove them",
                )
            )
    if authenticates and not encrypted and mechanism_of(properties) in _CLEAR:
        said = f"{mechanism_of(properties)} over {protocol} sends the secret in clear"
        findings.append(warning(CREDENTIALS, said, fix=f"use SASL_SSL in {_FILE}"))
    return findings


def refusal_findings(error: KafkaFailedError, properties: Mapping[str, str]) -> list[Finding]:
    """Why a reachable broker refuses this client."""
    problem, _, fix = str(error).rpartition("; ")
    if not isinstance(error, AuthenticationFailedError):
        return [failed(TLS, problem, fix=fix), skipped(CREDENTIALS, f"needs {TLS}")]
    protocol = _protocol(properties)
    tls = ok(TLS, "the brokers' certificate is accepted") if protocol.endswith("SSL") else None
    return [tls or skipped(TLS, f"not used: {protocol}"), failed(CREDENTIALS, problem, fix=fix)]


def _protocol(properties: Mapping[str, str]) -> str:
    return properties.get("security.protocol", "plaintext").upper()
