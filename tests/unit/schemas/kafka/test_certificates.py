"""Ends of a client's certificates, by its own files."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from forebay_sandbox.testing.certificates import Authority
from forebay_schemas.kafka.certificates import certificate_ends

if TYPE_CHECKING:
    from pathlib import Path

END = datetime(2031, 5, 4, 3, 2, 1, tzinfo=UTC)


def test_a_certificate_ends_when_its_file_says(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, _ = authority.issue("worker", not_after=END)
    properties = {
        "security.protocol": "SASL_SSL",
        "ssl.certificate.location": str(certificate),
        "ssl.ca.location": str(authority.ca_path),
    }
    ends = certificate_ends(properties)
    assert ends["client"] == END.timestamp()
    assert ends["authority"] > END.timestamp()
    by_text = {"security.protocol": "ssl", "ssl.certificate.pem": certificate.read_text(encoding="utf-8")}
    assert certificate_ends(by_text) == {"client": END.timestamp()}


def test_a_chain_ends_with_its_first_certificate_and_exchanged_authorities_with_their_last(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    later, _ = authority.issue("later", not_after=END)
    sooner, _ = authority.issue("sooner", not_after=END.replace(year=2030))
    both = tmp_path / "both.pem"
    both.write_bytes(later.read_bytes() + sooner.read_bytes())
    properties = {
        "security.protocol": "ssl",
        "ssl.certificate.location": str(both),
        "ssl.ca.location": str(both),
    }
    assert certificate_ends(properties) == {
        "client": END.replace(year=2030).timestamp(),
        "authority": END.timestamp(),
    }


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"security.protocol": "PLAINTEXT", "ssl.ca.location": "absent.pem"},
        {"security.protocol": "SSL"},
        {"security.protocol": "SSL", "ssl.ca.location": "absent.pem", "ssl.certificate.pem": "no PEM"},
        {"security.protocol": "SSL", "ssl.ca.location": "/etc", "ssl.keystore.location": "absent.p12"},
        {"security.protocol": "SSL", "ssl.ca.location": "probe"},
    ],
)
def test_what_cannot_be_read_has_no_end(properties: dict[str, str]) -> None:
    assert certificate_ends(properties) == {}
