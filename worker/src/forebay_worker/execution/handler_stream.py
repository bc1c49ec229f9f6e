"""A handler that yields its answer piece by piece: each value is an event, and all of them make the result's body.

The event loop. What no body can be made of is named with the field and the fix.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec

from forebay_schemas.contract.topics import LATER_BYTES_MAX
from forebay_worker.answers.streams import ChoiceStream
from forebay_worker.answers.verdict import Completed, NoAnswerError
from forebay_worker.execution.json_body import why_not_json
from forebay_worker.request.handler import Handler, HandlerAnswer, HandlerRequest
from forebay_worker.request.work import Answer, StreamSink


class UnusableYieldError(Exception):
    """What was yielded cannot be an answer; another execution would yield the same."""


class YieldsTooLargeError(UnusableYieldError):
    """More than a result may hold."""


async def call(handler: Handler, request: HandlerRequest, *, sink: StreamSink | None = None) -> Any:
    """What the handler returns, or an `Answer` of what it yields. Raises ``UnusableYieldError``, and what it raises."""
    returned = handler(request)
    return await collect(returned, sink) if isinstance(returned, AsyncGenerator) else await returned


async def collect(yielded: AsyncGenerator[Any, None], sink: StreamSink | None) -> Answer:
    """The answer of an async generator, whose values go to ``sink`` as they come.

    A `HandlerAnswer`, which must come last, is the answer itself and no event. Without one, chunks of a chat or a
    completion (objects with a list ``choices``) are merged as an engine's are; any other values are the list of them.
    Raises ``UnusableYieldError``, and what the generator raises.
    """
    loop = asyncio.get_running_loop()
    begun_at = loop.time()
    first_at: float | None = None
    values: list[bytes] = []
    merged: ChoiceStream | None = None
    given: HandlerAnswer | None = None
    size_bytes = 0
    async with aclosing(yielded):
        async for value in yielded:
            if given is not None:
                raise UnusableYieldError("yields a value after a HandlerAnswer; yield that last")
            if isinstance(value, HandlerAnswer):
                given = value
                continue
            if (why := why_not_json(value, field="yielded value")) is not None:
                raise UnusableYieldError(why)
            first_at = loop.time() if first_at is None else first_at
            data = msgspec.json.encode(value)
            size_bytes += len(data)
            if size_bytes > LATER_BYTES_MAX:
                raise YieldsTooLargeError(
                    f"the yielded values have {size_bytes} bytes, a record may have {LATER_BYTES_MAX}"
                )
            event = msgspec.json.decode(data)
            choices = event.get("choices") if isinstance(event, dict) else None
            if not values and isinstance(choices, list):
                merged = ChoiceStream(1)
            values.append(data)
            if merged is not None:
                _merge(merged, event)
            if sink is not None:
                sink.add(b"", data, choices if merged is not None else None, event, merged is None or _has_text(merged))
    answer = _answer(given, values, merged)
    return msgspec.structs.replace(answer, first_token_seconds=None if first_at is None else first_at - begun_at)


def _merge(merged: ChoiceStream, event: Any) -> None:
    try:
        merged.take("", event)
    except NoAnswerError as error:
        raise UnusableYieldError(f"the chunks cannot be merged: {error.failed.message}") from None
    except (ValueError, RecursionError) as error:
        raise UnusableYieldError(f"the chunks cannot be merged: {error}") from None


def _has_text(merged: ChoiceStream) -> bool:
    return merged.content_chunks > 0


def _answer(given: HandlerAnswer | None, values: list[bytes], merged: ChoiceStream | None) -> Answer:
    if given is not None:
        return Answer(body=given.body, prompt_tokens=given.prompt_tokens, output_tokens=given.output_tokens)
    if merged is None:
        return Answer(body=msgspec.Raw(b"[%b]" % b",".join(values)))
    verdict = merged.end()
    if not isinstance(verdict, Completed):
        raise UnusableYieldError(f"the chunks are no answer: {verdict.message}; give each choice a finish_reason")
    return Answer(
        body=msgspec.Raw(verdict.body),
        prompt_tokens=verdict.prompt_tokens,
        output_tokens=verdict.output_tokens,
        content_chunks=verdict.content_chunks,
    )
