"""Tokens for SASL OAUTHBEARER from a function instead of a token endpoint: Amazon MSK's IAM, or a user's function.

Imports the function on demand; calls it, which may reach the network, on the clients' threads.
"""

from __future__ import annotations

import math
import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from forebay_schemas.clock import Clock, SystemClock
from forebay_schemas.contract.envelope_problems import shown
from forebay_schemas.errors import AuthenticationFailedError, UsageError
from forebay_schemas.users_module import import_users_module

FIELD: Final = "FOREBAY_KAFKA_TOKEN_PROVIDER"
MSK_IAM: Final = "msk_iam"

Provider = Callable[[], Any]
"""Returns (token, expiry as seconds since the epoch). Called by several threads, one at a time."""

REUSED_SHARE: Final = 0.5
"""A new client reuses the last token while this share of its life is left. librdkafka requests the next after 80 %."""

_FITTING: Final = {
    "security.protocol": "SASL_.*",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.method": "default",
}
"""Properties allowed beside a token provider, as patterns."""

_NAME: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_REGION: Final = re.compile(r"\.kafka(?:-serverless)?\.([a-z]{2}(?:-[a-z]+)+-\d+)\.amazonaws\.com(?:\.cn)?:\d+")
_MESSAGE_CHARACTERS_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class Token:
    """``value`` is a secret. ``expires_at``: seconds since the epoch."""

    value: str
    expires_at: float

    def __repr__(self) -> str:
        return f"Token([hidden], expires_at={self.expires_at})"


class TokenSource:
    """The source of tokens for all clients of a connection. Thread-safe; their ``oauth_cb``."""

    def __init__(self, name: str, provider: Provider, *, clock: Clock | None = None) -> None:
        """``name``: the provider, as the setting names it."""
        self.name = name
        self.problem: str | None = None
        """Why the last call of the provider failed; None if it did not."""
        self._provider = provider
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._last: tuple[Token, float] | None = None

    def __call__(self, _config: str | None) -> tuple[str, float]:
        """A token for confluent-kafka. Raises ``AuthenticationFailedError``; it is then called again ten seconds
        later."""
        token = self.token()
        return token.value, token.expires_at

    def token(self) -> Token:
        """The last token while half of its life is left, else a new one. Raises ``AuthenticationFailedError``."""
        with self._lock:
            now = self._clock.wall_ms() / 1000
            if self._last is not None:
                token, since = self._last
                if token.expires_at - now > REUSED_SHARE * (token.expires_at - since):
                    return token
            try:
                token = _checked(self._provider(), now)
            except Exception as error:
                self.problem = (
                    f"{self.name} raised {_told(error)}" if not isinstance(error, _BadTokenError) else str(error)
                )
                raise AuthenticationFailedError(
                    f"no token for Kafka: {self.problem}; mend it, or name another in {FIELD}"
                ) from error
            self.problem, self._last = None, (token, now)
            return token


class _BadTokenError(Exception):
    pass


def load_token_source(name: str, *, bootstrap_servers: str, environ: Mapping[str, str] = os.environ) -> TokenSource:
    """The source named by `FOREBAY_KAFKA_TOKEN_PROVIDER`; the current folder is searched, as for a handler.

    Raises ``UsageError`` for a name that cannot be imported.
    """
    if name == MSK_IAM:
        return TokenSource(MSK_IAM, _msk_iam(bootstrap_servers, environ))
    if _NAME.fullmatch(name) is None:
        raise UsageError(FIELD, f"{shown(name)} is no token provider", fix=f"give {MSK_IAM}, or module:function")
    module_name, _, function_name = name.partition(":")
    try:
        provider = getattr(import_users_module(module_name), function_name, None)
    except Exception as error:
        raise UsageError(
            FIELD, f"module {module_name} cannot be imported: {_told(error)}", fix="install it where this runs"
        ) from error
    if not callable(provider):
        raise UsageError(
            FIELD,
            f"module {module_name} has no function {function_name}",
            fix="name a function without parameters that returns (token, seconds since the epoch when it expires)",
        )
    return TokenSource(name, provider)


def token_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties that a token provider needs. Raises ``UsageError`` if they name another source of tokens or
    passwords."""
    wanted = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"} | dict(properties)
    if "sasl.mechanisms" in wanted:
        wanted["sasl.mechanism"] = wanted.pop("sasl.mechanisms")
    for name, pattern in _FITTING.items():
        if name in wanted and re.fullmatch(pattern, wanted[name], re.IGNORECASE) is None:
            raise UsageError(
                FIELD,
                f"the properties file sets {name}={shown(wanted[name])}, which takes no tokens from a provider",
                fix=f"leave {name} out of the file, or {FIELD} unset",
            )
    return wanted


def _checked(given: object, now: float) -> Token:
    match given:
        case (str() as value, int() | float() as expires_at) if value and math.isfinite(expires_at):
            pass
        case _:
            raise _BadTokenError(f"it returned {type(given).__name__} instead of (token, seconds since the epoch)")
    if expires_at <= now:
        raise _BadTokenError("its token had expired when it came; it is to say when in seconds since the epoch")
    if expires_at > 100 * now:
        raise _BadTokenError("it said in milliseconds when its token expires; seconds since the epoch are meant")
    return Token(value, float(expires_at))


def _told(error: BaseException) -> str:
    message = " ".join(str(error).split())[:_MESSAGE_CHARACTERS_MAX]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _msk_iam(bootstrap_servers: str, environ: Mapping[str, str]) -> Provider:
    try:
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider  # type: ignore[import-untyped]
    except ImportError:
        raise UsageError(
            FIELD, f"{MSK_IAM} needs aws-msk-iam-sasl-signer-python", fix="install the extra msk: forebay-worker[msk]"
        ) from None
    region = _region(bootstrap_servers, environ)

    def provide() -> tuple[str, float]:
        value, expires_at_ms = MSKAuthTokenProvider.generate_auth_token(region)
        return value, expires_at_ms / 1000

    return provide


def _region(bootstrap_servers: str, environ: Mapping[str, str]) -> str:
    """The cluster's region, from the brokers' names or else the environment."""
    for server in bootstrap_servers.split(","):
        if (match := _REGION.search(server)) is not None:
            return match[1]
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    if not region:
        raise UsageError(
            FIELD,
            f"{MSK_IAM} does not know the cluster's region: {shown(bootstrap_servers)} does not name it",
            fix="set AWS_REGION",
        )
    return region
