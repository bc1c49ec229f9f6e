"""The worker's threads besides the event loop's: started one by one, stopped together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial

from forebay_worker.wiring.readers import Loop
from forebay_worker.wiring.world import RunningThread


class Threads:
    """Each runs a `Loop` until `close`, and closes it then."""

    def __init__(self, start_thread: Callable[[str, Callable[[], None]], RunningThread]) -> None:
        self._start_thread = start_thread
        self._threads: list[RunningThread] = []
        self._closing = threading.Event()

    def start(self, loops: Iterable[tuple[str, Loop]]) -> None:
        """Starts a thread for each loop, named after it, before the next loop is asked for."""
        for name, loop in loops:
            self._threads.append(self._start_thread(name, partial(self._run, loop)))

    def close(self) -> None:
        """Asks the threads to end, without waiting."""
        self._closing.set()

    @property
    def have_ended(self) -> bool:
        """Whether all threads have ended."""
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self, loop: Loop) -> None:
        while not self._closing.is_set():
            loop.step()
        loop.close()
