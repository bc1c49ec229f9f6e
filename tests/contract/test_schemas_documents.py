"""The JSON Schemas and the AsyncAPI document, made for clients in other languages, say what the code does."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.test_schemas_golden import vectors
from forebay_schemas.contract import headers
from forebay_schemas.contract.envelope import JsonCodec, Request
from forebay_schemas.contract.pieces import Piece, StreamEvent, StreamFault, encode_piece
from forebay_schemas.contract.reasons import REASONS_BY_CODE, Status
from forebay_schemas.contract.results import ERROR_CHARS_MAX, Result, encode_result
from forebay_schemas.contract.tiers import TIERS
from forebay_schemas.contract.topics import Pool
from forebay_schemas.errors import EnvelopeError

ASYNCAPI = Path(__file__).parents[2] / "docs" / "asyncapi.yaml"


def schema(name: str) -> dict[str, Any]:
    text = (files("forebay_schemas") / "formats" / "json_schema" / name).read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    jsonschema.Draft202012Validator.check_schema(document)
    return document


REQUEST, RESULT, PIECE = schema("request-1.json"), schema("result-1.json"), schema("piece-1.json")
IS_REQUEST, IS_RESULT = jsonschema.Draft202012Validator(REQUEST), jsonschema.Draft202012Validator(RESULT)
IS_PIECE = jsonschema.Draft202012Validator(PIECE)


def test_they_name_the_fields_that_there_are_and_those_that_are_needed() -> None:
    for document, struct in ((REQUEST, Request), (RESULT, Result), (PIECE, Piece)):
        fields = msgspec.structs.fields(struct)
        assert document["properties"].keys() == {field.name for field in fields}
        assert document["required"] == [field.name for field in fields if field.required]
    assert RESULT["properties"]["status"]["enum"] == [status.value for status in Status]
    assert RESULT["properties"]["error"]["maxLength"] == ERROR_CHARS_MAX


@pytest.mark.parametrize("vector", vectors("envelopes.json"), ids=lambda vector: vector["name"])
def test_an_envelope_of_version_1_is_a_request(vector: dict[str, Any]) -> None:
    IS_REQUEST.validate(json.loads(vector["value"]))


@pytest.mark.parametrize("vector", vectors("results.json"), ids=lambda vector: vector["name"])
def test_a_result_of_version_1_is_a_result(vector: dict[str, Any]) -> None:
    IS_RESULT.validate(json.loads(vector["value"]))


@pytest.mark.parametrize("reason", REASONS_BY_CODE.values(), ids=lambda reason: reason.code)
def test_what_workers_write_is_a_result(reason: Any) -> None:
    full = Result(
        request_id="r",
        status=reason.status,
        reason=reason.code,
        tier="high",
        worker="w",
        queue_seconds=0.5,
        service_seconds=1,
        predicted_seconds=0.1,
        prompt_tokens=1,
        output_tokens=2,
        finished_at=1_900_000_000_000,
        error="x" * 3_000,
        body={"choices": []},
    )
    bare = Result(request_id="r", status=reason.status, reason=reason.code, finished_at=1_900_000_000_000)
    for result in (full, bare):
        IS_RESULT.validate(json.loads(encode_result(result)))


def test_what_workers_stream_is_a_piece() -> None:
    event = StreamEvent(msgspec.Raw(b'{"x": 1}'), "name")
    for piece in (
        Piece(request_id="r", attempt=1, run="a", number=0, events=[event, StreamEvent(msgspec.Raw(b"[1]"))]),
        Piece(request_id="r", attempt=2, run="b", number=0, last=True, continues=("a", 4), replay_count=1),
        *(Piece(request_id="r", attempt=1, run="a", number=1, error=fault) for fault in StreamFault),
    ):
        IS_PIECE.validate(json.loads(encode_piece(piece)))
    assert all(fault in PIECE["properties"]["error"]["description"] for fault in StreamFault)


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([-1, 0, 1, 10, 11, 100, 101, 604_800_000, 604_800_001, 10**11 - 1, 10**11, 10**14, 10**14 + 1]),
    st.sampled_from([0.5, 2.5, "", "high", "urgent", "x" * 200, "x" * 201, "世界"]),
    st.just({}),
    st.just({"model": "m"}),
    st.just([1]),
)
"""At each field's bounds, of every type; nothing that is not printable, which the schema does not say."""


@settings(max_examples=2_000, deadline=None)
@given(st.dictionaries(st.sampled_from([*Request.__struct_fields__, "other"]), VALUES, max_size=4))
def test_what_the_schema_takes_is_what_the_reader_takes(some: dict[str, Any]) -> None:
    fields = {"request_id": "r", "biz_type": "chat_completion", "payload": {}} | some
    assert IS_REQUEST.is_valid(fields) == is_taken(json.dumps(fields).encode())


def is_taken(value: bytes) -> bool:
    try:
        JsonCodec().decode(value)
    except EnvelopeError:
        return False
    return True


def test_the_asyncapi_document_names_the_topics_headers_and_schemas_that_there_are() -> None:
    document = yaml.safe_load(ASYNCAPI.read_text(encoding="utf-8"))
    pool = Pool("qwen")
    addresses = {name: channel["address"] for name, channel in document["channels"].items()}
    tiers = document["components"]["parameters"]["tier"]["enum"]
    assert tiers == [tier.value for tier in TIERS]
    requests = {addresses["requests"].format(pool="qwen", tier=tier) for tier in tiers}
    assert requests == {pool.requests(tier) for tier in TIERS}
    assert addresses["results"].format(pool="qwen") == pool.results
    assert addresses["streams"].format(pool="qwen") == pool.streams
    messages = document["components"]["messages"]
    named = {headers.CONTENT_TYPE, headers.TRACEPARENT, headers.TRACESTATE}
    assert messages["request"]["headers"]["properties"].keys() == named
    for message, expected in (("request", REQUEST), ("result", RESULT), ("piece", PIECE)):
        path = ASYNCAPI.parent / messages[message]["payload"]["$ref"]
        assert json.loads(path.read_text(encoding="utf-8")) == expected
    assert all(_resolves(document, reference) for reference in _references(document))


def _references(part: Any) -> list[str]:
    if isinstance(part, dict):
        own = [part["$ref"]] if isinstance(part.get("$ref"), str) and part["$ref"].startswith("#") else []
        return own + [each for value in part.values() for each in _references(value)]
    return [each for value in part for each in _references(value)] if isinstance(part, list) else []


def _resolves(document: Any, reference: str) -> bool:
    for step in reference.removeprefix("#/").split("/"):
        if not isinstance(document, dict) or step not in document:
            return False
        document = document[step]
    return True
