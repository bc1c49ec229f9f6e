"""Where the brokers are and how to reach them. Opens no connection."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from forebay_schemas.contract.envelope_problems import shown
from forebay_schemas.kafka.principal import principal_of
from forebay_schemas.kafka.properties_file import redacted
from forebay_schemas.kafka.token_provider import TokenSource
from forebay_schemas.kafka.watch import ConnectionWatch

_SERVER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})")


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaConnection:
    """How to reach the cluster: ``bootstrap_servers`` as ``host:port,host:port``.

    ``properties``: librdkafka's, from `read_properties`; the repr hides their values, as they hold secrets. ``tokens``:
    the source of OAUTHBEARER tokens, if from a function. ``watch`` receives the connection errors of all clients.
    """

    bootstrap_servers: str
    properties: dict[str, str]
    watch: ConnectionWatch = field(default_factory=ConnectionWatch, compare=False)
    tokens: TokenSource | None = field(default=None, compare=False)

    @property
    def principal(self) -> str:
        """The client's principal at the brokers, as far as its properties tell."""
        return principal_of(self.properties)

    def __repr__(self) -> str:
        return f"KafkaConnection(bootstrap_servers={self.bootstrap_servers!r}, properties={redacted(self.properties)})"


def check_bootstrap_servers(text: str) -> str:
    """The same servers without spaces. Raises ``ValueError``, without a field's name, for anything but a host:port
    list."""
    servers = [server.strip() for server in text.split(",")]
    for server in servers:
        match = _SERVER.fullmatch(server)
        if match is None or not 1 <= int(match[2]) <= 65535:
            raise ValueError(f"{shown(server)} is not host:port")
    return ",".join(servers)
