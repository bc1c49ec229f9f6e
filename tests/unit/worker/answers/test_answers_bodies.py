"""Verdicts on a status, a content type and a body of JSON: completed, or failed and why."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_schemas.contract.reasons import Reason
from forebay_worker.answers.endpoints import Shape
from forebay_worker.answers.judge import judge
from forebay_worker.answers.verdict import Completed, Failed, Limits, Verdict
from simulated.answers import nested

LIMITS = Limits(answer_bytes_max=10_000, stream_bytes_max=100_000)
CHAT, COMPLETION, EMBEDDING = Shape.CHAT, Shape.COMPLETION, Shape.EMBEDDING
RESPONSE, IMAGE, OTHER = Shape.RESPONSE, Shape.IMAGE, Shape.OTHER

REJECTED, OVERLOADED, UNAVAILABLE = Reason.BACKEND_REJECTED, Reason.BACKEND_OVERLOADED, Reason.BACKEND_UNAVAILABLE
TIMEOUT, ERROR, BAD = Reason.BACKEND_TIMEOUT, Reason.BACKEND_ERROR, Reason.BACKEND_BAD_RESPONSE


def verdict_on(body: Any, shape: Shape = CHAT, *, status: int = 200, content_type: str = "application/json") -> Verdict:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return judge(shape=shape, status=status, content_type=content_type, body=data, limits=LIMITS)


def chat(**choice: Any) -> dict[str, Any]:
    whole = {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop", **choice}
    return {"id": "c", "object": "chat.completion", "choices": [whole]}


@pytest.mark.parametrize(
    "body",
    [
        chat(),
        {**chat(), "error": None},
        {**chat(), "error": ""},
        {**chat(), "error": {}},
        {**chat(), "detail": "quantized"},
        chat(message={"role": "assistant", "content": None, "tool_calls": [{"id": "x"}]}, finish_reason="tool_calls"),
        chat(message={"role": "assistant", "content": None, "refusal": "I cannot"}),
        chat(message={"role": "assistant", "content": ""}, finish_reason="length"),
        chat(message={"content": [{"type": "text", "text": "a"}]}),
        *[
            chat(finish_reason=reason)
            for reason in (
                "length",
                "content_filter",
                "function_call",
                "eos_token",
                "stop_sequence",
                "repetition",
                "model_length",
                "not_finished",
                "COMPLETE",
                "",
                None,
            )
        ],
        {"choices": [{"message": {}}]},
        {"choices": [{"text": "an old server's", "finish_reason": "stop"}]},
    ],
    ids=lambda body: json.dumps(body)[-60:],
)
def test_an_answer_of_a_chat_is_completed_as_the_bytes_that_came(body: dict[str, Any]) -> None:
    data = json.dumps(body, indent=1).encode()
    assert verdict_on(data) == Completed(body=data)


@pytest.mark.parametrize(
    ("body", "reason", "status", "said"),
    [
        ({"error": {"message": "CUDA out of memory", "code": 500}}, ERROR, 500, "CUDA out of memory (code 500)"),
        ({"error": {"message": "m", "code": 502}}, UNAVAILABLE, 502, "m (code 502)"),
        ({"error": {"message": "m", "code": "503"}}, UNAVAILABLE, 503, "m (code 503)"),
        ({"error": {"message": "m", "code": 529}}, UNAVAILABLE, 529, "m"),
        ({"error": {"message": "m", "code": 429}}, OVERLOADED, 429, "m"),
        ({"error": {"message": "m", "code": 400}}, REJECTED, 400, "m"),
        ({"error": {"message": "m", "code": 408}}, TIMEOUT, 408, "m"),
        ({"error": {"message": "m", "code": 524}}, TIMEOUT, 504, "m"),
        ({"error": {"message": "m", "code": 599}}, ERROR, 500, "m"),
        ({"error": {"message": "m", "code": 200}}, BAD, None, "m"),
        ({"error": {"message": "m", "code": 50001}}, BAD, None, "m (code 50001)"),
        ({"error": {"message": "m", "code": True}}, BAD, None, "m"),
        ({"error": {"message": "m", "code": "²²²"}}, BAD, None, "m"),
        ({"error": {"message": "m", "code": None, "type": "invalid_request_error"}}, REJECTED, 400, "m"),
        ({"error": {"message": "m", "code": "rate_limit_exceeded"}}, OVERLOADED, 429, "m"),
        ({"error": {"message": "m", "type": "who knows"}}, BAD, None, "m"),
        ({"error": {"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED"}}, OVERLOADED, 429, "m"),
        ([{"error": {"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED"}}], OVERLOADED, 429, "m"),
        ({"error": {"reason": "r"}}, BAD, None, "r"),
        ({"error": {"odd": 1}}, BAD, None, '{"odd":1}'),
        ({"error": "Unexpected endpoint or method."}, BAD, None, "Unexpected endpoint or method."),
        ({"error": "Internal Server Error", "status": 500, "path": "/v1"}, ERROR, 500, "Internal Server Error"),
        ({"error": "Input validation error", "error_type": "validation"}, REJECTED, 422, "Input validation"),
        ({"error": "shard died", "error_type": "generation"}, ERROR, 500, "shard died"),
        ({"error": True, "message": "m"}, BAD, None, "m"),
        ({"error": ["a", "b"]}, BAD, None, '["a","b"]'),
        ({"choices": None, "error": {"message": "m"}}, BAD, None, "m"),
        ({**chat(), "error": {"message": "m"}}, BAD, None, "m"),
        ({"object": "error", "message": "m", "code": 404}, REJECTED, 404, "m"),
        ({"object": "error", "message": "m", "code": 50001}, BAD, None, "m"),
        ({"type": "error", "error": {"type": "api_error", "message": "m"}}, ERROR, 500, "m"),
        ({"detail": "Not Found"}, BAD, None, "has no choices, but says: Not Found"),
        ({"detail": [{"loc": ["body"], "msg": "field required"}]}, BAD, None, "field required"),
        ({}, BAD, None, "has no choices: {}"),
        ({"choices": []}, BAD, None, "no choices"),
        ({"choices": None}, BAD, None, "no choices"),
        ({"choices": {}}, BAD, None, "no choices"),
        ({"choices": [3]}, BAD, None, "a choice is no object"),
        ({"choices": [{}]}, BAD, None, "neither message nor text"),
        ({"choices": [{"message": None, "finish_reason": "stop"}]}, BAD, None, "neither message nor text"),
        ({"choices": [{"delta": {"content": "a"}}]}, BAD, None, "neither message nor text"),
        ({"login": "please"}, BAD, None, "no choices"),
        ([1], BAD, None, "no object"),
        (None, BAD, None, "no object"),
        (b"", BAD, None, "HTTP 200 without a body"),
        (b" \n\n", BAD, None, "HTTP 200 without a body"),
        (b"<!doctype html><title>Sign in</title>", BAD, None, "no JSON (application/json): <!doctype html>"),
        (b'{"choices": [', BAD, None, "no JSON"),
        (b'{"choices": [{"text": "\xff"}]}', BAD, None, "no JSON"),
        (b'{"choices": [{"text": "a"}]} {"b": 2}', BAD, None, "no JSON"),
        (b'{"choices": [{"text": "a"}], "x": NaN}', BAD, None, "no JSON"),
        (b'{"choices": [{"text": "\\ud83d"}], "x": 1e999}', BAD, None, "no JSON"),
        (b"[" * 9_000, BAD, None, "no JSON"),
        (b'{"choices":' + b"[" * 9_000, BAD, None, "no JSON"),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_no_answer_with_a_status_of_200(body: Any, reason: Reason, status: int | None, said: str) -> None:
    for shape in (CHAT, COMPLETION):
        verdict = verdict_on(body, shape)
        assert isinstance(verdict, Failed), verdict
        assert (verdict.reason, verdict.status, verdict.gave_up) == (reason, status, False)
        assert said in verdict.message


@pytest.mark.parametrize("reason", ["abort", "ABORT", "error", "cancelled", "timeout", {"type": "abort"}])
def test_an_engine_that_gave_up_answers_nothing(reason: Any) -> None:
    for body in (chat(finish_reason=reason), {"choices": [{"text": "The ans", "finish_reason": reason}]}):
        verdict = verdict_on(body)
        assert isinstance(verdict, Failed)
        assert (verdict.reason, verdict.status, verdict.gave_up) == (BAD, None, True)
    whole = chat()
    whole["choices"].append(chat(finish_reason=reason)["choices"][0])
    assert isinstance(verdict_on(whole), Failed), "one choice of several"


@pytest.mark.parametrize(
    ("shape", "body", "completes"),
    [
        (EMBEDDING, {"data": [{"embedding": [0.5]}]}, True),
        (EMBEDDING, {"data": [{"embedding": "AACAPw=="}]}, True),
        (EMBEDDING, {"data": [{"embedding": {"int8": [1]}}]}, True),
        (EMBEDDING, {"data": [{"embedding": [0.5]}, {"embedding": None}]}, False),
        (EMBEDDING, {"data": [{"embedding": []}]}, False),
        (EMBEDDING, {"data": [{"index": 0}]}, False),
        (EMBEDDING, {"data": []}, False),
        (EMBEDDING, {"data": None}, False),
        (EMBEDDING, chat(), False),
        (IMAGE, {"data": [{"url": "https://x/1.png"}]}, True),
        (IMAGE, {"data": [{"b64_json": "iVBO", "url": None}]}, True),
        (IMAGE, {"data": [{"b64_json": "", "url": None, "revised_prompt": "p"}]}, False),
        (IMAGE, {"data": []}, False),
        (RESPONSE, {"status": "completed", "output": [{}], "error": None}, True),
        (RESPONSE, {"status": "incomplete", "output": []}, True),
        (RESPONSE, {"status": "completed", "output": []}, True),
        (RESPONSE, {"output": [{}]}, True),
        (RESPONSE, {"status": "completed", "output": None}, False),
        (RESPONSE, {"status": "completed"}, False),
        (RESPONSE, {"status": "failed", "output": [{}], "error": None}, False),
        (RESPONSE, {"status": "failed", "output": [], "error": {"code": "server_error", "message": "m"}}, False),
        (RESPONSE, {"status": "cancelled", "output": [{}]}, False),
        (RESPONSE, {"status": "queued", "output": []}, False),
        (RESPONSE, chat(), False),
        # Of an API that is not known any JSON is an answer, but for the forms of an error that are clear.
        (OTHER, {"ok": 1}, True),
        (OTHER, {}, True),
        (OTHER, [1], True),
        (OTHER, None, True),
        (OTHER, 0.5, True),
        (OTHER, "text", True),
        (OTHER, {"choices": []}, True),
        (OTHER, {"detail": "Not Found"}, True),
        (OTHER, {"error": 0.13}, True),
        (OTHER, {"error": None}, True),
        (OTHER, {"error": False}, True),
        (OTHER, {"type": "error"}, True),
        (OTHER, {"error": {"message": "m"}}, False),
        (OTHER, {"error": "m", "ok": 1}, False),
        (OTHER, {"object": "error", "message": "m"}, False),
        (OTHER, {"text": "a", "meta_info": {"finish_reason": {"type": "stop"}}}, True),
        (OTHER, {"text": "a", "meta_info": {"finish_reason": {"type": "abort", "message": "m"}}}, False),
        (OTHER, {"text": "a", "meta_info": "who knows"}, True),
        (OTHER, b"Welcome", False),
        (OTHER, b'{"a": ', False),
        (OTHER, b"\xff\xfe", False),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_each_endpoint_has_its_own_answer(shape: Shape, body: Any, completes: bool) -> None:
    assert isinstance(verdict_on(body, shape), Completed) is completes


@pytest.mark.parametrize(
    ("usage", "prompt_tokens", "output_tokens"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 4}, 3, 4),
        ({"prompt_tokens": 3, "total_tokens": 3}, 3, None),
        ({"input_tokens": 3, "output_tokens": 4}, 3, 4),
        (None, None, None),
        ([1], None, None),
        ({"prompt_tokens": 3.5, "completion_tokens": "4"}, None, None),
        ({"prompt_tokens": -1, "completion_tokens": True}, None, None),
        ({"prompt_tokens": 10_000_001, "completion_tokens": 10**400}, None, None),
    ],
)
def test_tokens_are_as_the_backend_counts_them(
    usage: Any, prompt_tokens: int | None, output_tokens: int | None
) -> None:
    verdict = verdict_on({**chat(), "usage": usage})
    assert isinstance(verdict, Completed)
    assert (verdict.prompt_tokens, verdict.output_tokens) == (prompt_tokens, output_tokens)


@pytest.mark.parametrize(
    ("status", "reason", "effective"),
    [
        (429, OVERLOADED, 429),
        (502, UNAVAILABLE, 502),
        (503, UNAVAILABLE, 503),
        (529, UNAVAILABLE, 529),
        (520, UNAVAILABLE, 502),
        (523, UNAVAILABLE, 502),
        (530, UNAVAILABLE, 502),
        (408, TIMEOUT, 408),
        (504, TIMEOUT, 504),
        (524, TIMEOUT, 504),
        (400, REJECTED, 400),
        (401, REJECTED, 401),
        (404, REJECTED, 404),
        (413, REJECTED, 413),
        (422, REJECTED, 422),
        (499, REJECTED, 499),
        # text-generation-inference: the generation failed.
        (424, ERROR, 500),
        (500, ERROR, 500),
        (501, REJECTED, 501),
        (507, ERROR, 500),
        (525, ERROR, 500),
        (599, ERROR, 500),
        (204, BAD, 204),
        (205, BAD, 205),
        (206, BAD, 206),
        (101, BAD, 101),
        (302, BAD, 302),
        (304, BAD, 304),
        # No status at all counts as a 5xx (RFC 9110, 15).
        (999, ERROR, 500),
    ],
)
def test_what_a_status_means(status: int, reason: Reason, effective: int) -> None:
    verdict = verdict_on(b" the engine's words \n", status=status, content_type="text/plain")
    assert isinstance(verdict, Failed)
    assert (verdict.reason, verdict.status, verdict.gave_up) == (reason, effective, False)
    assert verdict.message.startswith(f"HTTP {status}")
    if status not in (204, 205, 206):
        assert verdict.message == f"HTTP {status}: the engine's words"


@pytest.mark.parametrize("status", [200, 201, 202, 203, 226, 299])
def test_a_success_is_judged_by_its_body(status: int) -> None:
    assert isinstance(verdict_on(chat(), status=status), Completed)
    assert isinstance(verdict_on({}, status=status), Failed)
    assert isinstance(verdict_on(b"", status=status), Failed)


def test_what_is_accepted_for_later_is_no_answer() -> None:
    job = {"job": 7, "state": "queued"}
    assert isinstance(verdict_on(job, OTHER, status=201), Completed)
    verdict = verdict_on(job, OTHER, status=202)
    assert isinstance(verdict, Failed)
    assert "accepted, and not answered" in verdict.message
    assert isinstance(verdict_on(job, CHAT, status=202), Failed)


def test_the_content_type_does_not_make_an_answer() -> None:
    page = b"<html><body>Please sign in</body></html>"
    verdict = verdict_on(page, content_type="text/html")
    assert isinstance(verdict, Failed)
    assert verdict.message == f"the answer is no JSON (text/html): {page.decode()}"
    for content_type in ("text/html", "text/plain", "", "application/octet-stream", "TEXT/EVENT-STREAM"):
        assert isinstance(verdict_on(chat(), content_type=content_type), Completed), content_type


def test_an_answer_behind_a_bom_or_empty_lines_is_clean() -> None:
    data = json.dumps(chat()).encode()
    for before in (b"\xef\xbb\xbf", b"\n\n\n", b"\xef\xbb\xbf \n"):
        assert verdict_on(before + data + b"\n") == Completed(body=data)


def test_half_a_character_does_not_keep_an_answer_from_its_reader() -> None:
    whole = json.dumps(chat(message={"content": "\U0001f600"})).encode()
    assert verdict_on(whole) == Completed(body=whole), "escaped pairs stay as they came"
    for half in (b"\\ud83d", b"\\uD83D", b"\\ude00"):
        verdict = verdict_on(b'{"choices": [{"message": {"content": "a' + half + b'b"}}]}')
        assert isinstance(verdict, Completed)
        assert msgspec.json.decode(verdict.body)["choices"][0]["message"]["content"] == "a\ufffdb"


def test_what_is_too_large_is_not_read_further() -> None:
    body = json.dumps(chat(message={"content": "x" * 10_000})).encode()
    verdict = verdict_on(body)
    assert isinstance(verdict, Failed)
    assert verdict.reason is Reason.RESULT_TOO_LARGE


def test_words_are_bounded_and_can_be_written() -> None:
    for body in (
        {"error": {"message": "x" * 9_000}},
        {"error": "\ud83d" + "y" * 3_000},
        {"detail": "z" * 9_000},
        b"w" * 9_000,
    ):
        verdict = verdict_on(body)
        assert isinstance(verdict, Failed)
        assert len(verdict.message) <= 2_000
        verdict.message.encode()
    verdict = verdict_on(b"\xff" + b"x" * 9_000, status=500)
    assert isinstance(verdict, Failed)
    assert verdict.message.startswith("HTTP 500: \ufffdx")
    assert len(verdict.message) == 2_000


JSON = nested(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    *("choices", "message", "text", "finish_reason", "error", "data", "embedding", "output", "status", "code"),
)


@settings(deadline=None)
@given(JSON, st.sampled_from(list(Shape)))
def test_any_json_is_completed_unchanged_or_failed(value: Any, shape: Shape) -> None:
    data = json.dumps(value).encode()
    verdict = verdict_on(data, shape)
    if isinstance(verdict, Completed):
        assert verdict.body == data


@settings(deadline=None)
@given(st.binary(max_size=60), st.sampled_from(list(Shape)), st.sampled_from(["text/event-stream", "", "text/html"]))
def test_any_bytes_have_a_verdict(body: bytes, shape: Shape, content_type: str) -> None:
    verdict = verdict_on(body, shape, content_type=content_type)
    if isinstance(verdict, Completed):
        msgspec.json.decode(verdict.body)
