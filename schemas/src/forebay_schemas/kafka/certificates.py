"""The expiry of a Kafka client's certificates, from its own properties. Reads their files once: clients keep the
certificates read at their start, so a renewed file changes nothing for a running process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cryptography import x509

METRIC: Final = "forebay_kafka_certificate_expiry_timestamp_seconds"
MEANING: Final = (
    "When the certificate towards Kafka ends that was read at the start: the client's own, or the authority's"
)
LABEL: Final = "certificate"
CLIENT: Final = "client"
AUTHORITY: Final = "authority"


def certificate_ends(properties: Mapping[str, str]) -> dict[str, float]:
    """Epoch seconds at which `CLIENT` and `AUTHORITY` end, if these librdkafka properties name PEM.

    None without TLS, and none for a keystore or the system's authorities.

    A client's chain ends with its first certificate, a file of authorities with its last: while they are exchanged,
    both are in it.
    """
    if properties.get("security.protocol", "plaintext").lower() not in {"ssl", "sasl_ssl"}:
        return {}
    ends = {
        CLIENT: _ends(properties, "ssl.certificate"),
        AUTHORITY: _ends(properties, "ssl.ca"),
    }
    last = {CLIENT: min, AUTHORITY: max}
    return {which: last[which](moments) for which, moments in ends.items() if moments}


def _ends(properties: Mapping[str, str], prefix: str) -> list[float]:
    return [each.not_valid_after_utc.timestamp() for each in _certificates(properties, prefix)]


def _certificates(properties: Mapping[str, str], prefix: str) -> list[x509.Certificate]:
    try:
        if (text := properties.get(f"{prefix}.pem")) is not None:
            pem = text.encode()
        elif (location := properties.get(f"{prefix}.location")) is not None:
            pem = Path(location).read_bytes()
        else:
            return []
        from cryptography import x509

        return x509.load_pem_x509_certificates(pem)
    except (OSError, ValueError):
        # The client's own error names the file; here only one figure is missing.
        return []
