"""Every way into a secured broker, and every way to fail at it, by the command as it is used: properties in a file."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from forebay_sandbox.testing.kafka_secure import PLAIN_USER
from forebay_schemas.kafka.connection import KafkaConnection
from harness.live_pool import LivePool
from harness.locked_down import forebay_as, grant_roles, write_properties
from harness.worker_process import run_worker_command

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from forebay_sandbox.testing.kafka_secure import SecureKafka

pytestmark = pytest.mark.slow

USER, PASSWORD = "connecting", "right"


@pytest.fixture(scope="module")
def secure(secure_kafka: SecureKafka) -> SecureKafka:
    secure_kafka.set_password(USER, PASSWORD)
    return secure_kafka


@pytest.fixture(scope="module")
def pool(secure: SecureKafka) -> Iterator[LivePool]:
    pool = LivePool(secure.kafka)
    yield pool
    pool.close()


def good_connections(secure: SecureKafka) -> dict[str, tuple[KafkaConnection, str]]:
    """Each way in, with the principal it leads to."""
    return {
        "tls": (secure.connection("TLS"), "User:ANONYMOUS"),
        "mtls": (secure.mtls("certified"), "User:certified"),
        "scram-256": (secure.scram(USER, PASSWORD, bits=256), f"User:{USER}"),
        "scram-512": (secure.scram(USER, PASSWORD), f"User:{USER}"),
        "plain": (secure.plain(), f"User:{PLAIN_USER}"),
        "oauthbearer": (secure.oauth("oauth-client", "oauth-secret"), "User:oauth-client"),
    }


@pytest.mark.parametrize("way", ["tls", "mtls", "scram-256", "scram-512", "plain", "oauthbearer"])
def test_a_request_is_submitted_and_read_by_every_way_in(
    secure: SecureKafka, pool: LivePool, way: str, tmp_path: Path
) -> None:
    connection, principal = good_connections(secure)[way]
    grant_roles(secure, "forebay submit", pool=pool.name, principal=principal)
    forebay = forebay_as(connection, pool=pool.name, folder=tmp_path)
    request_id = secrets.token_hex(6)
    line = f'{{"request_id": "{request_id}", "biz_type": "chat_completion", "payload": {{}}}}\n'
    done = forebay.run("submit", "-", stdin=line.encode())
    assert (done.code, [record["request_id"] for record in done.records]) == (0, [request_id]), done.err


def failing(secure: SecureKafka) -> dict[str, tuple[KafkaConnection, int, tuple[str, ...]]]:
    """Each way to fail, with the exit code and what the message says."""

    def at(listener: str, **properties: str) -> KafkaConnection:
        named = {name.replace("_", "."): value for name, value in properties.items()}
        return KafkaConnection(bootstrap_servers=secure.kafka.bootstrap_of(listener), properties=named)

    stranger = secure.strangers()
    foreign, foreign_key = stranger.issue("foreigner")
    old_certificate, old_key = secure.authority.issue("old", not_after=datetime.now(UTC) - timedelta(days=1))
    sasl: dict[str, Any] = {"sasl_mechanism": "PLAIN", "sasl_username": "u", "sasl_password": "p"}
    credentials = "check sasl.username, sasl.password and sasl.mechanism"
    return {
        "wrong SCRAM password": (secure.scram(USER, "wrong"), 1, (f"User:{USER}", "SCRAM-SHA-512", credentials)),
        "unknown user": (secure.scram("nobody", "x"), 1, ("User:nobody", credentials)),
        "wrong PLAIN password": (secure.plain(password="wrong"), 1, (f"User:{PLAIN_USER}", credentials)),
        "wrong OAuth secret": (
            secure.oauth("oauth-client", "wrong"),
            1,
            ("User:oauth-client", "invalid_client", "sasl.oauthbearer.client.secret"),
        ),
        "no token endpoint": (
            secure.connection(
                "SASL",
                **{**oauth_properties(secure), "sasl_oauthbearer_token_endpoint_url": "http://127.0.0.1:1/token"},
            ),
            1,
            ("Could not connect", "that the token endpoint runs"),
        ),
        "broker not trusted": (
            secure.connection("TLS", ssl_ca_location=str(stranger.ca_path)),
            1,
            ("is not trusted", "set ssl.ca.location"),
        ),
        "broker's certificate expired": (secure.connection("EXPIRED"), 1, ("certificate has expired", "renewed")),
        "broker's certificate misnamed": (secure.connection("MISNAMED"), 1, ("is not for 127.0.0.1",)),
        "no client certificate": (secure.connection("MTLS"), 1, ("asks for a client certificate and none is set",)),
        "client certificate of strangers": (
            secure.connection("MTLS", ssl_certificate_location=str(foreign), ssl_key_location=str(foreign_key)),
            1,
            ("does not accept the client certificate of User:CN=foreigner",),
        ),
        "client certificate expired": (
            secure.connection("MTLS", ssl_certificate_location=str(old_certificate), ssl_key_location=str(old_key)),
            1,
            ("does not accept the client certificate of User:CN=old",),
        ),
        "plaintext to TLS": (at("TLS"), 1, ("speaks TLS and security.protocol is PLAINTEXT",)),
        "plaintext to SASL_SSL": (at("SASL"), 1, ("speaks TLS and security.protocol is PLAINTEXT",)),
        "SASL_PLAINTEXT to SASL_SSL": (
            at("SASL", security_protocol="SASL_PLAINTEXT", **sasl),
            1,
            ("speaks TLS and security.protocol is SASL_PLAINTEXT; set security.protocol=SASL_SSL",),
        ),
        "TLS to plaintext": (secure.connection("PLAIN"), 1, ("does not speak TLS and security.protocol is SSL",)),
        "SSL to SASL_SSL": (
            secure.connection("SASL", security_protocol="ssl"),
            1,
            ("wants SASL credentials", "set security.protocol=SASL_SSL"),
        ),
        "SASL_SSL to SSL": (
            secure.connection("TLS", security_protocol="sasl_ssl", **sasl),
            1,
            ("that listener takes no SASL",),
        ),
        "nobody there": (KafkaConnection(bootstrap_servers="127.0.0.1:1", properties={}), 3, ("no broker answered",)),
    }


def oauth_properties(secure: SecureKafka) -> dict[str, str]:
    return {
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauthbearer_method": "oidc",
        "sasl_oauthbearer_client_id": "oauth-client",
        "sasl_oauthbearer_client_secret": "oauth-secret",
        "sasl_oauthbearer_token_endpoint_url": secure.tokens.token_url,
    }


def test_every_way_to_fail_is_told_with_its_fix_within_seconds(
    secure: SecureKafka, pool: LivePool, tmp_path: Path
) -> None:
    for name, (connection, code, said) in failing(secure).items():
        done = forebay_as(connection, pool=pool.name, folder=tmp_path).run("backlog")
        assert done.code == code, (name, done.err)
        assert len(done.err.splitlines()) == 1, (name, done.err)
        for words in said:
            assert words in done.err, (name, done.err)


def test_a_worker_that_cannot_get_in_ends_at_once_and_says_why(
    secure: SecureKafka, pool: LivePool, tmp_path: Path
) -> None:
    for name in ("wrong SCRAM password", "broker's certificate expired", "plaintext to TLS", "nobody there"):
        connection, code, said = failing(secure)[name]
        settings = {
            "FOREBAY_BOOTSTRAP_SERVERS": connection.bootstrap_servers,
            "FOREBAY_KAFKA_PROPERTIES": str(write_properties(tmp_path / "worker.properties", connection)),
            "FOREBAY_POOL": pool.name,
            "FOREBAY_BACKEND_URL": "http://127.0.0.1:1",
            "FOREBAY_KAFKA_WAIT_SECONDS": "0",
        }
        ended = run_worker_command(settings)
        assert ended.exit_code == code, (name, ended.stderr)
        last = ended.stderr.splitlines()[-1]
        assert last.startswith("error: "), (name, ended.stderr)
        for words in said:
            assert words in last, (name, ended.stderr)
