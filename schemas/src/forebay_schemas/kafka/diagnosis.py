"""Finds out why reachable brokers refuse a client: credentials, certificates, or a listener with another protocol.

librdkafka reports "certificate verify failed" for an untrusted, an expired and a misnamed certificate alike, and
nothing for a plaintext client at a TLS port (2.16, seen). So a failed start probes by itself, with Python's ssl. Opens
connections.
"""

from __future__ import annotations

import math
import re
import socket
import ssl
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from forebay_schemas.errors import AuthenticationFailedError, KafkaFailedError, TlsFailedError
from forebay_schemas.kafka.principal import mechanism_of, principal_of
from forebay_schemas.kafka.token_provider import FIELD as TOKEN_PROVIDER_FIELD
from forebay_schemas.kafka.watch import NOT_ACQUIRED

PROBE_SECONDS_MAX: Final = 2.0
_REFUSAL_SECONDS_MAX: Final = 0.2
_SERVERS_MAX: Final = 3

# OpenSSL's verify codes (openssl-verification-options).
_NOT_YET, _EXPIRED = 9, 10
_MISNAMED: Final = (62, 64)

_METADATA, _API_VERSIONS = 3, 18


def refused_credentials(report: str, properties: Mapping[str, str]) -> AuthenticationFailedError:
    """The error for librdkafka's ``report`` of a failed authentication, with a fix. Pure."""
    said = re.sub(r" \(after \d+ms in state \w+\)", "", report)
    said = re.sub(r"^\w+://", "", said)
    mechanism = mechanism_of(properties)
    if said.startswith(NOT_ACQUIRED) and properties.get("sasl.oauthbearer.method", "default").lower() != "oidc":
        fix = f"mend what {TOKEN_PROVIDER_FIELD} names, or what it needs"
    elif said.startswith(NOT_ACQUIRED):
        fix = (
            "check sasl.oauthbearer.token.endpoint.url, sasl.oauthbearer.client.id and sasl.oauthbearer.client.secret, "
            "and that the token endpoint runs"
        )
    elif (offered := re.search(r"supported mechanisms: *(.*)", said)) is not None:
        names = offered[1].strip()
        fix = (
            f"set sasl.mechanism to one of {names}"
            if names
            else "that listener takes no SASL: set security.protocol=SSL, or use the port of the SASL listener"
        )
    elif mechanism == "OAUTHBEARER":
        fix = "the brokers do not accept the token: check its audience, issuer and scope against the brokers' settings"
    else:
        fix = "check sasl.username, sasl.password and sasl.mechanism"
    who = principal_of(properties)
    return AuthenticationFailedError(f"authentication failed for {who} ({mechanism}): {said}; {fix}")


def why_refused(bootstrap_servers: str) -> str:
    """Why no server accepts connections, in a few words for brackets; empty if that cannot be told at once."""
    refused = 0
    servers = bootstrap_servers.split(",")[:_SERVERS_MAX]
    for server in servers:
        host, _, port = server.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _REFUSAL_SECONDS_MAX).close()
        except ConnectionRefusedError:
            refused += 1
        except OSError:
            break
        else:
            break
    return "connection refused" if refused == len(servers) else ""


def find_trouble(
    bootstrap_servers: str, properties: Mapping[str, str], *, give_up_at: float = math.inf
) -> KafkaFailedError | None:
    """The error that keeps a client with these ``properties`` from talking to a broker that accepts connections.

    None when no broker accepts them, or when nothing is wrong up to the credentials. Takes up to two seconds a server,
    and probes none after ``give_up_at`` (monotonic seconds).
    """
    for server in bootstrap_servers.split(",")[:_SERVERS_MAX]:
        if time.monotonic() >= give_up_at:
            break
        trouble = _look_at(server, properties)
        if trouble is not None:
            return trouble
    return None


def _look_at(server: str, properties: Mapping[str, str]) -> KafkaFailedError | None:
    host, _, port = server.rpartition(":")
    address = (host.strip("[]"), int(port))
    protocol = properties.get("security.protocol", "plaintext").lower()
    try:
        if protocol.endswith("ssl"):
            return _look_by_tls(server, address, properties, protocol)
        return _look_by_plaintext(server, address, protocol)
    except OSError:
        return None  # no server, or too slow


def _look_by_plaintext(server: str, address: tuple[str, int], protocol: str) -> KafkaFailedError | None:
    with socket.create_connection(address, PROBE_SECONDS_MAX) as connection:
        if protocol == "plaintext":
            answered = _ask(connection)
            if answered == [True, False]:
                return _wants_sasl(server, "SASL_PLAINTEXT")
        else:
            answered = _ask(connection, metadata=False)
    if answered[0] or not _speaks_tls(address):
        return None
    wanted = "SASL_SSL" if protocol.startswith("sasl") else "SSL (or SASL_SSL)"
    return TlsFailedError(
        f"{server} speaks TLS and security.protocol is {protocol.upper()}; set security.protocol={wanted} and "
        "ssl.ca.location, or use the port of a plaintext listener"
    )


def _look_by_tls(
    server: str, address: tuple[str, int], properties: Mapping[str, str], protocol: str
) -> KafkaFailedError | None:
    try:
        context = _context(properties)
    except (OSError, ValueError) as error:
        return TlsFailedError(f"the certificate or key of the properties file cannot be used: {error}; correct ssl.*")
    with socket.create_connection(address, PROBE_SECONDS_MAX) as raw:
        try:
            connection = context.wrap_socket(raw, server_hostname=address[0])
        except ssl.SSLCertVerificationError as error:
            return _bad_certificate(server, address[0], error)
        except (ssl.SSLError, ConnectionError) as error:
            if isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""):
                return _client_certificate_refused(server, properties, error)
            if not _speaks_plaintext(address):
                return None  # a proxy without a server, or a broker that shuts down
            return TlsFailedError(
                f"{server} does not speak TLS and security.protocol is {protocol.upper()}; use the port of a TLS "
                f"listener, or set security.protocol={'SASL_PLAINTEXT' if protocol.startswith('sasl') else 'PLAINTEXT'}"
            )
        with connection:
            try:
                answered = _ask(connection, metadata=protocol == "ssl")
            except ssl.SSLError as error:
                # In TLS 1.3 the broker checks the client's certificate after the handshake.
                return _client_certificate_refused(server, properties, error)
    return _wants_sasl(server, "SASL_SSL") if answered == [True, False] else None


def _context(properties: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context()
    location = properties.get("ssl.ca.location")
    if (pem := properties.get("ssl.ca.pem")) is not None:
        context = ssl.create_default_context(cadata=pem)
    elif location is not None and Path(location).is_dir():
        context = ssl.create_default_context(capath=location)
    elif location is not None and location != "probe":
        context = ssl.create_default_context(cafile=location)
    if properties.get("ssl.endpoint.identification.algorithm", "https").lower() == "none":
        context.check_hostname = False
    if properties.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    certificate, key = properties.get("ssl.certificate.location"), properties.get("ssl.key.location")
    if certificate is not None:
        context.load_cert_chain(certificate, key, password=properties.get("ssl.key.password", ""))
    return context


def _bad_certificate(server: str, host: str, error: ssl.SSLCertVerificationError) -> TlsFailedError:
    if error.verify_code in _MISNAMED:
        problem = f"the certificate of {server} is not for {host}"
        fix = "use a name that stands in it in FOREBAY_BOOTSTRAP_SERVERS, or have the name added to it"
    elif error.verify_code in (_EXPIRED, _NOT_YET):
        problem = f"the certificate of {server}: {error.verify_message}"
        fix = "have it renewed, and check this machine's clock"
    else:
        problem = f"the certificate of {server} is not trusted: {error.verify_message}"
        fix = "set ssl.ca.location to the certificate of the authority that signed it"
    return TlsFailedError(f"{problem}; {fix}")


def _client_certificate_refused(server: str, properties: Mapping[str, str], error: ssl.SSLError) -> TlsFailedError:
    said = (error.reason or str(error)).replace("_", " ").lower()
    if "ssl.certificate.location" not in properties and "ssl.certificate.pem" not in properties:
        return TlsFailedError(
            f"{server} asks for a client certificate and none is set ({said}); "
            "set ssl.certificate.location and ssl.key.location"
        )
    return TlsFailedError(
        f"{server} does not accept the client certificate of {principal_of(properties)} ({said}); it must be signed by "
        "an authority that the brokers trust, and not be expired: look at ssl.certificate.location"
    )


def _wants_sasl(server: str, protocol: str) -> AuthenticationFailedError:
    return AuthenticationFailedError(
        f"{server} wants SASL credentials and security.protocol asks for none; set security.protocol={protocol}, "
        "sasl.mechanism and the credentials"
    )


def _speaks_tls(address: tuple[str, int]) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(address, PROBE_SECONDS_MAX) as raw:
        try:
            context.wrap_socket(raw).close()
        except ssl.SSLError as error:
            return "ALERT" in (error.reason or "")
        except ConnectionError:
            return False
    return True


def _speaks_plaintext(address: tuple[str, int]) -> bool:
    with socket.create_connection(address, PROBE_SECONDS_MAX) as connection:
        return _ask(connection, metadata=False) == [True]


def _ask(connection: socket.socket, *, metadata: bool = True) -> list[bool]:
    """Whether the broker answers an ApiVersions request, and a metadata request without credentials."""
    requests = [_request(_API_VERSIONS, 0, b"")]
    if metadata:
        # For no topics: an empty array; create none.
        requests.append(_request(_METADATA, 4, struct.pack(">ib", 0, 0)))
    answered = []
    for request in requests:
        connection.sendall(request)
        answered.append(_has_answer(connection))
    return answered


def _request(api: int, version: int, body: bytes) -> bytes:
    client = b"forebay-probe"
    message = struct.pack(">hhih", api, version, 0, len(client)) + client + body
    return struct.pack(">i", len(message)) + message


def _has_answer(connection: socket.socket) -> bool:
    """Whether a whole answer arrives before the connection ends."""
    size = _receive(connection, 4)
    return len(size) == 4 and len(_receive(connection, *struct.unpack(">i", size))) > 0


def _receive(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        try:
            some = connection.recv(count - len(received))
        except ConnectionResetError:
            return b""
        if not some:
            return b""
        received += some
    return received
