"""A calibration's verdicts on an engine's answers: by the same rules as a worker's."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from forebay_schemas.clock import SystemClock
from forebay_worker.calibrate.requests import Asked
from forebay_worker.calibrate.samples import Ended, Trouble
from forebay_worker.calibrate.target import HttpTarget
from forebay_worker.settings import load_worker_settings
from harness.raw_engine import chunked, raw_engine, response, written

USAGE = {"prompt_tokens": 3, "completion_tokens": 9}


def event(delta: dict[str, str], finish_reason: str | None = None, **beside: object) -> bytes:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish_reason}]
    return b"data: " + msgspec.json.encode({"choices": choices, **beside}) + b"\n\n"


def ended(answer: bytes, *, biz_type: str = "chat_completion") -> tuple[Ended, int]:
    """The end of a request, and the number of its reported pieces of text."""
    pieces: list[float] = []

    async def scenario() -> Ended:
        async with raw_engine(written(answer, then_close=True)) as engine:
            target = HttpTarget(
                load_worker_settings(flags={"backend_url": engine.url}, config=None),
                concurrency_max=1,
                clock=SystemClock(),
                on_chunk=pieces.append,
            )
            try:
                return await target.run(Asked(biz_type=biz_type, payload={"messages": []}))
            finally:
                await target.close()

    return asyncio.run(scenario()), len(pieces)


TEXT = (event({"role": "assistant"}), event({"content": "a"}), event({"reasoning": "b"}))


@pytest.mark.parametrize(
    ("events", "output_tokens"),
    [
        ([*TEXT, event({}, "stop"), b"data: [DONE]\n\n"], 2),
        ([*TEXT, event({}, "stop", usage=USAGE), b"data: [DONE]\n\n"], 9),
        # As text-generation-inference ends.
        ([*TEXT, event({}, "stop", usage=USAGE)], 9),
    ],
)
def test_pieces_of_a_stream_are_told_and_stand_for_tokens_without_usage(
    events: list[bytes], output_tokens: int
) -> None:
    one, pieces = ended(chunked(*events))
    assert (one.trouble, one.error, one.output_tokens) == (None, None, output_tokens)
    assert one.first_token_at is not None
    assert one.started <= one.first_token_at <= one.ended
    assert (one.chunks, pieces) == (2, 2)


def test_an_answer_without_a_stream_has_no_first_token() -> None:
    body = {"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}], "usage": USAGE}
    one, pieces = ended(response(msgspec.json.encode(body)))
    assert (one.trouble, one.first_token_at, one.prompt_tokens, one.output_tokens, pieces) == (None, None, 3, 9, 0)


@pytest.mark.parametrize(
    ("answer", "trouble"),
    [
        (response(b'{"error": "no such model"}'), Trouble.FAILED),
        (response(b'{"choices": []}'), Trouble.FAILED),
        (response(b'{"error": {"message": "m", "code": 429}}'), Trouble.REFUSED),
        (response(b"", status=503), Trouble.REFUSED),
        (response(b"", status=307, headers={"location": "http://127.0.0.1:1/"}), Trouble.FAILED),
        (chunked(*TEXT, event({}, "abort")), Trouble.BROKEN_OFF),
        (chunked(*TEXT, b"data: [DONE]\n\n"), Trouble.BROKEN_OFF),
        (chunked(*TEXT, is_ended=False), Trouble.BROKEN_OFF),
        (b"", Trouble.BROKEN_OFF),
    ],
)
def test_what_is_no_answer_is_a_failure_of_its_kind(answer: bytes, trouble: Trouble) -> None:
    one, _ = ended(answer)
    assert one.trouble is trouble
    assert one.error
