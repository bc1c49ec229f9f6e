"""Each way a backend can fail has its own end, and the request that meets it is no one else's trouble."""

from __future__ import annotations

import gzip
import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from forebay_schemas.contract import headers as h
from forebay_schemas.contract.tiers import Tier
from harness.live_pool import LivePool, chat, envelope
from harness.obedient_backend import answer, obedient_backend
from harness.workers import running_workers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay_sandbox.kafka.access import KafkaAccess
    from harness.served import Served

_WHOLE: dict[str, Any] = {
    "id": "x",
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "whole"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 5},
}


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"kind": "status", "status": 500}, "backend_error"),
        ({"kind": "status", "status": 504}, "backend_timeout"),
        ({"kind": "status", "status": 400}, "backend_rejected"),
        ({"kind": "status", "status": 422}, "backend_rejected"),
        ({"kind": "status", "status": 408}, "backend_timeout"),
        ({"kind": "cut", "where": "middle"}, "backend_bad_response"),
        ({"kind": "cut", "where": "before"}, "backend_unavailable"),
        ({"kind": "status", "status": 503}, "backend_unavailable"),
        ({"kind": "status", "status": 429}, "backend_overloaded"),
    ],
    ids=["500", "504", "400", "422", "408", "cut-in-the-middle", "cut-before", "503", "429"],
)
def test_a_failing_request_ends_with_its_reason_while_others_are_served(
    served: Served, fault: dict[str, Any], reason: str, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.id
    served.engine.faults({**fault, "match": f"bad-{name}"})
    bad = envelope(f"bad-{name}", priority=8)
    # Others are served before, beside and after it, so the failure is its own.
    others = [envelope(f"good-{name}-{number}", payload=chat(output_tokens=5)) for number in range(60)]
    served.pool.submit(Tier.HIGH, *others[:20], bad, *others[20:])
    results = served.pool.results([bad["request_id"], *(one["request_id"] for one in others)])
    failed = results.pop(bad["request_id"])
    assert (failed.status, failed.reason) == ("failed", reason)
    assert failed.error
    assert failed.body is None
    assert failed.service_seconds is not None
    assert {result.status for result in results.values()} == {"completed"}


def test_a_failed_request_is_kept_as_a_dead_letter(served: Served) -> None:
    served.engine.faults({"kind": "status", "status": 500, "match": "kept"})
    whole = envelope("kept", extra="stays")
    before = len(served.pool.kafka.read_all(served.pool.topics.dead_letter))
    served.pool.submit(Tier.MID, whole)
    assert served.pool.result("kept").status == "failed"
    letters = served.pool.dead_letters(before + 1)
    [letter] = [one for one in letters if one.key() == b"kept"]
    assert json.loads(letter.value() or b"") == whole
    headers: dict[str, Any] = dict(letter.headers() or [])
    assert headers[h.REASON] == b"backend_error"
    assert b"injected fault" in headers[h.DLT_EXCEPTION_MESSAGE]


def test_a_completed_request_carries_the_answer_and_its_figures(served: Served) -> None:
    served.pool.submit(Tier.MID, envelope("whole", payload=chat(output_tokens=7)))
    result = served.pool.result("whole")
    assert (result.status, result.reason, result.tier, result.attempt) == ("completed", "completed", "mid", 1)
    assert result.worker == "worker-1"
    assert result.output_tokens == 7
    assert result.prompt_tokens is not None
    assert result.prompt_tokens >= 1
    assert result.queue_seconds is not None
    assert result.service_seconds is not None
    assert 0 <= result.queue_seconds < 30
    assert 0.03 < result.service_seconds < 30
    assert result.error is None
    assert result.body["object"] == "chat.completion"
    assert result.body["choices"][0]["message"]["content"] == "flow " * 7


@pytest.mark.parametrize("biz_type", ["chat_completion", "completion"])
def test_a_stream_is_given_as_one_whole_completion(served: Served, biz_type: str) -> None:
    name = f"stream-{biz_type}"
    payload: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 6}
    if biz_type == "chat_completion":
        payload["messages"] = []
    else:
        payload["prompt"] = "p"
    served.pool.submit(Tier.HIGH, envelope(name, biz_type=biz_type, payload=payload))
    result = served.pool.result(name)
    assert result.status == "completed", result.error
    [choice] = result.body["choices"]
    text = choice["message"]["content"] if biz_type == "chat_completion" else choice["text"]
    assert text == "flow " * 6
    assert choice["finish_reason"] == "length"
    assert result.body["object"] == ("chat.completion" if biz_type == "chat_completion" else "text_completion")
    assert result.body["usage"]["completion_tokens"] == 6
    assert (result.output_tokens, result.prompt_tokens) == (6, 1)


@pytest.fixture(scope="module")
def obedient(kafka: KafkaAccess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivePool]:
    """A pool whose backend answers what the request asks it to."""
    with (
        obedient_backend() as url,
        closing(LivePool(kafka)) as pool,
        running_workers(tmp_path_factory.mktemp("obedient")) as new_worker,
    ):
        new_worker(pool, backend_url=url, limit_max=4, max_retries=0)
        yield pool


@pytest.mark.parametrize(
    "wish",
    [
        answer(b'{"id": "x", "choices": ['),
        answer(b"<html>hello</html>", content_type="text/html"),
        answer(b'["no", "object"]'),
        answer(b'{"choices": [{"text": "half a character: \xe2\x82"}]}'),
        answer(b""),
        answer(b'data: {"choices": []}\n\n', content_type="text/event-stream"),
        answer(b"data: {oops\n\ndata: [DONE]\n\n", content_type="text/event-stream"),
        answer(b'data: {"choices": [7]}\n\ndata: [DONE]\n\n', content_type="text/event-stream"),
        answer(b"[" * 100_000),
        answer(json.dumps(_WHOLE).encode(), status=204),
        answer(json.dumps(_WHOLE).encode(), status=302),
    ],
    ids=[
        "breaks-off",
        "html",
        "list",
        "no-utf8",
        "empty",
        "stream-breaks-off",
        "stream-no-json",
        "stream-odd-choice",
        "deep",
        "204",
        "302",
    ],
)
def test_an_answer_that_is_no_completion_fails_its_request(
    obedient: LivePool, wish: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    name = f"answer-{request.node.callspec.id}"
    obedient.submit(Tier.HIGH, envelope(name, payload=wish))
    result = obedient.result(name)
    assert (result.status, result.reason) == ("failed", "backend_bad_response")
    assert result.error
    obedient.submit(Tier.HIGH, envelope(f"{name}-next", payload=answer(json.dumps(_WHOLE).encode())))
    assert obedient.result(f"{name}-next").body == _WHOLE


@pytest.mark.parametrize(
    "usage",
    [None, {}, {"prompt_tokens": None}, {"prompt_tokens": 1.0, "completion_tokens": "many"}, [], 7],
    ids=["null", "none", "null-count", "odd-counts", "list", "number"],
)
def test_an_odd_usage_does_not_spoil_a_good_answer(
    obedient: LivePool, usage: object, request: pytest.FixtureRequest
) -> None:
    name = f"usage-{request.node.callspec.id}"
    whole = _WHOLE | {"usage": usage}
    obedient.submit(Tier.HIGH, envelope(name, payload=answer(json.dumps(whole).encode())))
    result = obedient.result(name)
    assert result.status == "completed", result.error
    assert result.body == whole
    assert result.output_tokens is None


def test_an_answer_larger_than_a_record_fails_its_request(obedient: LivePool) -> None:
    # The request itself cannot be as large as the answer, so the answer comes compressed.
    whole = json.dumps(_WHOLE | {"filler": "x" * (9 * 1024 * 1024)}).encode()
    wish = answer(gzip.compress(whole), headers={"content-encoding": "gzip"})
    obedient.submit(Tier.HIGH, envelope("too-large", payload=wish))
    result = obedient.result("too-large")
    assert (result.status, result.reason) == ("failed", "result_too_large")
    assert result.body is None


def test_an_answer_close_to_the_limit_arrives(obedient: LivePool) -> None:
    whole = _WHOLE | {"filler": "x" * (8 * 1024 * 1024)}
    wish = answer(gzip.compress(json.dumps(whole).encode()), headers={"content-encoding": "gzip"})
    obedient.submit(Tier.HIGH, envelope("large", payload=wish))
    assert obedient.result("large").body == whole
