"""The settings of all deployables, and how settings are read: options override variables, which override the file.
Reads the environment and the TOML file of ``--config``."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Set
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar, get_args

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from forebay_schemas.contract.envelope_problems import shown
from forebay_schemas.contract.tiers import TIERS, TTL_MS_MAX, Tier, TierTimes, tier_times
from forebay_schemas.contract.topics import Pool
from forebay_schemas.errors import UsageError, without_credentials
from forebay_schemas.formats.schema_registry import SchemaRegistry, check_registry_url, read_registry_properties
from forebay_schemas.kafka.connection import KafkaConnection, check_bootstrap_servers
from forebay_schemas.kafka.properties_file import PROPERTIES_FIELD, read_properties
from forebay_schemas.kafka.token_provider import load_token_source, token_properties
from forebay_schemas.kafka.watch import ConnectionWatch
from forebay_schemas.runtime.terminal import printable
from forebay_schemas.runtime.tracing import TracesSwitch

ENV_PREFIX: Final = "FOREBAY_"

KNOWN_VARIABLES: Final = frozenset(
    ENV_PREFIX + name
    for name in (
        # both
        "BOOTSTRAP_SERVERS",
        "POOL",
        "KAFKA_PROPERTIES",
        "KAFKA_TOKEN_PROVIDER",
        "SCHEMA_REGISTRY_URL",
        "SCHEMA_REGISTRY_PROPERTIES",
        "LOG_LEVEL",
        "TRACES",
        "TIER_TTL_MS",
        "TIER_WAIT_MS",
        # producer
        "CODEC",
        "DELIVERY_TIMEOUT_SECONDS",
        "FRONT",
        "ADMISSION_DEADLINE_SHARE",
        "ADMISSION_SERVICE_SECONDS_MAX",
        "ADMISSION_WITHOUT_WORKERS",
        "ADMISSION_TENANT_PER_SECOND",
        "ADMISSION_TENANT_BURST",
        "ADMISSION_TENANT_CONCURRENCY",
        "GATEWAY_PORT",
        "EXPORTER_HOST",
        "EXPORTER_PORT",
        "EXPORTER_TIER_TIMES",
        "ADMISSION_WITHOUT_WORKERS",
        "ADMISSION_DEADLINE_SHARE",
        "ADMISSION_SERVICE_SECONDS_MAX",
        "ADMISSION_TENANT_PER_SECOND",
        "ADMISSION_TENANT_BURST",
        "ADMISSION_TENANT_CONCURRENCY",
        # worker
        "STREAM_USAGE",
        "BACKEND_URL",
        "BACKEND_API_KEY",
        "BACKEND_CONNECT_SECONDS",
        "BACKEND_TIMEOUT_SECONDS",
        "BIZ_PATHS",
        "HANDLER",
        "PACING_POLICY",
        "LIMIT_MIN",
        "LIMIT_START",
        "LIMIT_MAX",
        "TPOT_TARGET_SECONDS",
        "PREFILL_SECONDS_MAX",
        "GPU_UTILISATION_TARGET",
        "LANE_ORDER",
        "ENGINE_PRIORITY",
        "STREAM_USAGE",
        "TENANT_WEIGHTS",
        "MID_SHARE",
        "LOW_SHARE",
        "HIGH_RESERVE_SHARE",
        "METRICS_URL",
        "METRICS_PREFIX",
        "GPU",
        "GPU_DEVICES",
        "GPU_PROMETHEUS_URL",
        "GPU_PROMETHEUS_QUERY",
        "BUFFER_BYTES_MAX",
        "IN_FLIGHT_BYTES_MAX",
        "MAX_RETRIES",
        "RETRY_STATUSES",
        "ANSWER_REJECTED",
        "DRAIN_SECONDS",
        "KAFKA_WAIT_SECONDS",
        "WORKER_ID",
        "OPS_HOST",
        "OPS_PORT",
    )
)
"""Every variable of any deployable: one environment serves all, and a misspelt name is still noticed."""

# Kubernetes tells each container of every Service in its namespace by variables of these forms, and a Service may
# well be called forebay-something: FOREBAY_GATEWAY_PORT=tcp://10.0.0.1:8080 is one, not a setting.
_KUBERNETES_NAME = re.compile(r"_SERVICE_HOST$|_SERVICE_PORT(_\w+)?$|_PORT_\d+_(TCP|UDP|SCTP)(_\w+)?$")
_KUBERNETES_PORT = re.compile(r"(tcp|udp|sctp)://")

TierMilliseconds = Annotated[int, Field(strict=True, ge=1, le=TTL_MS_MAX)]


class CommonSettings(BaseSettings):
    """The settings of both producer and worker. Made by `load_settings`."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="forbid", frozen=True, allow_inf_nan=False)

    bootstrap_servers: str = Field(
        default="127.0.0.1:9092", description="Kafka brokers, host:port, comma-separated; beats the properties file"
    )
    pool: str = Field(
        default="default",
        description="The pool (one model or family and its workers): 1 to 100 letters, digits, hyphens and underscores",
    )
    kafka_properties: Path | None = Field(
        default=None, description="A file of librdkafka properties (name=value lines): TLS, SASL, anything"
    )
    kafka_token_provider: str | None = Field(
        default=None,
        description="Where tokens for SASL OAUTHBEARER come from: msk_iam, or a function of yours, module:function",
    )
    schema_registry_url: str | None = Field(
        default=None, description="A Schema Registry with Confluent's API, http://registry:8081 say; comma-separated"
    )
    schema_registry_properties: Path | None = Field(
        default=None, description="A file of its client's properties (name=value lines): TLS, credentials, proxy"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least level logged: debug, info, warning or error"
    )
    traces: TracesSwitch = Field(
        default="auto", description="OpenTelemetry spans: on, off, or auto: where an OTEL_ variable names an endpoint"
    )
    tier_ttl_ms: dict[Tier, TierMilliseconds] = Field(
        default_factory=dict,
        description="Deadlines of requests that name none, in milliseconds by tier (high 5000, mid 30000, low 86400000 "
        'unless given; 7 days at most), as JSON: {"high": 60000}',
    )
    tier_wait_ms: dict[Tier, TierMilliseconds] = Field(
        default_factory=dict,
        description="Waits that a tier tolerates before a request starts, in milliseconds (60 % of its deadline unless "
        'given, for high 3000 at most), as JSON: {"high": 10000}',
    )

    # Passed by `load_settings` to the sources, which pydantic makes per class.
    toml_path: ClassVar[Path | None] = None
    variables: ClassVar[Mapping[str, str]] = {}

    @field_validator("*", mode="before")
    @classmethod
    def _no_boolean_for_a_number(cls, value: object, info: ValidationInfo) -> object:
        # pydantic would accept a TOML true for the number 1.
        assert info.field_name is not None
        annotation = cls.model_fields[info.field_name].annotation
        if isinstance(value, bool) and bool not in (annotation, *get_args(annotation)):
            raise ValueError("a boolean is not meant here")
        return value

    @field_validator("bootstrap_servers")
    @classmethod
    def _servers(cls, value: str) -> str:
        return check_bootstrap_servers(value)

    @field_validator("pool")
    @classmethod
    def _pool_name(cls, value: str) -> str:
        try:
            return Pool(value).name
        except UsageError:
            raise ValueError("that is no pool name") from None

    @field_validator("schema_registry_url")
    @classmethod
    def _registry_url(cls, value: str | None) -> str | None:
        return None if value is None else check_registry_url(value)

    def pool_topics(self) -> Pool:
        """The pool's names."""
        return Pool(self.pool)

    def connection(self) -> KafkaConnection:
        """How to reach the brokers. Raises ``UsageError`` for a bad properties file, or a bad token provider.

        A ``bootstrap.servers`` in that file counts when the setting was not given.
        """
        properties = read_properties(self.kafka_properties) if self.kafka_properties else {}
        servers = self.bootstrap_servers
        in_file = properties.pop("bootstrap.servers", None)
        if in_file is not None and "bootstrap_servers" not in self.model_fields_set:
            try:
                servers = check_bootstrap_servers(in_file)
            except ValueError as error:
                raise UsageError(
                    PROPERTIES_FIELD,
                    f"{self.kafka_properties} sets bootstrap.servers: {error}",
                    fix="give host:port, comma-separated",
                ) from None
        tokens = None
        if self.kafka_token_provider is not None:
            properties = token_properties(properties)
            tokens = load_token_source(self.kafka_token_provider, bootstrap_servers=servers)
        watch = ConnectionWatch(
            reread=partial(read_properties, self.kafka_properties) if self.kafka_properties else None, tokens=tokens
        )
        return KafkaConnection(bootstrap_servers=servers, properties=properties, watch=watch, tokens=tokens)

    def tier_times(self) -> TierTimes:
        """The pool's deadlines and waits. Raises ``UsageError`` when a wait is not shorter than its deadline."""
        return checked_times(ENV_PREFIX + "TIER_WAIT_MS", self.tier_ttl_ms, self.tier_wait_ms)

    def schema_registry(self) -> SchemaRegistry | None:
        """The Schema Registry, if one is configured. Raises ``UsageError`` for a bad properties file."""
        if self.schema_registry_properties is not None:
            read_registry_properties(self.schema_registry_properties)
        if self.schema_registry_url is None:
            return None
        return SchemaRegistry(self.schema_registry_url, properties=self.schema_registry_properties)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the base class passes it by name
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        assert isinstance(env_settings, EnvSettingsSource)
        env_settings.env_vars = {name.lower(): value for name, value in cls.variables.items()}
        if cls.toml_path is None:
            return init_settings, env_settings
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, cls.toml_path)


def checked_times(field: str, ttl_ms: Mapping[Tier, int], wait_ms: Mapping[Tier, int]) -> TierTimes:
    """What these settings grant each tier. Raises ``UsageError`` for ``field``, which gave ``wait_ms``."""
    times = tier_times(ttl_ms, wait_ms)
    for tier in TIERS:
        if tier in wait_ms and times.wait_ms[tier] >= times.ttl_ms[tier]:
            raise UsageError(
                field,
                f"is {times.wait_ms[tier]} for {tier}, whose deadline is {times.ttl_ms[tier]} (FOREBAY_TIER_TTL_MS)",
                fix="lower it, or raise that: what is left of the deadline is for the execution",
            )
    return times


_Settings = TypeVar("_Settings", bound=CommonSettings)


def load_settings(
    cls: type[_Settings], *, flags: Mapping[str, Any], config: Path | None, environ: Mapping[str, str] = os.environ
) -> _Settings:
    """Reads the settings: ``flags`` (None = not given) beat FOREBAY_ variables, which beat the TOML file ``config``.

    ``flags`` has the settings' own names. An empty variable counts as not set, and so does what Kubernetes sets for a
    Service. Raises ``UsageError`` naming the setting, where it came from, and what it takes; secrets are not shown.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    variables = _our_variables(environ)
    _refuse_unknown_variables(cls, variables)
    if config is not None and not config.is_file():
        raise UsageError("--config", f"{config} is not a file", fix="name a TOML file")
    known_in = {"toml_path": config, "variables": variables, "__module__": cls.__module__}
    source = type(cls.__name__, (cls,), known_in)
    try:
        settings = source(**given)
    except ValidationError as error:
        # Its context would show the values, secrets included.
        raise _explain(cls, error, given=given, variables=variables, config=config) from None
    except SettingsError as error:
        # Only a variable is parsed as JSON before it is checked; the text quotes the field's name.
        name = next((name for name in cls.model_fields if f'"{name}"' in str(error)), "")
        raise UsageError(ENV_PREFIX + name.upper(), "is not JSON", fix=_takes(cls, name)) from None
    except OSError as error:
        raise UsageError("--config", f"{config}: {error.strerror}", fix="name a readable TOML file") from None
    except UnicodeDecodeError:
        raise UsageError("--config", f"{config} is not UTF-8", fix="save it as UTF-8") from None
    except ValueError as error:  # tomllib's
        raise UsageError("--config", f"{config} is not TOML: {error}", fix="correct that line") from None
    settings.tier_times()
    return settings  # type: ignore[no-any-return]


def _our_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that are set and meant for us, under upper-case names: pydantic takes any case."""
    return {
        variable.upper(): value
        for variable, value in environ.items()
        if variable.upper().startswith(ENV_PREFIX)
        and value
        and not _KUBERNETES_NAME.search(variable)
        and not (variable.endswith("_PORT") and _KUBERNETES_PORT.match(value))
    }


def _refuse_unknown_variables(cls: type[CommonSettings], variables: Mapping[str, str]) -> None:
    known = KNOWN_VARIABLES | {ENV_PREFIX + name.upper() for name in cls.model_fields}
    for variable in sorted(variables.keys() - known):
        raise UsageError(variable, "is no setting", fix=_did_you_mean(variable, known))


def _explain(
    cls: type[CommonSettings],
    error: ValidationError,
    *,
    given: Mapping[str, Any],
    variables: Mapping[str, str],
    config: Path | None,
) -> UsageError:
    first = error.errors()[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    if name in given:
        where = "--" + name.replace("_", "-")
    elif ENV_PREFIX + name.upper() in variables:
        where = ENV_PREFIX + name.upper()
    else:
        where = f"{name} in {config}"
    if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
        if isinstance(first["input"], dict):
            return UsageError(where, "is a table", fix="write name = value lines, without [sections]")
        return UsageError(where, "is no setting", fix=_did_you_mean(name, cls.model_fields.keys()))
    given_value = first["input"]
    if isinstance(given_value, str):
        given_value = without_credentials(given_value)  # before it is cut short
    value = "[hidden]" if "SecretStr" in str(cls.model_fields[name].annotation) else shown(given_value)
    message = first["msg"].removeprefix("Value error, ").replace("a valid dictionary", "a JSON object or a TOML table")
    within = first["loc"][1:]
    # For a table, its entry. For list items and invalid keys pydantic gives no name.
    is_named = bool(name and within) and isinstance(within[0], str) and within[-1] != "[key]"
    entry = f"{printable('.'.join(map(str, within)))} " if is_named else ""
    return UsageError(where, f"{entry}is {value}: {message[0].lower()}{message[1:]}", fix=_takes(cls, name))


def _takes(cls: type[CommonSettings], name: str) -> str:
    field = cls.model_fields.get(name)
    return f"it takes: {field.description}" if field and field.description else "correct it"


def _did_you_mean(name: str, known: Set[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1) or difflib.get_close_matches(
        name.upper().removeprefix(ENV_PREFIX).lower(), known, n=1
    )
    return f"did you mean {close[0]}?" if close else f"the settings are {', '.join(sorted(known))}"
