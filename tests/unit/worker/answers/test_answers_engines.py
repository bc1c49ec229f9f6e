"""Answers of real engines' wire formats and the verdict on each: a table that reads like a specification."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forebay_schemas.contract.reasons import Reason
from forebay_worker.answers.endpoints import Shape
from forebay_worker.answers.judge import AnswerReader, End
from forebay_worker.answers.streams import Progress
from forebay_worker.answers.verdict import Completed, Failed, Verdict
from simulated.answers import LIMITS

ENGINES = Path(__file__).parents[3] / "fixtures" / "engines"
CONTENT_TYPES = {".sse": "text/event-stream", ".ndjson": "application/x-ndjson", ".json": "application/json"}

CHAT, COMPLETION, EMBEDDING = Shape.CHAT, Shape.COMPLETION, Shape.EMBEDDING
RESPONSE, IMAGE, OTHER = Shape.RESPONSE, Shape.IMAGE, Shape.OTHER

REJECTED, OVERLOADED, UNAVAILABLE = Reason.BACKEND_REJECTED, Reason.BACKEND_OVERLOADED, Reason.BACKEND_UNAVAILABLE
ERROR, BAD = Reason.BACKEND_ERROR, Reason.BACKEND_BAD_RESPONSE


def read(name: str, shape: Shape, *, piece_bytes: int = 1 << 20) -> Verdict:
    """The verdict on a fixture that comes in pieces of this size and ends tidily."""
    path = ENGINES / name
    reader = AnswerReader(shape=shape, status=200, content_type=CONTENT_TYPES[path.suffix], limits=LIMITS)
    body = path.read_bytes()
    for start in range(0, len(body), piece_bytes):
        if reader.feed(body[start : start + piece_bytes]) is Progress.COMPLETE:
            break
    return reader.finish(End.TIDY)


def text_of(body: Any) -> Any:
    """The answer in few words."""
    if isinstance(body, list):
        return len(body)
    if "choices" in body:
        return [choice.get("text", choice.get("message", {}).get("content")) for choice in body["choices"]]
    if "output" in body:
        return [part["text"] for item in body["output"] for part in item["content"]]
    return [datum.get("embedding") or datum.get("url") or datum.get("b64_json") for datum in body["data"]]


@pytest.mark.parametrize(
    ("name", "shape", "text", "prompt_tokens", "output_tokens", "content_chunks"),
    [
        ("vllm/chat.json", CHAT, ["Hello"], 9, 2, None),
        ("vllm/chat_stream.sse", CHAT, ["alpha beta gamma"], 9, 3, 3),
        ("vllm/completion_stream.sse", COMPLETION, ["alpha beta", "one"], 3, 3, 3),
        ("sglang/chat_stream.sse", CHAT, ["Hi"], 5, 3, 2),
        ("sglang/chat_null_finish.json", CHAT, ["Hi"], 5, 1, None),
        ("tgi/chat_stream.sse", CHAT, ["ab"], 4, 2, 2),
        ("tgi/chat_stream_without_done.sse", CHAT, ["ab"], 4, 2, 2),
        ("tgi/completion_stream.sse", COMPLETION, ["ab"], 4, 2, 2),
        ("tgi/tool_stream.sse", CHAT, [None], None, None, 4),
        ("llama_cpp/chat_stream.sse", CHAT, ["Hi"], 9, 2, 2),
        ("llama_cpp/response_stream.sse", RESPONSE, ["Hi"], 9, 2, 1),
        ("ollama/chat_tools.sse", CHAT, [""], 30, 20, 2),
        ("ollama/completion_stream.sse", COMPLETION, ["Hi"], 5, 2, 1),
        ("ollama/chat_null_finish.json", CHAT, ["Hi"], 5, 1, None),
        ("ollama/embedding_base64.json", EMBEDDING, ["AACAPwAAAEA="], 3, None, None),
        ("ollama/api_chat.ndjson", OTHER, 2, None, None, None),
        ("tensorrt_llm/named_tool.sse", CHAT, [None], None, None, 3),
        ("triton/chat_null_usage.json", CHAT, ["The sky appears blue"], None, None, None),
        ("triton/completion_stream.sse", COMPLETION, ["ab"], None, None, 2),
        ("openrouter/chat_stream.sse", CHAT, ["亚"], 8, 1, 3),
        ("deepseek/chat_keep_alive.json", CHAT, ["Hi"], 5, 1, None),
        ("openai/response.json", RESPONSE, ["Hi"], 9, 2, None),
        ("openai/response_incomplete.json", RESPONSE, ["Hi"], 9, 2, None),
        ("openai/response_stream.sse", RESPONSE, ["Hi"], 9, 2, 1),
        ("openai/response_stream_incomplete.sse", RESPONSE, ["Hi"], 9, 2, 1),
        ("openai/response_stream_no_output.sse", RESPONSE, ["Hi"], 9, 2, 1),
        ("openai/embedding.json", EMBEDDING, [[0.25, -0.5]], 3, None, None),
        ("openai/image_url.json", IMAGE, ["https://images.example/1.png"], None, None, None),
        ("openai/image_b64.json", IMAGE, ["iVBORw0="], 5, 100, None),
        ("openai/image_stream.sse", IMAGE, ["iVBORw0="], 5, 100, None),
    ],
)
def test_an_engines_answer_is_completed(
    name: str,
    shape: Shape,
    text: Any,
    prompt_tokens: int | None,
    output_tokens: int | None,
    content_chunks: int | None,
) -> None:
    verdict = read(name, shape)
    assert isinstance(verdict, Completed), verdict
    assert text_of(json.loads(verdict.body)) == text
    assert (verdict.prompt_tokens, verdict.output_tokens) == (prompt_tokens, output_tokens)
    assert verdict.content_chunks == content_chunks


@pytest.mark.parametrize(
    ("name", "shape", "reason", "status", "gave_up", "said"),
    [
        ("vllm/chat_abort.sse", CHAT, BAD, None, True, "gave the request up: abort"),
        ("vllm/chat_abort.json", CHAT, BAD, None, True, "gave the request up: abort"),
        ("vllm/chat_error.sse", CHAT, ERROR, 500, False, "Internal server error (code 500)"),
        ("vllm/error_200_old.json", CHAT, REJECTED, 404, False, "The model `x` does not exist. (code 404)"),
        ("vllm/response_cancelled.json", RESPONSE, BAD, None, True, "cancelled"),
        ("sglang/chat_abort_status.sse", CHAT, UNAVAILABLE, 503, False, "timed out in the queue"),
        ("sglang/chat_abort_graceful.sse", CHAT, BAD, None, True, "abort"),
        ("sglang/generate_abort.json", OTHER, BAD, None, True, "Abort in waiting queue"),
        # 422 stands there whatever happened, so it says nothing.
        ("tgi/chat_error.sse", CHAT, BAD, None, False, "CUDA out of memory"),
        ("tgi/error_200.json", CHAT, OVERLOADED, 429, False, "Model is overloaded"),
        ("tgi/generate_stream_error.sse", OTHER, ERROR, 500, False, "Incomplete generation stream"),
        # A relay, and this one itself, writes [DONE] behind whatever came.
        ("tgi/completion_broken_off.sse", COMPLETION, BAD, None, True, "broke off: choice 0 has no finish_reason"),
        ("llama_cpp/error_field.sse", CHAT, REJECTED, 400, False, "exceeds the available context size"),
        ("llama_cpp/error_chunk.sse", CHAT, REJECTED, 400, False, "exceeds the available context size"),
        ("ollama/embedding_empty.json", EMBEDDING, BAD, None, False, "no data"),
        ("ollama/api_chat_error.ndjson", OTHER, BAD, None, False, "unexpected EOF"),
        ("tensorrt_llm/chat_timeout.sse", CHAT, BAD, None, True, "timeout"),
        ("tensorrt_llm/error_200.json", COMPLETION, ERROR, 500, False, "Internal server error"),
        ("litellm/chat_error.sse", CHAT, OVERLOADED, 429, False, "Rate limit reached (code 429)"),
        ("openrouter/mid_stream_error.sse", CHAT, UNAVAILABLE, 502, False, "Provider disconnected (code 502)"),
        ("openrouter/error_200.json", CHAT, UNAVAILABLE, 502, False, "Provider returned error"),
        ("openrouter/error_in_choice.json", CHAT, UNAVAILABLE, 503, False, "overloaded"),
        ("lmstudio/error_200.json", CHAT, BAD, None, False, "Unexpected endpoint or method."),
        ("deepseek/chat_out_of_resources.sse", CHAT, BAD, None, True, "insufficient_system_resource"),
        ("openai/response_failed.json", RESPONSE, OVERLOADED, 429, False, "Rate limit reached"),
        ("openai/response_in_progress.json", RESPONSE, BAD, None, False, "background"),
        ("openai/response_stream_failed.sse", RESPONSE, ERROR, 500, False, "failed to generate"),
        ("openai/response_stream_error.sse", RESPONSE, OVERLOADED, 429, False, "Rate limit reached"),
        ("openai/response_stream_broken_off.sse", RESPONSE, BAD, None, True, "broke off"),
    ],
)
def test_what_an_engine_sends_for_an_answer_and_is_none(
    name: str, shape: Shape, reason: Reason, status: int | None, gave_up: bool, said: str
) -> None:
    verdict = read(name, shape)
    assert isinstance(verdict, Failed), verdict
    assert (verdict.reason, verdict.status, verdict.gave_up) == (reason, status, gave_up)
    assert said in verdict.message


@pytest.mark.parametrize("path", sorted(ENGINES.glob("*/*.*")), ids=lambda path: f"{path.parent.name}/{path.name}")
@pytest.mark.parametrize("shape", list(Shape), ids=lambda shape: shape.value)
def test_the_verdict_does_not_depend_on_where_the_bytes_are_cut(path: Path, shape: Shape) -> None:
    name = f"{path.parent.name}/{path.name}"
    whole = read(name, shape)
    for piece_bytes in (1, 2, 7, 100):
        assert read(name, shape, piece_bytes=piece_bytes) == whole


def test_nothing_of_a_streams_choices_is_lost() -> None:
    verdict = read("vllm/chat_stream.sse", CHAT)
    assert isinstance(verdict, Completed)
    choice = json.loads(verdict.body)["choices"][0]
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == ["alpha", " beta", " gamma"]
    assert choice["token_ids"] == [11, 12, 13]
    verdict = read("vllm/completion_stream.sse", COMPLETION)
    assert isinstance(verdict, Completed)
    choice = json.loads(verdict.body)["choices"][0]
    assert choice["logprobs"] == {
        "text_offset": [0, 5],
        "token_logprobs": [-0.1, -0.2],
        "tokens": ["alpha", " beta"],
        "top_logprobs": [{"alpha": -0.1}, {" beta": -0.2}],
    }
    assert (choice["prompt_token_ids"], choice["token_ids"]) == ([1, 2], [11, 12])
    verdict = read("openrouter/chat_stream.sse", CHAT)
    assert isinstance(verdict, Completed)
    message = json.loads(verdict.body)["choices"][0]["message"]
    assert message["reasoning"] == "hm so"
    assert message["reasoning_details"] == [
        {"type": "reasoning.text", "text": "hm so", "index": 0, "format": "unknown"}
    ]


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        ("ollama/chat_tools.sse", [("call_a", "read_file", '{"path":"a"}'), ("call_b", "read_file", '{"path":"b"}')]),
        ("tgi/tool_stream.sse", [("0", "look", '{"at": 1}')]),
        ("tensorrt_llm/named_tool.sse", [(None, "look", '{"at": {}, "to": 2}')]),
    ],
)
def test_the_tool_calls_of_engines(name: str, calls: list[tuple[str | None, str, str]]) -> None:
    verdict = read(name, CHAT)
    assert isinstance(verdict, Completed)
    put_together = json.loads(verdict.body)["choices"][0]["message"]["tool_calls"]
    assert [(c.get("id"), c["function"]["name"], c["function"]["arguments"]) for c in put_together] == calls


def test_every_fixture_is_in_the_tables() -> None:
    source = Path(__file__).read_text()
    for path in ENGINES.glob("*/*.*"):
        assert f'"{path.parent.name}/{path.name}"' in source, path
