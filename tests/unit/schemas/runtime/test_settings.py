"""Settings: which source wins, and the words for a wrong one. Reads files in a temporary folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import Field, SecretStr

from forebay_schemas.contract.tiers import DEFAULT_TIER_TIMES, Tier, tier_times
from forebay_schemas.errors import ExitCode, UsageError
from forebay_schemas.runtime.settings import CommonSettings, load_settings


class Settings(CommonSettings):
    """The common ones, and one of each other kind."""

    limit_max: int = Field(default=32, ge=1, description="Requests in flight at most")
    drain_seconds: float = Field(default=30.0, ge=0, description="Seconds for the drain")
    backend_api_key: SecretStr | None = Field(default=None, description="The backend's key")
    biz_paths: dict[str, str] = Field(default_factory=dict, description="Paths by biz_type, as JSON")
    gateway_port: int = Field(default=8080, description="The gateway's port")
    eager: bool = Field(default=False, description="Whether to begin at once")
    lazy: bool | None = Field(default=None, description="Whether to begin later, if it is known")


class Sources:
    def __init__(self, folder: Path) -> None:
        self.file = folder / "forebay.toml"

    def load(self, *, toml: str | bytes | None = None, env: dict[str, str] | None = None, **flags: Any) -> Settings:
        if toml is not None:
            self.file.write_bytes(toml if isinstance(toml, bytes) else toml.encode())
        config = None if toml is None else self.file
        return load_settings(Settings, flags=flags, config=config, environ=env or {})

    def refused(self, **sources: Any) -> UsageError:
        with pytest.raises(UsageError) as caught:
            self.load(**sources)
        assert caught.value.exit_code is ExitCode.USAGE
        assert len(str(caught.value)) < 500
        return caught.value


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    return Sources(tmp_path)


def test_a_flag_beats_the_environment_which_beats_the_file(sources: Sources) -> None:
    toml, env = "pool = 'file'\nlimit_max = 3\ndrain_seconds = 1", {"FOREBAY_POOL": "env", "FOREBAY_LIMIT_MAX": "4"}
    settings = sources.load(toml=toml, env=env, pool="flag", limit_max=None)
    assert (settings.pool, settings.limit_max, settings.drain_seconds, settings.gateway_port) == ("flag", 4, 1, 8080)


def test_without_any_source_the_defaults_hold(sources: Sources) -> None:
    settings = sources.load()
    assert (settings.bootstrap_servers, settings.pool, settings.log_level) == ("127.0.0.1:9092", "default", "info")
    assert settings.kafka_properties is None


def test_the_real_environment_is_read_when_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_POOL", "real")
    assert load_settings(Settings, flags={}, config=None).pool == "real"


def test_an_empty_variable_counts_as_not_set_and_case_does_not_matter(sources: Sources) -> None:
    assert sources.load(toml="pool = 'file'", env={"FOREBAY_POOL": "", "forebay_limit_max": "7"}).pool == "file"
    assert sources.load(env={"forebay_limit_max": "7"}).limit_max == 7


@pytest.mark.parametrize(
    ("where", "sources_given"),
    [
        ("--limit-max", {"limit_max": "many", "env": {"FOREBAY_LIMIT_MAX": "5"}}),
        ("FOREBAY_LIMIT_MAX", {"env": {"FOREBAY_LIMIT_MAX": "many"}, "toml": "limit_max = 5"}),
        ("limit_max in ", {"toml": "limit_max = 'many'"}),
    ],
)
def test_an_error_names_where_the_wrong_value_came_from(
    sources: Sources, where: str, sources_given: dict[str, Any]
) -> None:
    error = sources.refused(**sources_given)
    assert error.field.startswith(where)
    assert error.problem.startswith("is 'many': input should be a valid integer")
    assert error.fix == "it takes: Requests in flight at most"
    if "toml" in sources_given and where.endswith(" in "):
        assert str(sources.file) in error.field


@pytest.mark.parametrize(
    ("variable", "value", "problem"),
    [
        ("FOREBAY_LIMIT_MAX", "0", "is '0': input should be greater than or equal to 1"),
        ("FOREBAY_LIMIT_MAX", "1.5", "is '1.5'"),
        ("FOREBAY_LIMIT_MAX", "true", "is 'true'"),
        ("FOREBAY_DRAIN_SECONDS", "nan", "input should be a finite number"),
        ("FOREBAY_DRAIN_SECONDS", "inf", "input should be a finite number"),
        ("FOREBAY_DRAIN_SECONDS", "30s", "is '30s'"),
        ("FOREBAY_LOG_LEVEL", "verbose", "input should be 'debug', 'info', 'warning' or 'error'"),
        ("FOREBAY_POOL", "a.b", "is 'a.b': that is no pool name"),
        ("FOREBAY_POOL", "x" * 5000, "that is no pool name"),
        ("FOREBAY_BOOTSTRAP_SERVERS", "kafka", "is 'kafka': 'kafka' is not host:port"),
        ("FOREBAY_BOOTSTRAP_SERVERS", "a:1,", "'' is not host:port"),
        ("FOREBAY_BIZ_PATHS", "{", "is not JSON"),
        ("FOREBAY_BIZ_PATHS", "[1]", "should be a JSON object or a TOML table"),
        ("FOREBAY_TIER_TTL_MS", "60000", "should be a JSON object or a TOML table"),
        ("FOREBAY_TIER_TTL_MS", '{"urgent": 60000}', "input should be 'high', 'mid' or 'low'"),
        ("FOREBAY_TIER_TTL_MS", '{"high": 0}', "high is 0: input should be greater than or equal to 1"),
        ("FOREBAY_TIER_TTL_MS", '{"low": 604800001}', "input should be less than or equal to 604800000"),
        ("FOREBAY_TIER_TTL_MS", '{"high": "60s"}', "input should be a valid integer"),
        ("FOREBAY_TIER_TTL_MS", '{"high": true}', "input should be a valid integer"),
        ("FOREBAY_TIER_WAIT_MS", '{"high": 2.5}', "input should be a valid integer"),
    ],
)
def test_a_wrong_value_is_refused_at_load(sources: Sources, variable: str, value: str, problem: str) -> None:
    error = sources.refused(env={variable: value})
    assert error.field == variable
    assert problem in error.problem
    assert error.fix.startswith("it takes: ")


@pytest.mark.parametrize(
    ("toml", "field", "problem"),
    [
        ("limit_max = true", "limit_max in ", "is True: a boolean is not meant here"),
        ("drain_seconds = false", "drain_seconds in ", "a boolean is not meant here"),
        ("pool = 5", "pool in ", "is 5: input should be a valid string"),
        ("[worker]\nlimit_max = 5", "worker in ", "is a table"),
        ("[pool]\nname = 'x'", "pool in ", "input should be a valid string"),
        ("bootstrap-servers = 'a:1'", "bootstrap-servers in ", "is no setting"),
        ("limit_max", "--config", "is not TOML"),
        ("limit_max = 1\nlimit_max = 2", "--config", "is not TOML"),
        (b"pool = '\xff'", "--config", "is not UTF-8"),
        ("drain_seconds = nan", "drain_seconds in ", "finite number"),
    ],
)
def test_a_wrong_line_of_the_file_is_refused(sources: Sources, toml: str | bytes, field: str, problem: str) -> None:
    error = sources.refused(toml=toml)
    assert error.field.startswith(field)
    assert problem in error.problem
    assert str(sources.file) in str(error)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.toml", tmp_path):
        with pytest.raises(UsageError, match=r"^--config: .* is not a file"):
            load_settings(Settings, flags={}, config=path, environ={})


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"env": {"FOREBAY_LIMT_MAX": "5"}}, "FOREBAY_LIMIT_MAX"),
        ({"env": {"forebay_pol": "x"}}, "FOREBAY_POOL"),
        ({"toml": "limt_max = 5"}, "limit_max"),
        ({"toml": "FOREBAY_LIMIT_MAX = 5"}, "limit_max"),
        ({"toml": "limit-max = 5"}, "limit_max"),
    ],
)
def test_an_unknown_name_is_refused_with_the_one_that_was_meant(
    sources: Sources, given: dict[str, Any], meant: str
) -> None:
    error = sources.refused(**given)
    assert error.problem == "is no setting"
    assert error.fix == f"did you mean {meant}?"


def test_what_resembles_nothing_gets_the_list(sources: Sources) -> None:
    with pytest.raises(UsageError, match=r"^zzz in .*: is no setting; the settings are .*bootstrap_servers, .*pool"):
        sources.load(toml="zzz = 1")


def test_what_kubernetes_sets_for_a_service_is_no_setting(sources: Sources) -> None:
    env = {
        "FOREBAY_WORKER_SERVICE_HOST": "10.0.0.1",
        "FOREBAY_WORKER_SERVICE_PORT": "8081",
        "FOREBAY_WORKER_SERVICE_PORT_HTTP_OPS": "8081",
        "FOREBAY_WORKER_PORT": "tcp://10.0.0.1:8081",
        "FOREBAY_WORKER_PORT_8081_TCP": "tcp://10.0.0.1:8081",
        "FOREBAY_WORKER_PORT_8081_TCP_ADDR": "10.0.0.1",
        "FOREBAY_WORKER_PORT_8081_SCTP_PROTO": "sctp",
        # A Service called forebay-gateway: its variable has the name of a setting.
        "FOREBAY_GATEWAY_PORT": "tcp://10.0.0.1:80",
    }
    assert sources.load(env=env).gateway_port == 8080
    assert sources.load(env=env | {"FOREBAY_GATEWAY_PORT": "9"}).gateway_port == 9
    assert sources.refused(env=env | {"FOREBAY_GATEWAY_PORT": "http"}).field == "FOREBAY_GATEWAY_PORT"


def test_a_secret_is_not_shown_when_it_is_wrong(sources: Sources) -> None:
    error = sources.refused(toml="backend_api_key = 123456")
    assert "[hidden]" in str(error)
    assert "123456" not in str(error)
    assert "hunter2" not in repr(sources.load(env={"FOREBAY_BACKEND_API_KEY": "hunter2"}))


def test_a_real_boolean_is_a_boolean(sources: Sources) -> None:
    assert sources.load(toml="eager = true").eager is True
    assert sources.load(toml="lazy = false").lazy is False
    assert sources.load(env={"FOREBAY_EAGER": "yes"}).eager is True


def test_a_table_is_taken_where_one_is_meant(sources: Sources) -> None:
    assert sources.load(toml="[biz_paths]\nrerank = '/v1/rerank'").biz_paths == {"rerank": "/v1/rerank"}


def test_the_properties_file_may_name_the_brokers_unless_the_setting_does(sources: Sources, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=cloud:9092, cloud2:9092\nsasl.password=hunter2\n")
    found = sources.load(kafka_properties=file).connection()
    assert found.bootstrap_servers == "cloud:9092,cloud2:9092"
    assert found.properties == {"sasl.password": "hunter2"}
    for given in ({"bootstrap_servers": "mine:1"}, {"env": {"FOREBAY_BOOTSTRAP_SERVERS": "mine:1"}}):
        assert sources.load(kafka_properties=file, **given).connection().bootstrap_servers == "mine:1"
    assert (
        sources.load(toml="bootstrap_servers='mine:1'", kafka_properties=file).connection().bootstrap_servers
        == "mine:1"
    )
    file.write_text("bootstrap.servers=cloud\n")
    with pytest.raises(
        UsageError,
        match=r"^--kafka-properties / FOREBAY_KAFKA_PROPERTIES: .* sets bootstrap.servers: 'cloud' is not host:port",
    ):
        sources.load(kafka_properties=file).connection()


def test_the_pool_and_the_connection_come_ready_made(sources: Sources) -> None:
    settings = sources.load(pool="p", bootstrap_servers="a:1 , b:2")
    assert settings.pool_topics().results == "forebay.p.results"
    assert settings.connection().bootstrap_servers == "a:1,b:2"


def test_deadlines_and_waits_of_tiers_come_from_a_variable_or_a_table(sources: Sources) -> None:
    for settings in (
        sources.load(env={"FOREBAY_TIER_TTL_MS": '{"high": 60000}', "FOREBAY_TIER_WAIT_MS": '{"high": 10000}'}),
        sources.load(toml="[tier_ttl_ms]\nhigh = 60000\n[tier_wait_ms]\nhigh = 10000"),
    ):
        assert settings.tier_times() == tier_times({Tier.HIGH: 60_000}, {Tier.HIGH: 10_000})
    assert sources.load().tier_times() == DEFAULT_TIER_TIMES


@pytest.mark.parametrize(
    ("env", "problem"),
    [
        ({"FOREBAY_TIER_WAIT_MS": '{"high": 5000}'}, "is 5000 for high, whose deadline is 5000 (FOREBAY_TIER_TTL_MS)"),
        (
            {"FOREBAY_TIER_TTL_MS": '{"mid": 10000}', "FOREBAY_TIER_WAIT_MS": '{"mid": 18000}'},
            "is 18000 for mid, whose deadline is 10000 (FOREBAY_TIER_TTL_MS)",
        ),
    ],
)
def test_a_wait_that_leaves_no_time_for_the_execution_is_refused(
    sources: Sources, env: dict[str, str], problem: str
) -> None:
    error = sources.refused(env=env)
    assert (error.field, error.problem) == ("FOREBAY_TIER_WAIT_MS", problem)
    assert error.fix == "lower it, or raise that: what is left of the deadline is for the execution"
