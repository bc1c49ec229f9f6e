"""Bodies that the simulated engine understands, and its words for others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from forebay_sandbox.engine.protocol import Endpoint, InferenceRequest, parse_request
from forebay_schemas.errors import UsageError

MESSAGES = [{"role": "user", "content": "x" * 40}]


def chat(**fields: Any) -> InferenceRequest:
    return parse_request(Endpoint.CHAT, json.dumps({"messages": MESSAGES, **fields}).encode())


def test_the_prompt_counts_one_token_for_four_characters() -> None:
    assert chat().prompt_tokens == 10
    parts = [{"type": "text", "text": "x" * 6}, {"type": "image_url"}]
    assert chat(messages=[{"role": "user", "content": parts}]).prompt_tokens == 2
    assert chat(messages=[]).prompt_tokens == 1
    assert parse_request(Endpoint.COMPLETION, b'{"prompt": "12345678"}').prompt_tokens == 2
    assert parse_request(Endpoint.COMPLETION, b'{"prompt": [5, 6, 7]}').prompt_tokens == 3


@pytest.mark.parametrize(
    ("fields", "output_tokens", "finish_reason"),
    [
        ({}, 16, "length"),
        ({"max_tokens": 7}, 7, "length"),
        ({"max_tokens": 7, "ignore_eos": True}, 7, "length"),
        ({"max_completion_tokens": 9}, 9, "length"),
        ({"forebay_sandbox": {"output_tokens": 30}}, 30, "stop"),
        ({"forebay_sandbox": {"output_tokens": 30}, "max_tokens": 2048}, 30, "stop"),
        ({"forebay_sandbox": {"output_tokens": 30}, "max_tokens": 20}, 20, "length"),
    ],
)
def test_the_output_is_as_long_as_told_and_never_longer_than_max_tokens(
    fields: dict[str, Any], output_tokens: int, finish_reason: str
) -> None:
    request = chat(**fields)
    assert (request.output_tokens, request.finish_reason) == (output_tokens, finish_reason)


def test_exact_lengths_win_over_the_estimate() -> None:
    assert chat(forebay_sandbox={"prompt_tokens": 4321, "output_tokens": 2}).prompt_tokens == 4321


def test_unknown_fields_and_a_priority_are_accepted() -> None:
    assert chat(priority=10, temperature=0.2, anything={"at": ["all"]}).output_tokens == 16


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"messages": None}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": ["hello"]}, "messages[0]"),
        ({"messages": [{"content": "hello"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"model": 5}, "model"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "ten"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": 1}, "stream_options"),
        ({"forebay_sandbox": 5}, "forebay_sandbox"),
        ({"forebay_sandbox": {"prompt_tokens": -1}}, "forebay_sandbox.prompt_tokens"),
        ({"forebay_sandbox": {"outputs": 1}}, "forebay_sandbox.outputs"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(UsageError) as caught:
        chat(**fields)
    assert caught.value.field == field


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe", b"[]", b"5", b"null"])
def test_what_is_not_a_json_object_is_said_to_be_so(raw: bytes) -> None:
    with pytest.raises(UsageError, match="body") as caught:
        parse_request(Endpoint.CHAT, raw)
    assert caught.value.field == "body"


@pytest.mark.parametrize("prompt", ["null", "{}", '["a", "b"]'])
def test_a_completion_needs_one_prompt(prompt: str) -> None:
    with pytest.raises(UsageError, match="prompt"):
        parse_request(Endpoint.COMPLETION, b'{"prompt": %s}' % prompt.encode())
