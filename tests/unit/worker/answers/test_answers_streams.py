"""A streamed answer: its events, its end, and every way in which it can be broken."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_schemas.contract.reasons import Reason
from forebay_worker.answers.endpoints import Shape
from forebay_worker.answers.framing import Event, Framing
from forebay_worker.answers.judge import EVENT_STREAM, AnswerReader, End
from forebay_worker.answers.streams import Progress, _Choice
from forebay_worker.answers.verdict import Completed, Failed, Verdict
from simulated.answers import DONE, LIMITS, body_of, event, nested, read, reader_of

MORE, MAY_END, COMPLETE = Progress.MORE, Progress.MAY_END, Progress.COMPLETE
BAD = Reason.BACKEND_BAD_RESPONSE


def chunk(delta: Any = None, finish_reason: Any = None, *, index: int = 0, **beside: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": delta or {}, "finish_reason": finish_reason}
    return {"id": "c-1", "object": "chat.completion.chunk", "created": 7, "model": "m", "choices": [choice], **beside}


HI, LO, STOP = event(chunk({"content": "Hel"})), event(chunk({"content": "lo"})), event(chunk({}, "stop"))
USAGE = event({"id": "c-1", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})


def content_of(verdict: Verdict) -> Any:
    return body_of(verdict)["choices"][0]["message"]["content"]


# Its end


def test_text_is_joined_and_the_rest_is_as_the_last_chunk_says() -> None:
    verdict = read(event(chunk({"role": "assistant", "content": ""})), HI, LO, STOP, USAGE, DONE)
    assert body_of(verdict) == {
        "id": "c-1",
        "object": "chat.completion",
        "created": 7,
        "model": "m",
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}],
    }
    assert isinstance(verdict, Completed)
    assert (verdict.prompt_tokens, verdict.output_tokens, verdict.content_chunks) == (3, 2, 2)


@pytest.mark.parametrize(
    ("pieces", "progress"),
    [
        ([HI], [MORE]),
        ([HI, STOP], [MORE, MAY_END]),
        ([HI, STOP, USAGE], [MORE, MAY_END, MAY_END]),
        ([HI, STOP, USAGE, DONE], [MORE, MAY_END, MAY_END, COMPLETE]),
        ([HI, STOP, b"data: [DONE]"], [MORE, MAY_END, COMPLETE]),
        ([HI, STOP, b"data: [DO", b"NE]"], [MORE, MAY_END, MAY_END, COMPLETE]),
        ([HI, STOP, b"data:[DONE]\n"], [MORE, MAY_END, COMPLETE]),
        ([HI + STOP + DONE, b"more"], [COMPLETE, COMPLETE]),
        # A choice that begins late takes the end back.
        ([HI, STOP, event(chunk({"content": "b"}, index=1))], [MORE, MAY_END, MORE]),
        ([event({"error": {"message": "m"}})], [COMPLETE]),
        ([event(chunk({}, "abort"))], [COMPLETE]),
        ([event(b"rubbish")], [COMPLETE]),
    ],
)
def test_the_caller_learns_at_once_when_no_more_is_wanted(pieces: list[bytes], progress: list[Progress]) -> None:
    reader = reader_of()
    assert [reader.feed(piece) for piece in pieces] == progress


@pytest.mark.parametrize(
    ("pieces", "end", "completes", "gave_up"),
    [
        ([HI, STOP, DONE], End.TIDY, True, False),
        ([HI, STOP], End.TIDY, True, False),
        ([HI, STOP], End.GRACE, True, False),
        ([HI], End.GRACE, False, True),
        ([HI, STOP, DONE], End.BROKEN, True, False),
        # Usage or another choice may have been on its way.
        ([HI, STOP], End.BROKEN, False, True),
        ([HI], End.TIDY, False, True),
        ([HI], End.BROKEN, False, True),
        # [DONE] is written by relays too, behind whatever came.
        ([HI, DONE], End.TIDY, False, True),
        ([HI, STOP, event(chunk({"content": "b"}, index=1)), DONE], End.TIDY, False, True),
        ([event(chunk({"content": "a"}, "")), DONE], End.TIDY, False, True),
        ([DONE], End.TIDY, False, False),
        ([USAGE, DONE], End.TIDY, False, False),
        ([], End.TIDY, False, False),
        ([b": ping\n\n"], End.TIDY, False, False),
        ([], End.BROKEN, False, True),
    ],
)
def test_what_makes_a_stream_whole(pieces: list[bytes], end: End, completes: bool, gave_up: bool) -> None:
    verdict = read(*pieces, end=end)
    assert isinstance(verdict, Completed) is completes
    if isinstance(verdict, Failed):
        assert (verdict.reason, verdict.status, verdict.gave_up) == (BAD, None, gave_up)


def test_a_choice_that_has_not_begun_is_waited_for() -> None:
    reader = AnswerReader(shape=Shape.CHAT, status=200, content_type=EVENT_STREAM, limits=LIMITS, choices_asked=2)
    assert [reader.feed(piece) for piece in (HI, STOP)] == [MORE, MORE]
    assert [reader.feed(event(chunk({"content": "b"}, reason, index=1))) for reason in (None, "stop")] == [
        MORE,
        MAY_END,
    ]
    # A server that knows no n answers with one choice: that is whole when it says so, or ends.
    for end in ([DONE], []):
        reader = AnswerReader(shape=Shape.CHAT, status=200, content_type=EVENT_STREAM, limits=LIMITS, choices_asked=2)
        for piece in [HI, STOP, *end]:
            reader.feed(piece)
        assert isinstance(reader.finish(End.TIDY), Completed)


def test_a_verdict_stays() -> None:
    reader = reader_of()
    reader.feed(HI + STOP + DONE)
    verdict = reader.finish(End.TIDY)
    assert reader.feed(event({"error": "too late"})) is COMPLETE
    assert reader.finish(End.BROKEN) is verdict


def test_the_first_token_can_be_timed() -> None:
    reader = reader_of()
    counts = []
    for piece in (b": ping\n\n", event(chunk({"role": "assistant", "content": ""})), HI, LO, STOP, USAGE):
        reader.feed(piece)
        counts.append(reader.content_chunks)
    assert counts == [0, 0, 1, 2, 2, 2]


# Its events


@pytest.mark.parametrize(
    "stream",
    [
        HI + LO + STOP + DONE,
        b"\xef\xbb\xbf" + HI + LO + STOP + DONE,
        (HI + LO + STOP + DONE).replace(b"\n", b"\r\n"),
        (HI + LO + STOP + DONE).replace(b"\n", b"\r"),
        (HI + LO + STOP + DONE).replace(b"data: ", b"data:"),
        (HI + LO + STOP + DONE).replace(b"\n\n", b" \n\n"),
        b": ping\n\nevent: message\nid: 3\nretry: 5\n" + HI + b"data:\n\n: ping\n" + LO + STOP + DONE,
        b"\n\n" + HI + b"data: null\n\n" + LO + b"data: \n\n" + STOP + DONE,
        HI + LO + STOP + DONE[:-2],
        HI + LO + STOP[:-2],
        # One empty line is missing, so two chunks are one event.
        HI[:-1] + LO + STOP + DONE,
        # Lines of bare JSON, among events and alone.
        HI[6:] + LO[6:] + STOP[6:] + DONE,
        HI[6:].replace(b"\n\n", b"\n") + LO[6:].replace(b"\n\n", b"\n") + STOP[6:],
        HI
        + b"data: "
        + json.dumps(chunk({"content": "lo"}), indent=1).replace("\n", "\ndata: ").encode()
        + b"\n\n"
        + STOP,
        HI + LO + STOP + DONE + b"data: rubbish\n\n",
    ],
)
def test_the_wire_form_may_vary(stream: bytes) -> None:
    for content_type in (EVENT_STREAM, "application/json", "text/plain", "application/x-ndjson"):
        for piece_bytes in (1, 5, len(stream)):
            pieces = [stream[at : at + piece_bytes] for at in range(0, len(stream), piece_bytes)]
            assert content_of(read(*pieces, content_type=content_type)) == "Hello"


@pytest.mark.parametrize(
    ("stream", "reason", "status", "said"),
    [
        (event({"error": {"message": "dead", "code": 500}}), Reason.BACKEND_ERROR, 500, "dead"),
        (HI + event({"error": "out of memory"}) + DONE, BAD, None, "out of memory"),
        (HI + event({"object": "error", "message": "m", "code": 400}), Reason.BACKEND_REJECTED, 400, "m"),
        (b"event: error\n" + event({"message": "m", "code": 503}), Reason.BACKEND_UNAVAILABLE, 503, "m"),
        (b"event: error\n" + event({"error": {"message": "m", "code": 429}}), Reason.BACKEND_OVERLOADED, 429, "m"),
        (b"event: error\ndata: in plain words\n\n" + DONE, BAD, None, "in plain words"),
        (b"event: error\n\n" + DONE, BAD, None, "without words"),
        (HI + b'error: {"code": 400, "message": "m"}\n\n' + DONE, Reason.BACKEND_REJECTED, 400, "m"),
        (HI + b'{"error": {"code": 400, "message": "m"}}', Reason.BACKEND_REJECTED, 400, "m"),
        (HI + b'{\n "error": {\n  "code": 400,\n  "message": "m"\n }\n}', Reason.BACKEND_REJECTED, 400, "m"),
        (b'{"error": {"code": 400, "message": "m"}}', Reason.BACKEND_REJECTED, 400, "m"),
        (b'{"error": {"code": 400, "message": "m"}}\n\n' + DONE, Reason.BACKEND_REJECTED, 400, "m"),
        (
            HI + event({"choices": [{"index": 0, "error": {"code": 502, "message": "m"}}]}),
            Reason.BACKEND_UNAVAILABLE,
            502,
            "m",
        ),
        (event({**chunk({}, "error"), "error": {"code": 502, "message": "m"}}), Reason.BACKEND_UNAVAILABLE, 502, "m"),
        (event(b"[1]"), BAD, None, "no object"),
        (event(b'{"choices": [3]}'), BAD, None, "a choice is no object"),
        (event(b'{"choices": 3}'), BAD, None, "no list"),
        (event(b'{"choices": [{"delta": 3}]}'), BAD, None, "a delta is no object"),
        (event(b'{"choices": [{"index": -1, "delta": {}}]}'), BAD, None, "index -1"),
        (event(b'{"choices": [{"index": "0", "delta": {}}]}'), BAD, None, "index '0'"),
        (event(b'{"choices": [{"index": true, "delta": {}}]}'), BAD, None, "index True"),
        (HI + event({"choices": [{"index": 0, "delta": {"content": 3}}]}), BAD, None, "'content' is text first"),
        (event({"choices": [{"index": 0, "delta": {"tool_calls": ["x"]}}]}), BAD, None, "a tool call is no object"),
        (event({"choices": [{"index": 0, "delta": {"tool_calls": "x"}}]}), BAD, None, "'tool_calls' is no list"),
        (HI + event(b"{"), BAD, None, "no JSON"),
        (HI + event(b'{"a": NaN, "b": "\\ud800"}'), BAD, None, "no JSON"),
        (HI + event(b'"\xff"'), BAD, None, "no JSON"),
        (event(b'{"a":' * 100_000), BAD, None, "no JSON"),
        (HI[:-5], BAD, None, "no JSON"),
        (HI + b"<html>Bad Gateway</html>", BAD, None, "broke off"),
        (b"<html>Sign in</html>", BAD, None, "the stream is empty"),
    ],
    ids=lambda value: repr(value)[:70],
)
def test_a_broken_stream_is_no_answer(stream: bytes, reason: Reason, status: int | None, said: str) -> None:
    for pieces in ([stream], [stream[:9], stream[9:]]):
        verdict = read(*pieces)
        assert isinstance(verdict, Failed), verdict
        assert (verdict.reason, verdict.status) == (reason, status)
        assert said in verdict.message


def test_text_that_looks_like_an_end_is_none() -> None:
    tricky = event(chunk({"content": "data: [DONE]"})) + STOP
    for piece_bytes in range(1, 60):
        pieces = [tricky[at : at + piece_bytes] for at in range(0, len(tricky), piece_bytes)]
        assert content_of(read(*pieces)) == "data: [DONE]"


def test_events_have_names_and_many_lines() -> None:
    framing = Framing()
    events = framing.feed(b"event: a\ndata: 1\ndata: 2\n\ndata: 3\n\nevent: b\n\n") + framing.end()
    assert events == [Event(b"a", b"1\n2"), Event(b"", b"3")]


# Forms that were not asked for


def test_json_where_a_stream_was_asked_and_a_stream_where_json_was() -> None:
    whole = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}]}
    data = json.dumps(whole).encode()
    assert read(data) == Completed(body=data)
    assert content_of(read(event(whole), DONE)) == "Hello", "one event that holds the answer"
    assert content_of(read(HI, LO, STOP, DONE, content_type="application/json")) == "Hello"


@pytest.mark.parametrize(
    ("shape", "whole"),
    [
        (
            Shape.EMBEDDING,
            {"object": "list", "data": [{"embedding": [0.5], "index": 0}], "usage": {"prompt_tokens": 1}},
        ),
        (Shape.IMAGE, {"created": 7, "data": [{"url": "https://x/1.png"}]}),
    ],
)
def test_an_answer_in_one_event(shape: Shape, whole: dict[str, Any]) -> None:
    assert body_of(read(event(whole), DONE, shape=shape)) == whole
    assert isinstance(read(DONE, shape=shape), Failed)
    assert isinstance(read(event({"data": []}), DONE, shape=shape), Failed)


def test_the_stream_of_an_unknown_api_is_the_list_of_its_events() -> None:
    values: list[dict[str, Any]] = [
        {"type": "message_start"},
        {"type": "content_block_delta", "delta": {"text": "a"}},
        {"type": "message_stop"},
    ]
    stream = b"".join(f"event: {value['type']}\n".encode() + event(value) for value in values)
    assert body_of(read(stream, shape=Shape.OTHER)) == values
    assert body_of(read(b"\n".join(json.dumps(value).encode() for value in values), shape=Shape.OTHER)) == values
    assert isinstance(read(event({"n": 1}), shape=Shape.OTHER, end=End.BROKEN), Failed)
    assert isinstance(read(event({"n": 1}), event({"error": {"message": "m"}}), shape=Shape.OTHER), Failed)
    assert isinstance(read(b"event: error\n" + event({"type": "error"}), shape=Shape.OTHER), Failed)


def test_an_unknown_path_may_lead_to_a_known_form() -> None:
    assert content_of(read(HI, LO, STOP, DONE, shape=Shape.OTHER)) == "Hello"
    assert isinstance(read(HI, LO, shape=Shape.OTHER), Failed)
    last = {"type": "response.completed", "response": {"status": "completed", "output": [{}]}}
    verdict = read(event({"type": "response.created", "response": {}}), event(last), shape=Shape.OTHER)
    assert body_of(verdict) == last["response"]


def test_a_response_is_complete_with_its_last_event() -> None:
    reader = reader_of(shape=Shape.RESPONSE)
    assert reader.feed(event({"type": "response.created", "response": {"status": "in_progress"}})) is MORE
    assert (
        reader.feed(event({"type": "response.completed", "response": {"status": "completed", "output": [1]}}))
        is COMPLETE
    )
    assert body_of(reader.finish(End.BROKEN)) == {"status": "completed", "output": [1]}
    named = b"event: response.completed\n" + event({"response": {"status": "completed", "output": [1]}})
    assert isinstance(read(named, shape=Shape.RESPONSE), Completed)
    cancelled = event({"type": "response.completed", "response": {"status": "cancelled", "output": []}})
    verdict = read(cancelled, shape=Shape.RESPONSE)
    assert isinstance(verdict, Failed)
    assert verdict.gave_up


DELTAS = nested(
    st.none() | st.integers() | st.text(max_size=3),
    *("choices", "delta", "index", "tool_calls", "function", "text", "content", "finish_reason", "id"),
)


@settings(deadline=None)
@given(st.lists(DELTAS, max_size=4), st.sampled_from(list(Shape)))
def test_any_events_have_a_verdict(values: list[Any], shape: Shape) -> None:
    verdict = read(*(event(value) for value in values), DONE, shape=shape)
    if isinstance(verdict, Completed):
        msgspec.json.decode(verdict.body)


TEXT = st.sampled_from(["", "a", "ha"])
PLAIN_CHUNKS = st.lists(
    st.fixed_dictionaries(
        {"delta": st.fixed_dictionaries({}, optional={"content": TEXT, "reasoning": TEXT, "odd": TEXT, "role": TEXT})},
        optional={
            "index": st.sampled_from([0, 1, None]),
            "logprobs": st.sampled_from([None, {"content": [1]}]),
            "finish_reason": st.sampled_from([None, None, "", "stop"]),
            "text": TEXT,
        },
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=300)
@given(PLAIN_CHUNKS)
def test_what_is_merged_on_the_short_way_is_as_on_the_long_one(chunks: list[Any]) -> None:
    body = b"".join(event({"id": "c", "choices": [chunk]}) for chunk in chunks)
    short = read(body, DONE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Choice, "take_plain", lambda _self, _chunk: False)
        assert read(body, DONE) == short
