"""Code that holds the event loop is named, while it does and afterwards; a process that stood still has none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from forebay_worker.ops.loop_watch import NOBODY, STEP_SECONDS, Holder, LoopWatch, look_at

BLOCKER = Holder(request_id="r-7", place="shout.py:7 in handle")
HANDLER_HELD = "a handler held the event loop; call what blocks by asyncio.to_thread"
HANDLER_HOLDS = "a handler holds the event loop; call what blocks by asyncio.to_thread"


class WatchedLoop:
    """An event loop whose turns are scripted, and its watch; times in seconds."""

    def __init__(self, *, whose: str = "handler") -> None:
        self.now = self.cpu_seconds = 100.0
        self.is_held = False
        self.holder = NOBODY
        self._asked: list[Callable[[], None]] = []
        self.watch = LoopWatch(ask=self._asked.append, look=lambda: self.holder, clock=lambda: self.now, whose=whose)

    def turn(self) -> None:
        while not self.is_held and self._asked:
            self._asked.pop()()

    def step(self, seconds: float, *, cpu_share: float = 1.0) -> None:
        """The watch's next look, so much later."""
        self.now += seconds
        self.cpu_seconds += seconds * cpu_share
        self.watch.step(self.now, cpu_seconds=self.cpu_seconds)
        self.turn()

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP_SECONDS)):
            self.step(STEP_SECONDS)

    def hold(self, seconds: float, holder: Holder = BLOCKER) -> None:
        self.is_held, self.holder = True, holder
        self.run(seconds)
        self.is_held, self.holder = False, NOBODY
        self.turn()


@pytest.fixture
def lines() -> Iterator[list[Any]]:
    with capture_logs() as captured:
        yield captured


def events(lines: list[Any]) -> list[Any]:
    return [line["event"] for line in lines]


def test_a_loop_that_turns_is_held_by_nobody(lines: list[Any]) -> None:
    loop = WatchedLoop()
    loop.run(60)
    assert loop.watch.holds_total == 0
    assert loop.watch.words(loop.now) is None
    assert lines == []


def test_a_handler_that_blocks_is_named_while_it_does_and_afterwards(lines: list[Any]) -> None:
    loop = WatchedLoop()
    loop.run(1)
    loop.is_held, loop.holder = True, BLOCKER
    loop.run(20)
    assert events(lines) == [HANDLER_HOLDS]
    assert lines[0]["request_id"] == "r-7"
    assert lines[0]["at"] == "shout.py:7 in handle"
    assert loop.watch.words(loop.now) == (
        "the event loop is held for 20 s by the handler of request r-7 at shout.py:7 in handle; "
        "call what blocks by asyncio.to_thread"
    )
    assert loop.watch.status(loop.now) == {"held_seconds": pytest.approx(20, abs=0.3), "request_id": "r-7", "holds": 0}
    loop.is_held = False
    loop.turn()
    loop.run(1)
    assert events(lines) == [HANDLER_HOLDS, HANDLER_HELD]
    assert lines[1]["held_seconds"] == pytest.approx(20, abs=0.3)
    assert loop.watch.status(loop.now) == {"held_seconds": 0.0, "request_id": None, "holds": 1}


def test_a_short_hold_is_said_afterwards_alone_and_less_than_a_second_not_at_all(lines: list[Any]) -> None:
    loop = WatchedLoop()
    loop.run(1)
    loop.hold(0.75)
    loop.run(1)
    assert lines == []
    loop.hold(1.5)
    loop.run(1)
    assert events(lines) == [HANDLER_HELD]


def test_a_handler_that_always_blocks_does_not_fill_the_log(lines: list[Any]) -> None:
    loop = WatchedLoop()
    for _ in range(40):
        loop.hold(1.5)
        loop.run(0.5)
    assert loop.watch.holds_total == 40
    assert 5 <= len(lines) <= 9
    assert sum(1 + line.get("others", 0) for line in lines) >= 35


def test_a_process_that_was_stopped_has_no_code_that_held_its_loop(lines: list[Any]) -> None:
    loop = WatchedLoop()
    loop.run(1)
    loop.is_held = True
    loop.step(20, cpu_share=0.0)
    loop.is_held = False
    loop.turn()
    loop.run(1)
    assert loop.watch.holds_total == 0
    assert lines == []


def test_code_that_keeps_pythons_lock_as_well_is_told_by_the_processor_time_that_it_takes(lines: list[Any]) -> None:
    loop = WatchedLoop()
    loop.run(1)
    loop.is_held = True
    loop.step(20)  # neither could run meanwhile
    loop.is_held = False
    loop.turn()
    loop.run(1)
    assert loop.watch.holds_total == 1
    assert events(lines) == ["the event loop was held"]


def test_work_on_a_request_is_no_handler_where_there_is_none(lines: list[Any]) -> None:
    loop = WatchedLoop(whose="backend")
    loop.hold(2)
    loop.run(1)
    assert [(line["event"], line["request_id"]) for line in lines] == [("the event loop was held", "r-7")]


def test_the_task_and_the_line_that_hold_a_loop_are_found_from_another_thread() -> None:
    held, release = threading.Event(), threading.Event()
    found: list[Holder] = []

    def block() -> None:
        held.set()
        release.wait(10)

    async def handle() -> None:
        block()

    async def main() -> None:
        loop, thread_id = asyncio.get_running_loop(), threading.get_ident()
        task = asyncio.create_task(handle())

        def look() -> None:
            held.wait(10)
            found.append(look_at(loop, thread_id, lambda of: "r-1" if of is task else None))
            release.set()

        watcher = threading.Thread(target=look)
        watcher.start()
        await task
        watcher.join()
        assert look_at(loop, thread_id, lambda _: "r-1").request_id == "r-1"

    asyncio.run(main())
    assert found[0].request_id == "r-1"
    assert (found[0].place or "").startswith("test_loop_watch.py:")
