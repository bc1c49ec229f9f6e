"""A client's principal, as far as its own properties tell: brokers do not report it. Reads a certificate's file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

ANONYMOUS = "User:ANONYMOUS"


def principal_of(properties: Mapping[str, str]) -> str:
    """The principal of a client with these librdkafka properties, as Kafka writes it by default.

    With SASL the user's name; with an OAuth client its id, where the brokers go by the token's ``sub``, and nothing
    that can be told where a token provider makes the tokens; with a
    certificate its whole subject, of which the brokers' ``ssl.principal.mapping.rules`` may leave a part.
    """
    protocol = properties.get("security.protocol", "plaintext").lower()
    if protocol.startswith("sasl"):
        if mechanism_of(properties) == "OAUTHBEARER":
            client_id = properties.get("sasl.oauthbearer.client.id")
            return "whom the token names" if client_id is None else f"User:{client_id} (the token's sub)"
        return f"User:{properties.get('sasl.username', '')}"
    if protocol != "ssl":
        return ANONYMOUS
    if (pem := properties.get("ssl.certificate.pem")) is not None:
        return _of_certificate(pem.encode(), where="ssl.certificate.pem")
    if (location := properties.get("ssl.certificate.location")) is not None:
        try:
            return _of_certificate(Path(location).read_bytes(), where=location)
        except OSError:
            return f"the subject of {location}"
    if (keystore := properties.get("ssl.keystore.location")) is not None:
        return f"the subject of {keystore}"
    return ANONYMOUS


def mechanism_of(properties: Mapping[str, str]) -> str:
    """The SASL mechanism, under either of its names; librdkafka's default is GSSAPI."""
    return properties.get("sasl.mechanism", properties.get("sasl.mechanisms", "GSSAPI")).upper()


def _of_certificate(pem: bytes, *, where: str) -> str:
    from cryptography import x509

    try:
        return f"User:{x509.load_pem_x509_certificate(pem).subject.rfc4514_string()}"
    except ValueError:
        return f"the subject of {where}"
