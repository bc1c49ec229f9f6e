"""A locked-down broker, as platform teams run it: TLS, mTLS, SASL, and ACLs without which nothing is allowed. Runs a
JVM and a token endpoint on 127.0.0.1; both end with the block."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs leave these names out
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from forebay_sandbox.errors import SandboxError
from forebay_sandbox.kafka.local import LocalKafka, local_kafka
from forebay_sandbox.kafka.spec import BrokerSpec, ClusterSpec, Listener
from forebay_sandbox.testing.certificates import Authority
from forebay_sandbox.testing.token_server import AUDIENCE, TokenServer
from forebay_schemas.kafka.connection import KafkaConnection

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ADMIN = "admin"
"""The superuser: the broker itself, and every holder of its certificate."""

PLAIN_USER, PLAIN_PASSWORD = "plain-user", "plain-secret"
_ANSWER_SECONDS_MAX = 30.0
_SASL = "org.apache.kafka.common.security"
_JAAS = {
    "scram-sha-256": f"{_SASL}.scram.ScramLoginModule required;",
    "scram-sha-512": f"{_SASL}.scram.ScramLoginModule required;",
    "plain": f'{_SASL}.plain.PlainLoginModule required user_{PLAIN_USER}="{PLAIN_PASSWORD}";',
    "oauthbearer": f"{_SASL}.oauthbearer.OAuthBearerLoginModule required;",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Acl:
    """One permission. ``operation`` and ``resource`` in Kafka's words: Read, Topic."""

    principal: str
    operation: str
    resource: str
    name: str
    prefixed: bool = False

    def binding(self) -> AclBinding:
        """In the admin client's form."""
        pattern = ResourcePatternType.PREFIXED if self.prefixed else ResourcePatternType.LITERAL
        kind = ResourceType[{"Cluster": "BROKER"}.get(self.resource, self.resource.upper())]
        operation = AclOperation["".join(f"_{c}" if c.isupper() else c for c in self.operation).strip("_").upper()]
        return AclBinding(kind, self.name, pattern, self.principal, "*", operation, AclPermissionType.ALLOW)

    def filter(self) -> AclBindingFilter:
        """Matches exactly this permission."""
        one = self.binding()
        return AclBindingFilter(
            one.restype, one.name, one.resource_pattern_type, one.principal, "*", one.operation, one.permission_type
        )


class SecureKafka:
    """The cluster, its authority, its token endpoint, and the operations of an administrator."""

    def __init__(self, kafka: LocalKafka, *, authority: Authority, tokens: TokenServer, folder: Path) -> None:
        self.kafka = kafka
        """The connection of its administrator."""
        self.authority = authority
        self.tokens = tokens
        self.folder = folder
        self._admin = kafka.admin()

    def connection(self, listener: str, **properties: str) -> KafkaConnection:
        """A client's view of a listener, with the authority trusted; properties have ``_`` for ``.``."""
        named = {name.replace("_", "."): value for name, value in properties.items()}
        protocol = "sasl_ssl" if listener == "SASL" else "ssl"
        return KafkaConnection(
            bootstrap_servers=self.kafka.bootstrap_of(listener),
            properties={"security.protocol": protocol, "ssl.ca.location": str(self.authority.ca_path), **named},
        )

    def mtls(self, name: str) -> KafkaConnection:
        """Authenticates with a certificate for ``CN=name``; the principal is ``User:name``."""
        certificate, key = self.authority.issue(name)
        return self.connection("MTLS", ssl_certificate_location=str(certificate), ssl_key_location=str(key))

    def scram(self, user: str, password: str, *, bits: int = 512) -> KafkaConnection:
        """Authenticates with SCRAM-SHA-256 or SCRAM-SHA-512."""
        return self.connection("SASL", sasl_mechanism=f"SCRAM-SHA-{bits}", sasl_username=user, sasl_password=password)

    def plain(self, user: str = PLAIN_USER, password: str = PLAIN_PASSWORD) -> KafkaConnection:
        """Authenticates with PLAIN; one user exists."""
        return self.connection("SASL", sasl_mechanism="PLAIN", sasl_username=user, sasl_password=password)

    def oauth(self, client: str, secret: str) -> KafkaConnection:
        """Authenticates with tokens from the token endpoint."""
        return self.connection(
            "SASL",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauthbearer_method="oidc",
            sasl_oauthbearer_client_id=client,
            sasl_oauthbearer_client_secret=secret,
            sasl_oauthbearer_token_endpoint_url=self.tokens.token_url,
        )

    def strangers(self) -> Authority:
        """Another authority, trusted by nobody here."""
        return Authority(self.folder / "strangers")

    def set_password(self, user: str, password: str) -> None:
        """Creates the SCRAM user, or changes its password, for both mechanisms."""
        changes = [
            UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, 4096), password.encode())
            for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
        ]
        for change in changes:
            self._admin.alter_user_scram_credentials([change])[user].result(_ANSWER_SECONDS_MAX)

    def allow(self, *acls: Acl) -> None:
        """Adds permissions, and waits until the broker applies them."""
        for answer in self._admin.create_acls([acl.binding() for acl in acls]).values():
            answer.result(_ANSWER_SECONDS_MAX)
        self._await(acls, are_there=True)

    def take_away(self, *acls: Acl) -> None:
        """Removes permissions, and waits until the broker applies it."""
        for answer in self._admin.delete_acls([acl.filter() for acl in acls]).values():
            answer.result(_ANSWER_SECONDS_MAX)
        self._await(acls, are_there=False)

    def _await(self, acls: Sequence[Acl], *, are_there: bool) -> None:
        """Returns when the broker's authorizer, which learns of changes a moment later, has these permissions, or none
        of them."""
        end = time.monotonic() + _ANSWER_SECONDS_MAX
        for acl in acls:
            while bool(self._admin.describe_acls(acl.filter()).result(_ANSWER_SECONDS_MAX)) is not are_there:
                if time.monotonic() > end:
                    raise SandboxError(f"the broker does not apply a change of ACLs within {_ANSWER_SECONDS_MAX:g} s")
                time.sleep(0.02)


def secure_spec(authority: Authority, tokens: TokenServer, *, properties: Mapping[str, str]) -> ClusterSpec:
    """One broker with the listeners MTLS (its own and the administrator's), TLS, SASL, and PLAIN without security.

    ``properties`` win. Only ``User:admin`` may do anything until ACLs say otherwise.
    """
    certificate, key = authority.issue(ADMIN)
    stale = authority.issue("stale", not_after=datetime.now(UTC) - timedelta(days=1))
    foreign = authority.issue("foreign", identity="kafka.example.com")
    pairs = {"": (certificate, key), "listener.name.expired.": stale, "listener.name.misnamed.": foreign}
    stores: dict[str, str] = {}
    for prefix, (one, its_key) in pairs.items():
        both = one.with_suffix(".both.pem")
        both.touch(mode=0o600)
        both.write_bytes(its_key.read_bytes() + one.read_bytes())
        stores |= {f"{prefix}ssl.keystore.type": "PEM", f"{prefix}ssl.keystore.location": str(both)}
    mechanisms = ",".join(name.upper() for name in _JAAS)
    sasl = "listener.name.sasl"
    return ClusterSpec(
        brokers=(
            BrokerSpec(
                listeners=(
                    Listener(name="MTLS", protocol="SSL"),
                    Listener(name="TLS", protocol="SSL"),
                    Listener(name="SASL", protocol="SASL_SSL"),
                    Listener(name="PLAIN"),
                    Listener(name="EXPIRED", protocol="SSL"),
                    Listener(name="MISNAMED", protocol="SSL"),
                )
            ),
        ),
        controller_protocol="SSL",
        properties={
            **stores,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(authority.ca_path),
            "ssl.principal.mapping.rules": "RULE:^.*CN=([^,]+).*$/$1/,DEFAULT",
            "ssl.client.auth": "required",
            "listener.name.tls.ssl.client.auth": "none",
            "listener.name.expired.ssl.client.auth": "none",
            "listener.name.misnamed.ssl.client.auth": "none",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "false",
            "super.users": f"User:{ADMIN}",
            "sasl.enabled.mechanisms": mechanisms,
            **{f"{sasl}.{name}.sasl.jaas.config": login for name, login in _JAAS.items()},
            f"{sasl}.oauthbearer.sasl.server.callback.handler.class": (
                f"{_SASL}.oauthbearer.OAuthBearerValidatorCallbackHandler"
            ),
            f"{sasl}.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": tokens.keys_url,
            f"{sasl}.oauthbearer.sasl.oauthbearer.expected.audience": AUDIENCE,
            f"{sasl}.oauthbearer.sasl.oauthbearer.expected.issuer": tokens.issuer,
            **properties,
        },
        # Kafka fetches keys only from where it was told that it may.
        env={"JAVA_TOOL_OPTIONS": f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={tokens.keys_url}"},
        client_properties={
            "security.protocol": "ssl",
            "ssl.ca.location": str(authority.ca_path),
            "ssl.certificate.location": str(certificate),
            "ssl.key.location": str(key),
        },
    )


@contextmanager
def secure_kafka(
    *, clients: Mapping[str, str], properties: Mapping[str, str] | None = None, log_dir: Path | None = None
) -> Iterator[SecureKafka]:
    """A secured cluster of one broker. ``clients``: the secrets of OAuth clients by their ids."""
    with TemporaryDirectory(prefix="forebay-secure-") as name, TokenServer(clients) as tokens:
        folder = Path(name)
        authority = Authority(folder)
        spec = secure_spec(authority, tokens, properties=properties or {})
        with local_kafka(spec, log_dir=log_dir) as kafka:
            yield SecureKafka(kafka, authority=authority, tokens=tokens, folder=folder)
