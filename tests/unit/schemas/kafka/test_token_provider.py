"""Tokens from a function: when a new one is asked for, what is no token, and what names lead nowhere."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from forebay_schemas.errors import AuthenticationFailedError, UsageError
from forebay_schemas.kafka.diagnosis import refused_credentials
from forebay_schemas.kafka.token_provider import TokenSource, load_token_source, token_properties
from simulated.ports import ManualClock

SERVERS = "b-1.demo.abc123.c2.kafka.eu-central-1.amazonaws.com:9098"


class _Provider:
    """Gives the token that a test sets, and counts."""

    def __init__(self, *given: object) -> None:
        self.given = list(given)
        self.asked = 0

    def __call__(self) -> object:
        self.asked += 1
        given = self.given.pop(0) if len(self.given) > 1 else self.given[0]
        if isinstance(given, Exception):
            raise given
        return given


def test_a_token_serves_all_clients_for_half_of_its_life() -> None:
    clock = ManualClock()
    start = clock.wall_ms() / 1000
    provider = _Provider(("first", start + 100), ("second", start + 200))
    source = TokenSource("app:token", provider, clock=clock)
    assert source(None) == ("first", start + 100)
    clock.advance(49)
    assert source(None)[0] == "first"
    clock.advance(2)
    assert source(None)[0] == "second"
    assert provider.asked == 2


def test_a_provider_that_fails_is_asked_again_and_its_words_are_told() -> None:
    clock = ManualClock()
    provider = _Provider(RuntimeError("no credentials\nfound"), ("token", clock.wall_ms() / 1000 + 60))
    source = TokenSource("app:token", provider, clock=clock)
    with pytest.raises(AuthenticationFailedError, match="app:token raised RuntimeError: no credentials found"):
        source(None)
    assert source.problem == "app:token raised RuntimeError: no credentials found"
    assert source(None)[0] == "token"
    assert source.problem is None


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("a-secret-token", "returned str instead of"),
        (("a-secret-token",), "returned tuple instead of"),
        (("a-secret-token", "soon"), "returned tuple instead of"),
        (("", 1e10), "returned tuple instead of"),
        (("a-secret-token", 1.0), "had expired"),
        (("a-secret-token", 1.8e12), "in milliseconds"),
        (("a-secret-token", float("nan")), "returned tuple instead of"),
    ],
)
def test_what_is_no_token_is_named_and_not_shown(given: object, problem: str) -> None:
    source = TokenSource("app:token", _Provider(given), clock=ManualClock())
    with pytest.raises(AuthenticationFailedError, match=problem) as refused:
        source.token()
    assert "a-secret-token" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("app", "'app' is no token provider"),
        ("app:", "'app:' is no token provider"),
        ("no_such_module_at_all:token", "cannot be imported: ModuleNotFoundError"),
        ("json:no_such_function", "module json has no function no_such_function"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused(name: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as refused:
        load_token_source(name, bootstrap_servers=SERVERS)
    assert "FOREBAY_KAFKA_TOKEN_PROVIDER" in str(refused.value)


def test_a_function_in_the_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "our_tokens.py").write_text("def token():\n    return 'from a file', 1e10\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load_token_source("our_tokens:token", bootstrap_servers=SERVERS).token().value == "from a file"


def test_the_documented_function_gives_the_pod_s_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = (Path(__file__).parents[4] / "docs" / "security.md").read_text(encoding="utf-8")
    example = next(block for block in written.split("```python\n")[1:] if "def token" in block).split("```")[0]
    claims = base64.urlsafe_b64encode(json.dumps({"sub": "system:serviceaccount:a:b", "exp": 4e9}).encode()).rstrip(
        b"="
    )
    value = f"header.{claims.decode()}.signature"
    (tmp_path / "token").write_text(f"{value}\n", encoding="utf-8")
    (tmp_path / "pod_tokens.py").write_text(
        example.replace("/var/run/secrets/kafka/token", str(tmp_path / "token")), encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    token = load_token_source("pod_tokens:token", bootstrap_servers=SERVERS).token()
    assert (token.value, token.expires_at) == (value, 4e9)


AWS = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "secret"}


@pytest.mark.parametrize(
    ("servers", "environ", "region"),
    [
        (SERVERS, {"AWS_REGION": "us-east-1"}, "eu-central-1"),
        ("boot-abc.c1.kafka-serverless.us-west-2.amazonaws.com:9098", {}, "us-west-2"),
        ("kafka.internal:9098", {"AWS_REGION": "us-east-1"}, "us-east-1"),
        ("kafka.internal:9098", {"AWS_DEFAULT_REGION": "ap-south-1"}, "ap-south-1"),
    ],
)
def test_msk_gets_a_signed_request_for_the_cluster_s_region(
    servers: str, environ: dict[str, str], region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("aws_msk_iam_sasl_signer", reason="needs the extra msk")
    for name, value in AWS.items():
        monkeypatch.setenv(name, value)
    token = load_token_source("msk_iam", bootstrap_servers=servers, environ=environ).token()
    url = urlsplit(base64.urlsafe_b64decode(token.value + "=" * (-len(token.value) % 4)).decode())
    asked = parse_qs(url.query)
    assert url.hostname == f"kafka.{region}.amazonaws.com"
    assert asked["Action"] == ["kafka-cluster:Connect"]
    assert asked["X-Amz-Credential"][0].startswith("AKIDEXAMPLE/")
    assert f"/{region}/kafka-cluster/" in asked["X-Amz-Credential"][0]
    assert AWS["AWS_SECRET_ACCESS_KEY"] not in repr(token)


def test_msk_without_a_region_is_refused() -> None:
    pytest.importorskip("aws_msk_iam_sasl_signer", reason="needs the extra msk")
    with pytest.raises(UsageError, match="set AWS_REGION"):
        load_token_source("msk_iam", bootstrap_servers="kafka.internal:9098", environ={})


def test_tls_and_the_mechanism_go_without_saying() -> None:
    assert token_properties({"client.id": "x"}) == {
        "client.id": "x",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
    }
    assert token_properties({"security.protocol": "sasl_plaintext", "sasl.mechanisms": "OAUTHBEARER"}) == {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "OAUTHBEARER",
    }


@pytest.mark.parametrize(
    "properties",
    [
        {"security.protocol": "SSL"},
        {"sasl.mechanism": "PLAIN"},
        {"sasl.mechanisms": "SCRAM-SHA-512"},
        {"sasl.oauthbearer.method": "oidc"},
    ],
)
def test_properties_that_say_otherwise_are_refused(properties: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=next(iter(properties)).replace("mechanisms", "mechanism")):
        token_properties(properties)


def test_a_provider_that_fails_later_is_told_with_its_fix() -> None:
    error = refused_credentials(
        "Failed to acquire SASL OAUTHBEARER token: app:token raised RuntimeError: gone",
        token_properties({}),
    )
    assert "app:token raised RuntimeError: gone" in str(error)
    assert "mend what FOREBAY_KAFKA_TOKEN_PROVIDER names" in str(error)
