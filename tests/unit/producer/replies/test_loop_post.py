"""Calls that other threads hand to an event loop: the loop is woken once for all that came meanwhile."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import cast

from forebay_producer.replies.loop_post import LoopPost


class CountedLoop:
    """The wake-ups of a loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._call_soon = loop.call_soon_threadsafe
        self.wake_ups = 0

    def call_soon_threadsafe(self, call: object) -> None:
        self.wake_ups += 1
        self._call_soon(call)  # type: ignore[arg-type]


def test_a_batch_wakes_the_loop_once_and_its_order_is_kept() -> None:
    async def main() -> None:
        counted = CountedLoop(asyncio.get_running_loop())
        post = LoopPost(cast("asyncio.AbstractEventLoop", counted))
        made: list[int] = []

        def batch(begin: int) -> None:
            for number in range(begin, begin + 1_000):
                post.post(partial(made.append, number))

        for begin in (0, 1_000, 2_000):
            thread = threading.Thread(target=batch, args=(begin,))
            thread.start()
            thread.join()  # the loop runs nothing meanwhile
            await asyncio.sleep(0)
            assert len(made) == begin + 1_000
        assert counted.wake_ups == 3
        assert made == list(range(3_000))

    asyncio.run(main())


def test_no_call_is_passed_by_while_threads_and_loop_race() -> None:
    async def main() -> None:
        post = LoopPost(asyncio.get_running_loop())
        came: asyncio.Queue[tuple[int, int]] = asyncio.Queue()

        def write(writer: int) -> None:
            for number in range(5_000):
                post.post(partial(came.put_nowait, (writer, number)))

        threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
        for thread in threads:
            thread.start()
        async with asyncio.timeout(30):
            found = [await came.get() for _ in range(20_000)]
        for writer in range(4):
            assert [number for each, number in found if each == writer] == list(range(5_000))
        for thread in threads:
            thread.join()

    asyncio.run(main())


def test_a_loop_that_is_closed_is_no_error() -> None:
    async def main() -> LoopPost:
        return LoopPost(asyncio.get_running_loop())

    asyncio.run(main()).post(lambda: None)
