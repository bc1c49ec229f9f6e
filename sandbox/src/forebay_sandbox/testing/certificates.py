"""Certificates for a broker on 127.0.0.1 and its clients, from their own authority. Writes PEM files."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import trustme
from cryptography.hazmat.primitives import serialization

if TYPE_CHECKING:
    from pathlib import Path

_LIFETIME = timedelta(days=2)


class Authority:
    """A certificate authority in a folder: `ca_path` is what its clients trust."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._ca = trustme.CA()
        self.ca_path = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.ca_path))

    def issue(self, name: str, *, identity: str = "127.0.0.1", not_after: datetime | None = None) -> tuple[Path, Path]:
        """A certificate with its chain, and its key, for the subject ``CN=name`` and a host or address."""
        issued = self._ca.issue_cert(identity, common_name=name, not_after=not_after or datetime.now(UTC) + _LIFETIME)
        certificate, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        # Kafka reads PKCS#8 alone.
        loaded = serialization.load_pem_private_key(issued.private_key_pem.bytes(), password=None)
        key.touch(mode=0o600)
        key.write_bytes(
            loaded.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return certificate, key
