"""A handler's value that JSON cannot express is named by its field, and nothing is written as another value."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import enum
import uuid
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from forebay_schemas.contract.reasons import Reason
from forebay_worker import HandlerRequest
from forebay_worker.execution.handler_backend import HandlerBackend
from forebay_worker.execution.json_body import why_not_json
from forebay_worker.request.backend import BackendFailed
from simulated.works import make_work

NAN = float("nan")


@dataclass
class Box:
    name: str
    inside: Any


class Pack(msgspec.Struct):
    inside: Any


class Colour(enum.Enum):
    RED = "red"


def holds_itself() -> Any:
    ring: list[Any] = []
    ring += [ring, ring]
    return ring


def deep() -> Any:
    value: Any = 1
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (NAN, "body: is nan, which JSON cannot say; give null or leave it out"),
        ([1.0, float("-inf")], "body[1]: is -inf, which JSON"),
        ({"scores": [0.5, NAN]}, "body.scores[1]: is nan, which JSON"),
        ({"a": 1, "b": NAN, "c": "d"}, "body.b: is nan, which JSON"),
        ({"a": [{"tags": {1}}]}, "body.a[0].tags: is a set, which has no order"),
        ({"tags": frozenset()}, "body.tags: is a set,"),
        ({"image": b"png"}, "body.image: is bytes, which JSON cannot say; give text, base64"),
        ((1, bytearray(b"x")), "body[1]: is bytes,"),
        (Box("a", [NAN]), "body.inside[0]: is nan,"),
        ({"pack": Pack(Box("a", {2}))}, "body.pack.inside.inside: is a set,"),
        ({"value": object()}, "body.value: is a builtins.object, which JSON cannot say; give what it stands for"),
        ({"kind": int}, "body.kind: is a builtins.type, which"),
        (holds_itself(), "body[0]: holds itself; make it flatter"),
        (deep(), "is nested too deeply; make it flatter"),
    ],
)
def test_what_json_cannot_say_is_named_by_its_field(body: Any, problem: str) -> None:
    said = why_not_json(body)
    assert said is not None
    assert said.startswith(problem) or problem in said


@pytest.mark.parametrize(
    "body",
    [
        None,
        "text",
        {"text": "a", "n": 1, "share": 0.5, "more": [True, None, 2.5, "x", {"y": []}]},
        {"at": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), "id": uuid.UUID(int=1), "price": decimal.Decimal(1)},
        {"colour": Colour.RED, "raw": msgspec.Raw(b"{}")},
        Box("a", (1, 2)),
        Pack({"a": 1.5}),
        [[1, 2]] * 3,
    ],
)
def test_what_json_can_say_goes_on_as_it_is(body: Any) -> None:
    async def handler(_: HandlerRequest) -> Any:
        return body

    assert why_not_json(body) is None
    assert asyncio.run(HandlerBackend(handler).run(make_work())).body is body


def test_an_answer_that_json_cannot_say_fails_its_request_and_is_not_tried_again() -> None:
    async def handler(_: HandlerRequest) -> Any:
        return {"scores": [NAN]}

    with pytest.raises(BackendFailed) as failed:
        asyncio.run(HandlerBackend(handler).run(make_work()))
    failure = failed.value.failure
    assert (failure.reason, failure.may_retry) == (Reason.HANDLER_FAILED, False)
    assert (
        failure.error
        == "the handler's answer: body.scores[0]: is nan, which JSON cannot say; give null or leave it out"
    )
