"""The drawing demo's pure parts: who comes when, the image model, the figures and the promises."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from rich.console import Console

from forebay_sandbox.demo.ledger import Passage
from forebay_sandbox.drawing import handler
from forebay_sandbox.drawing.handler import (
    JITTER_SHARE,
    LOG_VARIABLE,
    SECONDS_VARIABLE,
    draw,
    drawing_seconds,
    png_of,
)
from forebay_sandbox.drawing.picture import draw as draw_picture
from forebay_sandbox.drawing.report import (
    DrawingFigures,
    Kind,
    Visit,
    as_json,
    broken_promises,
    drawing_figures,
    saved_seconds,
)
from forebay_sandbox.drawing.users import (
    BURST_FREE,
    EARLY_PAID,
    SLOTS_A_WORKER,
    STEADY_FREE,
    STEADY_PAID,
    User,
    users,
)
from forebay_sandbox.drawing.view import report_table
from forebay_sandbox.engine.ledger import executed_ids
from forebay_sandbox.stack.stack import WORKERS
from forebay_schemas.contract.control import ControlOutcome
from forebay_schemas.contract.reasons import Status
from forebay_schemas.contract.results import Result
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.errors import UsageError

IMAGE_SECONDS = 15.0
EVERYBODY = users(image_seconds=IMAGE_SECONDS)


def test_all_come_in_order_and_some_free_users_would_pay() -> None:
    assert [one.number for one in EVERYBODY] == list(range(len(EVERYBODY)))
    assert [one.at_seconds for one in EVERYBODY] == sorted(one.at_seconds for one in EVERYBODY)
    tiers = Counter(one.tier for one in EVERYBODY)
    assert tiers == {Tier.HIGH: EARLY_PAID + STEADY_PAID, Tier.LOW: BURST_FREE + STEADY_FREE}
    impatient = [one for one in EVERYBODY if one.patience_seconds is not None]
    assert {one.tier for one in impatient} == {Tier.LOW}
    assert len(impatient) == tiers[Tier.LOW] // 4
    assert all(10 <= (one.patience_seconds or 0) <= 20 for one in impatient)


def test_the_burst_is_more_than_can_be_drawn_at_once_and_all_take_about_two_minutes() -> None:
    slots = WORKERS * SLOTS_A_WORKER
    assert sum(one.tier is Tier.LOW for one in EVERYBODY if one.at_seconds < 9) > 2 * slots
    drawing = sum(drawing_seconds(one.prompt, mean_seconds=IMAGE_SECONDS) for one in EVERYBODY)
    assert 80 < drawing / slots < 110


def test_paying_users_alone_are_no_load() -> None:
    paid = [one for one in EVERYBODY if one.tier is Tier.HIGH]
    assert len(paid) * IMAGE_SECONDS / EVERYBODY[-1].at_seconds < WORKERS * SLOTS_A_WORKER / 2


def test_with_quicker_images_it_is_the_same_story() -> None:
    quick = users(image_seconds=1.5)
    assert [one.at_seconds for one in quick] == pytest.approx([one.at_seconds / 10 for one in EVERYBODY])
    assert [one.tier for one in quick] == [one.tier for one in EVERYBODY]


def test_an_image_that_takes_no_time_is_refused() -> None:
    with pytest.raises(UsageError, match="--image-seconds: is 0; give"):
        users(image_seconds=0)


def test_each_prompt_has_its_own_picture_and_its_own_time() -> None:
    prompts = [one.prompt for one in EVERYBODY]
    assert len({png_of(prompt) for prompt in prompts}) == len(prompts)
    assert png_of("a heron") == png_of("a heron")
    times = [drawing_seconds(prompt, mean_seconds=IMAGE_SECONDS) for prompt in prompts]
    assert IMAGE_SECONDS * (1 - JITTER_SHARE) <= min(times) < 11
    assert 19 < max(times) <= IMAGE_SECONDS * (1 + JITTER_SHARE)
    assert sum(times) / len(times) == pytest.approx(IMAGE_SECONDS, rel=0.05)


@dataclass(frozen=True, slots=True)
class Ordered:
    """A request as a worker hands it to the handler."""

    request_id: str
    payload: dict[str, Any] = field(default_factory=lambda: {"prompt": "a heron"})


def test_a_drawing_is_an_answer_of_the_images_api_and_stands_in_the_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / "drawings.jsonl"
    monkeypatch.setenv(SECONDS_VARIABLE, "0.01")
    monkeypatch.setenv(LOG_VARIABLE, str(log))

    async def draw_one_and_break_off_another() -> dict[str, Any]:
        monkeypatch.setenv(SECONDS_VARIABLE, "60")
        broken_off = asyncio.create_task(draw(Ordered("two")))
        await asyncio.sleep(0)
        broken_off.cancel()
        with pytest.raises(asyncio.CancelledError):
            await broken_off
        monkeypatch.setenv(SECONDS_VARIABLE, "0.01")
        return await draw(Ordered("one"))

    answer = asyncio.run(draw_one_and_break_off_another())
    picture = base64.b64decode(answer["data"][0]["b64_json"])
    assert picture == png_of("a heron")
    with Image.open(BytesIO(picture)) as image:
        assert (image.format, f"{image.width}x{image.height}") == ("PNG", answer["size"])
    outcomes = {line["request_id"]: line["outcome"] for line in map(json.loads, log.read_text().splitlines())}
    assert outcomes == {"one": "completed", "two": "disconnected"}
    assert sorted(executed_ids(log)) == ["one", "two"]
    handler._ledger().close()
    handler._ledger.cache_clear()


def visit(
    number: int,
    *,
    tier: Tier,
    wait: float | None,
    came: float = 0.0,
    asked_after: float | None = None,
    answer: ControlOutcome | None = ControlOutcome.EXPEDITED,
    drawn_in: Tier | None = None,
    status: Status = Status.COMPLETED,
    is_right_picture: bool = True,
) -> Visit:
    """``wait`` None: there is no outcome. ``asked_after``: when the fee was offered, in seconds from its coming."""
    result = None
    if wait is not None:
        result = Result(
            request_id=str(number),
            status=status,
            reason=status,
            tier=drawn_in or tier,
            queue_seconds=wait,
            finished_at=0,
        )
    return Visit(
        request_id=str(number),
        passage=Passage(
            arrival=User(number=number, at_seconds=came, tier=tier, patience_seconds=None),
            accepted_seconds=came,
            result=result,
            ended_seconds=None if wait is None else came + wait + IMAGE_SECONDS,
        ),
        asked_seconds=None if asked_after is None else came + asked_after,
        answer=None if asked_after is None else answer,
        is_right_picture=is_right_picture if result is not None and status is Status.COMPLETED else None,
    )


def figures_with(*visits: Visit, executed: list[str] | None = None) -> DrawingFigures:
    ids = [one.request_id for one in visits] if executed is None else executed
    return drawing_figures(visits, offered=len(visits), executed=ids, image_seconds=IMAGE_SECONDS)


FREE = (visit(1, tier=Tier.LOW, wait=30), visit(2, tier=Tier.LOW, wait=40), visit(3, tier=Tier.LOW, wait=50))
FEE = visit(4, tier=Tier.LOW, wait=12, asked_after=10, drawn_in=Tier.HIGH)
PAID = visit(5, tier=Tier.HIGH, wait=1)
TOO_LATE = visit(6, tier=Tier.LOW, wait=9, asked_after=10, answer=ControlOutcome.RUNNING)


def test_the_report_tells_the_three_kinds_apart() -> None:
    figures = figures_with(*FREE, FEE, PAID, TOO_LATE)
    assert figures.counts == {Kind.FREE: 4, Kind.FEE: 1, Kind.PAID: 1}
    assert broken_promises(figures) == []
    document = json.loads(json.dumps(as_json(figures)))
    assert (document["accepted"], document["completed"], document["lost"], document["duplicated"]) == (6, 6, 0, 0)
    assert document["tiers"]["low"]["accepted"] == 5
    assert document["users"]["free"] == {
        "count": 4,
        "p50_wait_seconds": 30.0,
        "p95_wait_seconds": 50.0,
        "p99_wait_seconds": 50.0,
    }
    fee = document["users"]["fee"]
    assert (fee["count"], fee["p50_wait_seconds"], fee["too_late"], fee["false_answers"]) == (1, 12.0, 1, 0)
    assert fee["before_fee"]["p95_wait_seconds"] == 10.0
    assert fee["after_fee"]["p95_wait_seconds"] == 2.0
    assert document["users"]["paid"]["p95_wait_seconds"] == 1.0


def test_the_fee_is_compared_with_those_who_came_at_the_same_time() -> None:
    long_after = visit(7, tier=Tier.LOW, wait=1, came=60)
    assert saved_seconds([*FREE, long_after, FEE, PAID], image_seconds=IMAGE_SECONDS) == [40 - 12]


@pytest.mark.parametrize(
    ("visits", "executed", "sentence"),
    [
        ((FEE, PAID, visit(1, tier=Tier.LOW, wait=None)), ["4", "5"], "1 accepted requests have no outcome: lost"),
        ((*FREE, FEE, PAID), ["1", "2", "3", "4", "4", "5"], "1 requests were executed more than once"),
        ((*FREE, FEE, PAID), ["1", "2", "3", "5"], "1 images were answered, but no worker drew them"),
        (
            (*FREE, FEE, visit(5, tier=Tier.HIGH, wait=1, is_right_picture=False)),
            None,
            "1 users got another picture than theirs",
        ),
        (
            (*FREE, FEE, visit(5, tier=Tier.HIGH, wait=1, status=Status.EXPIRED)),
            None,
            "4 of 5 images were completed",
        ),
        (
            (*FREE, FEE, PAID, visit(6, tier=Tier.LOW, wait=9, asked_after=5)),
            None,
            "1 users got a wrong answer about the fee",
        ),
        ((*FREE, PAID), None, "nobody paid the fee in time"),
        (
            (*FREE, visit(4, tier=Tier.LOW, wait=41, asked_after=10, drawn_in=Tier.HIGH), PAID),
            None,
            "half of those who paid the fee waited 1.00 s longer, or more, than those who came when they did and "
            "stayed free",
        ),
        (
            (*FREE, FEE, visit(5, tier=Tier.HIGH, wait=16)),
            None,
            "the P95 of what paying users waited is 16.00 s, above 15 s",
        ),
    ],
)
def test_each_promise_that_is_broken_is_named(
    visits: tuple[Visit, ...], executed: list[str] | None, sentence: str
) -> None:
    assert sentence in broken_promises(figures_with(*visits, executed=executed))


def test_requests_the_broker_did_not_take_break_a_promise() -> None:
    figures = drawing_figures([*FREE, FEE, PAID], offered=6, executed=["1", "2", "3", "4", "5"], image_seconds=15)
    assert broken_promises(figures) == ["1 of 6 requests were not accepted by the broker"]


def test_report_and_picture_can_be_made_of_a_run_without_outcomes(tmp_path: Path) -> None:
    visits = [visit(1, tier=Tier.LOW, wait=None, asked_after=5, answer=None), visit(2, tier=Tier.HIGH, wait=None)]
    figures = figures_with(*visits, executed=[])
    Console(width=80, quiet=True).print(report_table(figures))
    draw_picture(visits, figures, path=tmp_path / "drawing.png")
    assert (tmp_path / "drawing.png").read_bytes().startswith(b"\x89PNG")
