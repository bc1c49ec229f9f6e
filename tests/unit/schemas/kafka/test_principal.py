"""The principal of a client, by its own properties."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forebay_sandbox.testing.certificates import Authority
from forebay_schemas.kafka.principal import ANONYMOUS, mechanism_of, principal_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("properties", "principal"),
    [
        ({}, ANONYMOUS),
        ({"security.protocol": "PLAINTEXT", "sasl.username": "unused"}, ANONYMOUS),
        ({"security.protocol": "SSL"}, ANONYMOUS),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "alice"}, "User:alice"),
        ({"security.protocol": "sasl_plaintext", "sasl.mechanisms": "plain", "sasl.username": "bob"}, "User:bob"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "oauthbearer", "sasl.oauthbearer.client.id": "c"},
            "User:c (the token's sub)",
        ),
        ({"security.protocol": "ssl", "ssl.keystore.location": "keys.p12"}, "the subject of keys.p12"),
        ({"security.protocol": "ssl", "ssl.certificate.location": "absent.pem"}, "the subject of absent.pem"),
        ({"security.protocol": "ssl", "ssl.certificate.pem": "no PEM"}, "the subject of ssl.certificate.pem"),
    ],
)
def test_it_is_who_the_properties_say(properties: dict[str, str], principal: str) -> None:
    assert principal_of(properties) == principal


def test_a_certificate_is_its_subject(tmp_path: Path) -> None:
    certificate, _ = Authority(tmp_path / "authority").issue("certified")
    by_file = principal_of({"security.protocol": "ssl", "ssl.certificate.location": str(certificate)})
    by_text = principal_of({"security.protocol": "ssl", "ssl.certificate.pem": certificate.read_text(encoding="utf-8")})
    assert by_file == by_text
    assert "CN=certified" in by_file


def test_the_mechanism_has_two_names_and_a_default() -> None:
    assert mechanism_of({"sasl.mechanism": "plain"}) == mechanism_of({"sasl.mechanisms": "PLAIN"}) == "PLAIN"
    assert mechanism_of({}) == "GSSAPI"
