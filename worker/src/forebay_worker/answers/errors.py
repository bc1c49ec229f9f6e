"""The forms in which backends report an error with a status of 200. Pure."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from forebay_schemas.contract.reasons import Reason
from forebay_worker.answers.endpoints import Shape
from forebay_worker.answers.verdict import Failed, bad_response, bounded, effective_status, reason_of_status

GIVE_UPS: Final = frozenset(
    {"abort", "aborted", "error", "cancelled", "canceled", "timeout", "insufficient_system_resource"}
)
"""Finish reasons, in lower case, that say that the backend gave the request up.

abort and error: vLLM (v1/engine FINISH_REASON_STRINGS), abort: SGLang, timeout and cancelled: TensorRT-LLM, error:
OpenRouter and LMDeploy, insufficient_system_resource: DeepSeek. vLLM's "repetition" ends an answer, as "length" does.
"""

_STATUSES_OF_WORDS: Final = {
    # text-generation-inference, error_type, with the status of the same error before a stream has begun; but
    # "generation" has 424 there, and is a fault of the server.
    "overloaded": 429,
    "validation": 422,
    "template_error": 422,
    "missing_template_variable": 422,
    "tool_error": 422,
    "generation": 500,
    "incomplete_generation": 500,
    "incomplete_generation_stream": 500,
    "stream_serialization_error": 500,
    # Ollama, error.type; its error.code is always null.
    "invalid_request_error": 400,
    "not_found_error": 404,
    "api_error": 500,
    # Anthropic, error.type: docs, "Errors".
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
    # Google, error.status: the names of gRPC's codes with the statuses of googleapis/google/rpc/code.proto.
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "OUT_OF_RANGE": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "RESOURCE_EXHAUSTED": 429,
    "INTERNAL": 500,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
    # OpenAI, error.code, which says more than the type beside it.
    "invalid_api_key": 401,
    "model_not_found": 404,
    "context_length_exceeded": 400,
    "insufficient_quota": 429,
    # OpenAI, error.code of a response.
    "server_error": 500,
    "rate_limit_exceeded": 429,
    "invalid_prompt": 400,
    "bio_policy": 400,
    "data_residency_mismatch": 400,
    "invalid_image": 400,
    "invalid_image_format": 400,
    "invalid_base64_image": 400,
    "invalid_image_url": 400,
    "image_too_large": 400,
    "image_too_small": 400,
    "image_parse_error": 400,
    "image_content_policy_violation": 400,
    "invalid_image_mode": 400,
    "image_file_too_large": 400,
    "unsupported_image_media_type": 400,
    "empty_image_file": 400,
    "failed_to_download_image": 400,
    "image_file_not_found": 400,
}

# http_status_code is not among them: text-generation-inference writes 422 there for every failure of a stream, an
# overload and a crash of a shard too (router/src/infer/mod.rs, into_openai_event).
_CODE_FIELDS: Final = ("code", "status_code", "status", "statusCode")
_WORD_FIELDS: Final = ("code", "type", "error_type", "status")
_MESSAGE_FIELDS: Final = ("message", "msg", "detail", "error", "reason", "title")


def reported_error(value: dict[str, Any], shape: Shape) -> Failed | None:
    """The verdict on an object that reports an error, else None.

    Known shapes: a truthy ``error`` of any type, ``"object": "error"``, ``"type": "error"``. Of another API only an
    ``error`` that is an object or a text, ``"object": "error"``, and ``errors`` beside ``"success": false``
    (Cloudflare): what else its fields mean is not known, and ``"error": 0.13`` may be a measurement.
    """
    error = value.get("error")
    x_groq = value.get("x_groq")
    if isinstance(x_groq, dict) and x_groq.get("error"):
        # Groq, why a stream was stopped early: openai-compatible otherwise, with a finish_reason.
        error = error or x_groq["error"]
    if value.get("success") is False and value.get("errors"):
        errors = value["errors"]
        error = error or (errors[0] if isinstance(errors, list) else errors)
    if error and (shape is not Shape.OTHER or isinstance(error, (dict, str))):
        return failure_of(error, beside=value)
    if value.get("object") == "error" or (shape is not Shape.OTHER and value.get("type") == "error"):
        return failure_of(value)
    return None


def failure_of(error: object, *, beside: dict[str, Any] | None = None) -> Failed:
    """The verdict on an error's value; ``beside``: the object that it stands in.

    Its code is taken for an HTTP status when it is one of 400-599, as a number or as digits, else the words of its
    code and type, where a source says what they stand for.
    """
    beside = beside or {}
    inner = error if isinstance(error, dict) else {}
    status = _status(inner) or _status(beside)
    message = bounded(f"the engine reported an error: {_words(error, beside)}{_code_words(inner)}")
    if status is None:
        return Failed(reason=Reason.BACKEND_BAD_RESPONSE, message=message)
    status = effective_status(status)
    return Failed(reason=reason_of_status(status), message=message, status=status)


def is_give_up(finish_reason: object) -> bool:
    """Whether a finish reason, as text or as SGLang's own object, says that the backend gave up."""
    if isinstance(finish_reason, dict):
        finish_reason = finish_reason.get("type")
    return isinstance(finish_reason, str) and finish_reason.lower() in GIVE_UPS


def is_rpc_error(value: object) -> bool:
    """Whether it is Google's ``{"error": {"code", "message", "status"}}`` and nothing else."""
    if not isinstance(value, dict) or len(value) != 1 or not isinstance(value.get("error"), dict):
        return False
    return type(value["error"].get("code")) is int and isinstance(value["error"].get("message"), str)


def lacking(field: str, value: object, *, shown: bytes) -> Failed:
    """The verdict on an object without what the endpoint answers; FastAPI's ``detail`` is quoted when there is one.

    Where it names a status (problem details of RFC 9457, gateways that write ``{"statusCode": 429, "message": ...}``),
    it is an error with that status.
    """
    if isinstance(value, dict) and _status(value) is not None:
        return failure_of(value)
    detail = value.get("detail") if isinstance(value, dict) else None
    if detail:
        return bad_response(f"the answer has no {field}, but says", shown=_text(detail).encode(errors="replace"))
    return bad_response(f"the answer has no {field}", shown=shown)


def _status(error: dict[str, Any]) -> int | None:
    for name in _CODE_FIELDS:
        code = error.get(name)
        if isinstance(code, str) and len(code) == 3 and code.isascii() and code.isdigit():
            code = int(code)
        if type(code) is int and 400 <= code < 600:
            return code
    for name in _WORD_FIELDS:
        word = error.get(name)
        if isinstance(word, str) and word in _STATUSES_OF_WORDS:
            return _STATUSES_OF_WORDS[word]
    return None


def _words(error: object, beside: dict[str, Any]) -> str:
    if isinstance(error, str):
        return error
    for holder in (error, beside):
        if isinstance(holder, dict):
            for name in _MESSAGE_FIELDS:
                if isinstance(holder.get(name), str) and holder[name]:
                    return str(holder[name])
    return _text(error)


def _code_words(error: dict[str, Any]) -> str:
    code = error.get("code")
    return f" (code {code})" if isinstance(code, (int, str)) and code != "" else ""


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    try:
        return msgspec.json.encode(value).decode()
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return type(value).__name__
