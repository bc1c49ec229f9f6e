"""The one change to a payload: streams are asked for their usage; all other bytes stay as they came."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_worker.answers.endpoints import Shape
from forebay_worker.execution.stream_usage import REFUSED_SECONDS, UsageRefusals, with_usage


@pytest.mark.parametrize(
    ("payload", "changed"),
    [
        (b'{"stream":true,"n":1.0e0}', b'{"stream_options":{"include_usage":true},"stream":true,"n":1.0e0}'),
        (b' { "stream" : true }', b'{"stream_options":{"include_usage":true}, "stream" : true }'),
        (
            b'{"stream":true,"stream_options":{"x":1.50}}',
            b'{"stream":true,"stream_options":{"include_usage":true,"x":1.50}}',
        ),
        (b'{"stream":true,"stream_options": {} }', b'{"stream":true,"stream_options": {"include_usage":true} }'),
        (b'{"stream":true,"stream_options":null}', b'{"stream":true,"stream_options":{"include_usage":true}}'),
        # The same bytes in a text and deeper are not touched.
        (
            b'{"a":"\\"stream_options\\":null","b":{"stream_options":null},"stream":true,"stream_options":null}',
            b'{"a":"\\"stream_options\\":null","b":{"stream_options":null},"stream":true,'
            b'"stream_options":{"include_usage":true}}',
        ),
        (b'{"stream":true,"stream_options":{"include_usage":false}}', None),
        (b'{"stream":true,"stream_options":{"include_usage":true}}', None),
        (b'{"stream":true,"stream_options":3}', None),
        (b'{"stream":false}', None),
        (b'{"stream":1}', None),
        (b'{"messages":[{"stream":true}]}', None),
        (b'{"stream":true', None),
        (b'["stream"]', None),
    ],
)
def test_what_becomes_of_a_payload(payload: bytes, changed: bytes | None) -> None:
    assert with_usage(payload, Shape.CHAT) == changed
    assert with_usage(payload, Shape.COMPLETION) == changed
    assert with_usage(payload, Shape.RESPONSE) is None


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["stream_options", "x"]), inner),
    max_leaves=6,
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["stream_options", "model", "messages", "é"]), JSON), st.booleans())
def test_of_any_payload_only_the_option_changes(fields: dict[str, object], spaced: bool) -> None:
    payload = json.dumps({**fields, "stream": True}, indent=1 if spaced else None).encode()
    changed = with_usage(payload, Shape.CHAT)
    if changed is None:
        options = fields.get("stream_options")
        assert not isinstance(options, dict | None) or "include_usage" in (options or {})
        return
    value = json.loads(changed)
    options = value.pop("stream_options")
    assert options.pop("include_usage") is True
    rest = dict(fields)
    assert (rest.pop("stream_options", None) or {}) == options
    assert value == {**rest, "stream": True}


def test_a_refusal_is_remembered_for_a_while_and_for_its_endpoint() -> None:
    refusals = UsageRefusals()
    refusals.refused("http://a/v1/chat/completions", 100.0)
    assert refusals.is_refused("http://a/v1/chat/completions", 100.0 + REFUSED_SECONDS - 1)
    assert not refusals.is_refused("http://a/v1/chat/completions", 100.0 + REFUSED_SECONDS)
    assert not refusals.is_refused("http://a/v1/completions", 101.0)
