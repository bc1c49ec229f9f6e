"""The Kafka client after its certificate's file changes, seen from the TLS listener that it connects to."""

from __future__ import annotations

import shutil
import socket
import ssl
import threading
from typing import TYPE_CHECKING

from confluent_kafka import Producer
from cryptography import x509

from forebay_sandbox.testing.certificates import Authority
from forebay_schemas.contract.topics import REQUEST_BYTES_MAX
from forebay_schemas.kafka.clients import create_client
from forebay_schemas.kafka.configs import producer_config
from forebay_schemas.kafka.connection import KafkaConnection
from harness.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path


class Doorkeeper:
    """Takes TLS connections with a client certificate, notes whose it is, and hangs up."""

    def __init__(self, authority: Authority) -> None:
        certificate, key = authority.issue("door")
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._context.load_verify_locations(authority.ca_path)
        self._context.verify_mode = ssl.CERT_REQUIRED
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.seen: list[str] = []
        self._thread = threading.Thread(target=self._serve, name="doorkeeper")
        self._thread.start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                taken, _ = self._listening.accept()
            except OSError:
                return
            with taken:
                taken.settimeout(5)
                try:
                    with self._context.wrap_socket(taken, server_side=True) as guest:
                        shown = guest.getpeercert(binary_form=True)
                        assert shown is not None
                        self.seen.append(x509.load_der_x509_certificate(shown).subject.rfc4514_string())
                except OSError:
                    continue


def test_a_client_certificate_is_read_once_so_a_new_one_needs_a_restart(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    files = tmp_path / "tls.crt", tmp_path / "tls.key"

    def install(name: str) -> None:
        for issued, file in zip(authority.issue(name), files, strict=True):
            shutil.copy(issued, file)

    install("old")
    door = Doorkeeper(authority)
    properties = {
        "security.protocol": "SSL",
        "ssl.ca.location": str(authority.ca_path),
        "ssl.certificate.location": str(files[0]),
        "ssl.key.location": str(files[1]),
    }

    def come_in() -> Producer:
        connection = KafkaConnection(bootstrap_servers=door.address, properties=properties)
        return create_client(
            Producer, producer_config(connection, client_id="rotated", record_bytes_max=REQUEST_BYTES_MAX)
        )

    try:
        client = come_in()
        wait_until("a first connection", lambda: door.seen)
        install("new")
        before = len(door.seen)
        wait_until("three connections more", lambda: len(door.seen) >= before + 3)
        assert len({*door.seen}) == 1
        assert "CN=old" in door.seen[0]
        client.close()
        restarted = come_in()
        wait_until("the new certificate", lambda: "CN=new" in door.seen[-1])
        restarted.close()
    finally:
        door.close()
