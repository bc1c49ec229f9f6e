"""Schemas by id: each is fetched once, an answer is an answer, and silence is none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from forebay_schemas.errors import EnvelopeError, UsageError
from forebay_schemas.formats import schema_fetcher
from forebay_schemas.formats.avro import latest_schema
from forebay_schemas.formats.envelope_reader import SchemaPendingError
from forebay_schemas.formats.schema_fetcher import (
    SCHEMAS_MAX,
    UNKNOWN_SECONDS,
    WAIT_SECONDS_MAX,
    SchemaFetcher,
    WaitingSchemas,
)
from forebay_schemas.formats.schema_registry import (
    SchemaRegistry,
    SchemaRegistryUnreachableError,
    SchemaTexts,
    check_registry_url,
    read_registry_properties,
)
from harness.fake_registry import fake_registry
from simulated.ports import ManualClock


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with capture_logs():
        yield


class ScriptedRegistry(SchemaRegistry):
    """Answers from a table; an id that is not in it gets no answer."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1", properties=None)
        self.texts: dict[int, str | None] = {}
        self.asked: list[int] = []

    def schema_texts(self, schema_id: int) -> SchemaTexts | None:
        self.asked.append(schema_id)
        if schema_id not in self.texts:
            raise SchemaRegistryUnreachableError("nobody there")
        text = self.texts[schema_id]
        return None if text is None else SchemaTexts(text)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def registry() -> ScriptedRegistry:
    return ScriptedRegistry()


def asked_in_vain(fetcher: SchemaFetcher, schema_id: int) -> None:
    with pytest.raises(SchemaPendingError):
        fetcher.schema(schema_id)


def trouble_of(fetcher: SchemaFetcher) -> str | None:
    return fetcher.trouble


def test_a_schema_is_fetched_once_and_one_of_ours_is_ours(registry: ScriptedRegistry, clock: ManualClock) -> None:
    registry.texts[7] = latest_schema().text.replace("\n", " ")
    fetcher = SchemaFetcher(registry, clock=clock)
    for _ in range(3):
        asked_in_vain(fetcher, 7)
    fetcher.step()
    assert [fetcher.schema(7) is latest_schema() for _ in range(3)] == [True] * 3
    fetcher.step()
    assert registry.asked == [7]


@pytest.mark.parametrize("text", [None, "{", '"string"'])
def test_an_answer_that_is_no_schema_is_told_for_a_while_and_then_asked_for_again(
    registry: ScriptedRegistry, clock: ManualClock, text: str | None
) -> None:
    registry.texts[7] = text
    fetcher = SchemaFetcher(registry, clock=clock)
    asked_in_vain(fetcher, 7)
    fetcher.step()
    for _ in range(2):
        with pytest.raises(EnvelopeError, match="is framed with schema 7, which"):
            fetcher.schema(7)
    registry.texts[7] = latest_schema().text
    clock.advance(UNKNOWN_SECONDS)
    asked_in_vain(fetcher, 7)
    fetcher.step()
    assert fetcher.schema(7) is latest_schema()


def test_silence_is_no_answer_and_holds_up_no_other_schema(registry: ScriptedRegistry, clock: ManualClock) -> None:
    fetcher = SchemaFetcher(registry, clock=clock)
    registry.texts[8] = latest_schema().text
    asked_in_vain(fetcher, 7)
    asked_in_vain(fetcher, 8)
    fetcher.step()
    assert trouble_of(fetcher) == "nobody there"
    asked_in_vain(fetcher, 7)
    clock.advance(WAIT_SECONDS_MAX)
    fetcher.step()
    assert fetcher.schema(8) is latest_schema()
    assert trouble_of(fetcher) is None
    registry.texts[7] = latest_schema().text
    fetcher.step()
    assert fetcher.schema(7) is latest_schema()


def test_what_is_known_is_bounded(registry: ScriptedRegistry, clock: ManualClock) -> None:
    fetcher = SchemaFetcher(registry, clock=clock)
    for schema_id in range(SCHEMAS_MAX + 1):
        registry.texts[schema_id] = latest_schema().text
        fetcher.fetch(schema_id)
    asked_in_vain(fetcher, 0)
    assert fetcher.schema(SCHEMAS_MAX) is latest_schema()


def test_a_command_waits_for_the_answer_and_takes_silence_for_one_for_a_while(
    registry: ScriptedRegistry, clock: ManualClock
) -> None:
    schemas = WaitingSchemas(registry, clock=clock)
    for schema_id in (7, 8):
        with pytest.raises(EnvelopeError, match=f"schema {schema_id}, which could not be fetched: nobody there"):
            schemas.schema(schema_id)
    assert registry.asked == [7]
    registry.texts[7] = latest_schema().text
    clock.advance(WAIT_SECONDS_MAX)
    assert schemas.schema(7) is latest_schema()


def test_a_registry_that_nobody_runs_is_unreachable() -> None:
    registry = SchemaRegistry("http://127.0.0.1:1", properties=None)
    with pytest.raises(SchemaRegistryUnreachableError, match="no Schema Registry answered"):
        registry.check()


@pytest.mark.parametrize("url", ["registry:8081", "ftp://a", "http://", "http://user:secret@a:1", ""])
def test_what_is_no_url_of_a_registry_is_refused_without_showing_secrets(url: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        check_registry_url(url)
    assert "secret" not in str(caught.value)


def test_urls_are_a_list() -> None:
    assert check_registry_url("http://a:1, https://b/path") == "http://a:1,https://b/path"


def test_properties_are_the_client_s_and_secrets_are_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "registry.properties"
    (tmp_path / "password").write_text("forebay:hidden\n")
    file.write_text(f"# comment\nssl.ca.location=/ca.pem\nbasic.auth.user.info=${{directory:{tmp_path}:password}}\n")
    assert read_registry_properties(file) == {
        "ssl.ca.location": "/ca.pem",
        "basic.auth.user.info": "forebay:hidden",
    }
    for line in ("passwort=hidden", "url=hidden", "hidden"):
        file.write_text(line)
        with pytest.raises(UsageError, match="FOREBAY_SCHEMA_REGISTRY_PROPERTIES") as caught:
            read_registry_properties(file)
        assert "=hidden" not in str(caught.value)


def test_a_properties_file_that_the_client_refuses_is_named(tmp_path: Path) -> None:
    file = tmp_path / "registry.properties"
    file.write_text("ssl.ca.location=/nowhere/ca.pem\n")
    with pytest.raises(UsageError, match="FOREBAY_SCHEMA_REGISTRY_PROPERTIES: cannot be used"):
        SchemaRegistry("https://127.0.0.1:1", properties=file).check()


def record_of(name: str, *types: str) -> str:
    fields = [{"name": f"f{number}", "type": kind} for number, kind in enumerate(types)]
    return json.dumps({"type": "record", "name": name, "fields": fields})


def registered(name: str, *needs: str) -> dict[str, Any]:
    """A schema of a record that holds others, each registered under its own name as version 1."""
    references = [{"name": each, "subject": each, "version": 1} for each in needs]
    return {"schema": record_of(name, *needs), "schemaType": "AVRO", "references": references}


@contextmanager
def registry_of(root: dict[str, Any], others: dict[str, dict[str, Any]]) -> Iterator[SchemaRegistry]:
    by_version = {(name, 1): found for name, found in others.items()}
    with fake_registry(by_id={7: root}, by_version=by_version) as url:
        registry = SchemaRegistry(url, properties=None)
        yield registry
        registry.close()


def test_what_a_schema_refers_to_is_fetched_with_it_each_once_and_what_is_needed_first(clock: ManualClock) -> None:
    others = {"B": registered("B", "D"), "C": registered("C", "D", "B"), "D": registered("D", "int")}
    others["D"]["references"] = []
    with registry_of(registered("A", "C", "B"), others) as registry:
        texts = registry.schema_texts(7)
        assert texts is not None
        assert [json.loads(text)["name"] for text in texts.references] == ["D", "B", "C"]
        fetcher = SchemaFetcher(registry, clock=clock)
        fetcher.fetch(7)
        assert fetcher.schema(7).root.names == ("f0", "f1")


def chain(length: int) -> dict[str, dict[str, Any]]:
    return {f"R{number}": registered(f"R{number}", f"R{number + 1}") for number in range(length)} | {
        f"R{length}": registered(f"R{length}")
    }


@pytest.mark.parametrize(
    ("root", "others", "problem"),
    [
        (registered("A", "B"), {}, "it refers to version 1 of B, which its Schema Registry does not know"),
        (registered("A", "A"), {"A": registered("A", "A")}, "two types are called 'A'"),
        (
            registered("A", "B"),
            {"B": registered("B", "C"), "C": registered("C", "B")},
            "it does not say what type 'B' is",
        ),
        (registered("A", "R0"), chain(30), "its references are nested deeper than 16"),
        (
            registered("A", *(f"W{number}" for number in range(40))),
            {f"W{number}": registered(f"W{number}") for number in range(40)},
            "it refers to more than 32 other schemas",
        ),
        (
            registered("A", "B"),
            {"B": registered("B") | {"schemaType": "JSON"}},
            "it refers to version 1 of B, which is no",
        ),
    ],
    ids=["missing", "itself", "circle", "deep", "wide", "of another kind"],
)
def test_references_that_cannot_be_followed_are_told(
    clock: ManualClock, root: dict[str, Any], others: dict[str, dict[str, Any]], problem: str
) -> None:
    with registry_of(root, others) as registry:
        fetcher = SchemaFetcher(registry, clock=clock)
        fetcher.fetch(7)
        with pytest.raises(EnvelopeError, match=f"schema 7, which cannot be used: {problem}"):
            fetcher.schema(7)


def test_the_types_that_are_kept_are_bounded_together(
    registry: ScriptedRegistry, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_fetcher, "TYPES_MAX", 100)
    fetcher = SchemaFetcher(registry, clock=clock)
    for schema_id in range(10):
        registry.texts[schema_id] = record_of("A", *["string"] * 29)
        fetcher.fetch(schema_id)
    asked_in_vain(fetcher, 6)
    assert [len(fetcher.schema(schema_id).root.names) for schema_id in (7, 8, 9)] == [29] * 3
    fetcher.fetch(9)
    assert len(fetcher.schema(7).root.names) == 29
