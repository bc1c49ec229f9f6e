"""The settings that every deployable has, and how all settings are read: flag beats environment beats file.

Reads the environment and the TOML file given by ``--config``.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from forebay_schemas.errors import UsageError
from forebay_schemas.kafka import KafkaConnection, read_properties
from forebay_schemas.topics import Pool

ENV_PREFIX: Final = "FOREBAY_"

# Kubernetes tells each container of every Service in its namespace by variables of these forms, and a Service may
# well be called forebay-something.
_KUBERNETES_SERVICE = re.compile(r"_SERVICE_HOST$|_SERVICE_PORT(_\w+)?$|_PORT_\d+_(TCP|UDP)(_\w+)?$")


class CommonSettings(BaseSettings):
    """What producer and worker both need to know."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="forbid", frozen=True)

    bootstrap_servers: str = Field(default="127.0.0.1:9092", description="Kafka brokers, host:port, comma-separated")
    pool: str = Field(default="default", description="The pool: one model or family and its workers")
    kafka_properties: Path | None = Field(
        default=None, description="A file of librdkafka properties (name=value lines): TLS, SASL, anything"
    )
    log_level: str = Field(default="info", pattern="^(debug|info|warning|error)$", description="Least level logged")

    # Names that other deployables read from the same environment: known here so that a misspelt one is noticed.
    known_elsewhere: ClassVar[frozenset[str]] = frozenset()
    toml_path: ClassVar[Path | None] = None

    def pool_topics(self) -> Pool:
        """The pool's names. Raises ``UsageError``."""
        return Pool(self.pool)

    def connection(self) -> KafkaConnection:
        """How to reach the brokers. Raises ``UsageError`` for a bad properties file."""
        properties = read_properties(self.kafka_properties) if self.kafka_properties else {}
        return KafkaConnection(bootstrap_servers=self.bootstrap_servers, properties=properties)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the base class passes it by name
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        if cls.toml_path is None:
            return init_settings, env_settings
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, cls.toml_path)


_Settings = TypeVar("_Settings", bound=CommonSettings)


def load_settings(
    cls: type[_Settings], *, flags: Mapping[str, Any], config: Path | None, environ: Mapping[str, str] = os.environ
) -> _Settings:
    """Reads the settings: ``flags`` (None = not given) beat FOREBAY_ variables, which beat the TOML file ``config``.

    Raises ``UsageError`` naming the setting, where it came from, and what it takes.
    """
    _refuse_unknown_variables(cls, environ)
    if config is not None and not config.is_file():
        raise UsageError("--config", f"{config} is not a file", fix="name a TOML file")
    given = {name: value for name, value in flags.items() if value is not None}
    source = type(cls.__name__, (cls,), {"toml_path": config, "__module__": cls.__module__})
    try:
        return source(**given)  # type: ignore[no-any-return]
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else "settings"
        where = _origin(name, given, environ, config)
        if first["type"] == "extra_forbidden":
            raise UsageError(where, "is no setting", fix=_did_you_mean(name, cls.model_fields)) from None
        problem = f"is {first['input']!r}: {first['msg']}"
        raise UsageError(where, problem, fix=cls.model_fields[name].description or "correct it") from None
    except ValueError as error:  # tomllib.TOMLDecodeError is one; so is pydantic-settings' for a non-JSON complex value
        raise UsageError("--config" if config else "settings", f"cannot be read: {error}", fix="correct it") from None


def _origin(name: str, flags: Mapping[str, Any], environ: Mapping[str, str], config: Path | None) -> str:
    if name in flags:
        return "--" + name.replace("_", "-")
    variable = ENV_PREFIX + name.upper()
    if variable in environ or config is None:
        return variable
    return f"{name} in {config}"


def _refuse_unknown_variables(cls: type[CommonSettings], environ: Mapping[str, str]) -> None:
    known = {ENV_PREFIX + name.upper() for name in cls.model_fields} | cls.known_elsewhere
    for variable in sorted(environ):
        if not variable.startswith(ENV_PREFIX) or variable in known or _KUBERNETES_SERVICE.search(variable):
            continue
        if environ[variable].startswith("tcp://"):  # FOREBAY_X_PORT of a Kubernetes Service
            continue
        raise UsageError(variable, "is no setting", fix=_did_you_mean(variable, known))


def _did_you_mean(name: str, known: Mapping[str, Any] | set[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]}?" if close else f"the settings are {', '.join(sorted(known))}"
