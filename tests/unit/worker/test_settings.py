"""The worker's settings: which backends it takes, and that every refusal names the setting and the fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forebay_schemas.clock import SystemClock
from forebay_schemas.errors import UsageError
from forebay_worker.settings import WorkerSettings, default_worker_id, load_worker_settings
from forebay_worker.wiring.choices import make_policy
from forebay_worker.wiring.signals import make_signals


def load(**flags: Any) -> WorkerSettings:
    return load_worker_settings(flags=flags, config=None)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8000",
        "https://engine.example",
        "http://engine.example:80/",
        "HTTP://engine/base/path",
        "http://[::1]:8000",
        "http://user:word@engine:8000",
    ],
)
def test_urls_of_backends(url: str) -> None:
    assert load(backend_url=url).backend_url == url


@pytest.mark.parametrize(
    ("url", "understood"),
    [
        ("http://engine/v1", "http://engine"),
        ("http://engine:8000/v1/", "http://engine:8000"),
        ("http://engine/base/v1", "http://engine/base"),
        ("http://v1", "http://v1"),
        ("http://engine/v1beta", "http://engine/v1beta"),
        ("http://engine/v1/base", "http://engine/v1/base"),
    ],
)
def test_a_version_at_the_end_of_a_backends_url_is_understood(url: str, understood: str) -> None:
    settings = load(backend_url=url)
    assert settings.backend_url == understood
    assert settings.shared_backend == load(backend_url=understood).shared_backend, "they share it"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "no http URL"),
        ("127.0.0.1:8000", "no http URL"),
        ("engine", "no http URL"),
        ("ftp://engine", "no http URL"),
        ("http://", "no http URL"),
        ("http://:8000", "no http URL"),
        ("http://engine:0", "no http URL"),
        ("http://engine:99999", "no URL"),
        ("http://engine:x", "no URL"),
        ("http://[::1", "no URL"),
        ("http://two words", "no http URL"),
        (" http://engine", "no http URL"),
        ("http://engine:8000\n", "no http URL"),
        ("http://engine?x=1", "query or fragment"),
        ("http://engine/?", "query or fragment"),
        ("http://engine/#top", "query or fragment"),
        ("http://engine/v1?x=1", "query or fragment"),
        ("http://engine/" + "a" * 2048, "is 2062 characters long"),
    ],
)
def test_what_is_no_backends_url_is_refused_with_the_fix(url: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        load(backend_url=url)
    assert raised.value.field == "FOREBAY_BACKEND_URL"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "both missing"),
        ({"backend_url": "http://engine", "handler": "a:b"}, "both set"),
    ],
)
def test_one_backend_is_needed_and_no_more(given: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        load(**given)


def test_a_path_of_a_biz_type_starts_with_a_slash() -> None:
    assert load(handler="a:b", biz_paths={"rerank": "/v1/rerank"}).biz_paths == {"rerank": "/v1/rerank"}
    with pytest.raises(UsageError, match="rerank: 'v1/rerank' is no path") as raised:
        load(handler="a:b", biz_paths={"rerank": "v1/rerank"})
    assert raised.value.field == "FOREBAY_BIZ_PATHS"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("limit_max", 0),
        ("limit_max", 100_001),
        ("limit_max", "many"),
        ("buffer_bytes_max", 1_000),
        ("drain_seconds", -1),
        ("drain_seconds", "inf"),
        ("backend_timeout_seconds", 0),
        ("backend_connect_seconds", "nan"),
        ("ops_port", 65_536),
        ("worker_id", "a b"),
        ("worker_id", ""),
        ("pacing_policy", "magic"),
    ],
)
def test_a_value_out_of_range_is_refused_by_the_flags_name(name: str, value: object) -> None:
    with pytest.raises(UsageError) as raised:
        load(handler="a:b", **{name: value})
    assert raised.value.field == "--" + name.replace("_", "-")
    assert raised.value.fix.startswith("it takes: ")


@pytest.mark.parametrize(
    ("given", "field", "said"),
    [
        ({"metrics_url": "engine:9000"}, "FOREBAY_METRICS_URL", "no http URL"),
        ({"metrics_url": "http://engine:x"}, "FOREBAY_METRICS_URL", "no URL"),
        ({"gpu": "prometheus"}, "FOREBAY_GPU_PROMETHEUS_URL", "is missing"),
        ({"gpu": "prometheus", "gpu_prometheus_url": "prom"}, "FOREBAY_GPU_PROMETHEUS_URL", "no http URL"),
        ({"gpu_devices": "0,first"}, "FOREBAY_GPU_DEVICES", "'first' is no GPU's index or UUID"),
    ],
)
def test_sources_of_signals_that_cannot_be_are_refused_at_the_start(
    given: dict[str, str], field: str, said: str
) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        load(backend_url="http://engine", **given)
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("given", "engine", "gpu"),
    [
        ({"backend_url": "http://engine:8000/base/"}, "http://engine:8000/base/metrics", "nvml"),
        ({"backend_url": "http://engine", "metrics_url": "http://other:9/m"}, "http://other:9/m", "nvml"),
        ({"handler": "a:b"}, None, "nvml"),
        ({"handler": "a:b", "metrics_url": "http://other:9/m", "gpu": "none"}, "http://other:9/m", None),
        ({"handler": "a:b", "gpu": "prometheus", "gpu_prometheus_url": "http://prom"}, None, "prometheus"),
    ],
)
def test_signals_come_from_where_the_settings_say(given: dict[str, str], engine: str | None, gpu: str | None) -> None:
    sources = make_signals(load(**given), SystemClock()).sources(SystemClock().monotonic())
    assert (sources["engine"]["source"], sources["gpu"]["source"]) == (engine, gpu)


def test_a_key_is_never_shown() -> None:
    settings = load(backend_url="http://engine", backend_api_key="s3cret")
    assert "s3cret" not in repr(settings)
    assert settings.backend_api_key is not None
    assert settings.backend_api_key.get_secret_value() == "s3cret"


def test_a_worker_has_a_name_that_the_setting_would_take() -> None:
    assert load(handler="a:b").worker_id == default_worker_id()
    assert load(handler="a:b", worker_id=default_worker_id()).worker_id == default_worker_id()


@pytest.mark.parametrize(
    ("flags", "variable"),
    [
        ({"limit_min": 300}, "FOREBAY_LIMIT_MIN"),
        ({"limit_start": 300}, "FOREBAY_LIMIT_START"),
        ({"limit_start": 3, "limit_min": 4}, "FOREBAY_LIMIT_START"),
        ({"mid_share": 0.9, "low_share": 0.9}, "FOREBAY_MID_SHARE"),
        ({"gpu_devices": "0,,1"}, "FOREBAY_GPU_DEVICES"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(flags: dict[str, Any], variable: str) -> None:
    with pytest.raises(UsageError, match=variable):
        load_worker_settings(flags={"backend_url": "http://127.0.0.1:8000", **flags}, config=None)


def test_a_default_gives_way_to_what_was_given() -> None:
    settings = load_worker_settings(flags={"backend_url": "http://127.0.0.1:8000", "limit_max": 2}, config=None)
    assert make_policy(settings).limit_requests == 2


def test_the_backend_s_key_can_lie_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n", encoding="utf-8")
    settings = load(backend_url="http://engine", backend_api_key=f"${{directory:{tmp_path}:token}}")
    assert settings.read_backend_key() == "s3cret"
    (tmp_path / "token").write_text("another\n", encoding="utf-8")
    assert settings.read_backend_key() == "another"


@pytest.mark.parametrize("given", [[399], [600], ["3xx"], ["5XX"], ["500x"], [True]])
def test_what_is_no_status_to_try_again_after_is_refused(given: list[object]) -> None:
    with pytest.raises(UsageError, match="retry-statuses"):
        load(backend_url="http://engine", retry_statuses=given)


def test_a_key_file_that_is_not_there_is_named_by_its_setting(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"backend-api-key: is \[hidden\]: the file cannot be read: No such file"):
        load(backend_url="http://engine", backend_api_key=f"${{directory:{tmp_path}:token}}")


@pytest.mark.parametrize(
    "url", ["http://user:s3cret@host/?", "http://user:s3 cret@host", "http://us@er:s3c/ret@host?q", "ftp://:s3cret@h"]
)
def test_credentials_in_a_refused_url_are_not_shown(url: str) -> None:
    for name in ("backend_url", "metrics_url"):
        flags = {"backend_url": "http://host"} | {name: url}
        if name == "metrics_url" and url.startswith("http://user:s3cret"):
            continue  # that one may have such a path
        with pytest.raises(UsageError) as caught:
            load_worker_settings(flags=flags, config=None)
        assert "cret" not in str(caught.value)
        assert "[hidden]@" in caught.value.problem


def test_a_registry_url_with_credentials_is_refused_without_showing_them() -> None:
    long_enough_to_be_cut = "s3cret" * 40
    with pytest.raises(UsageError, match="credentials belong into") as caught:
        load(schema_registry_url=f"http://user:{long_enough_to_be_cut}@registry:8081")
    assert "s3cret" not in str(caught.value)


def test_a_key_and_credentials_in_the_url_are_one_too_many() -> None:
    with pytest.raises(UsageError, match="credentials in FOREBAY_BACKEND_URL too"):
        load_worker_settings(
            flags={"backend_url": "http://user:s3cret@host", "backend_api_key": "sk-1"},
            config=None,
        )
