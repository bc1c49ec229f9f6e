"""Outcomes of single requests, for callers that wait for them. Keeps only outcomes of this producer's requests.

Owns two threads, each with its own reader. The follower reads new results; the searcher starts on demand and looks up
older ones. Results of other producers are skipped by their key, without decoding.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from forebay_producer.client.outcome_waits import Asked, Awaited, Followed, Reader, Wait
from forebay_producer.client.results_reader import ReadResult
from forebay_producer.errors import ProducerClosedError
from forebay_schemas.bounded import BoundedMap
from forebay_schemas.clock import Clock
from forebay_schemas.errors import BrokerUnreachableError, ForebayError, KafkaFailedError

KEPT_BYTES_MAX: Final = 64 * 1024 * 1024
KEPT_COUNT_MAX: Final = 100_000
"""Bounds on the kept outcomes. An outcome beyond them is searched for in the topic again."""

OWN_IDS_MAX: Final = 100_000
"""Remembered requests without an outcome: 20 MB. For any other request the topic is searched."""

RECENT_MS: Final = 60_000
"""How far back the follower begins: far enough for most waits, without reading hours of others' results."""

CLOCK_MARGIN_MS: Final = 5_000
"""An outcome cannot be written before its request, but the brokers' clocks may differ by a little."""

JOIN_SECONDS_MAX: Final = 2.0
"""Wait for a thread that is blocked in a broker call; afterwards it is abandoned."""

_FOLLOWED: Final = 1 << 62
"""As a request's time: it was submitted while results were being followed."""

_OPEN_SECONDS: Final = 2.0
_REOPEN_SECONDS: Final = 10.0
"""The first try is short, so that a caller that waits for five seconds gets the reason for its failure."""

_READ_SECONDS: Final = 0.2

SEARCH_AGAIN_SECONDS: Final = 2.0
"""While the follower reads one partition: how often the others are searched for a request that may end there."""

ROUTED_SEARCH_SECONDS: Final = (10.0, 300.0)
"""The same for a request whose result was asked into the followed partition: at first, and, twice as long each time, at
most. A worker that does not know the partition writes the result by its key."""

_LOOK_SECONDS: Final = 1.0


class OutcomeWatch:
    """Delivers the first outcome of each awaited request, and keeps those of own requests for later callers.

    ``make_reader(since_ms, open_seconds)`` opens a reader that begins at a time (epoch milliseconds on the brokers'
    clock; None: now). No thread runs before the first `wait`. Thread-safe. Must be closed.
    """

    def __init__(
        self,
        make_reader: Callable[[int | None, float], Reader],
        *,
        clock: Clock,
        make_follower: Callable[[int | None, float], Reader] | None = None,
    ) -> None:
        """``make_follower``: makes the follower's reader where it reads one partition alone."""
        self._make_reader = make_reader
        self._make_follower = make_follower or make_reader
        self._followed = Followed.ALL if make_follower is None else Followed.OWN
        self._clock = clock
        self._lock = threading.Lock()
        # Earliest time at which an outcome can be in the topic, by key; 0 where unknown.
        self._own: BoundedMap[bytes, int] = BoundedMap(entries_max=OWN_IDS_MAX)
        self._acknowledged: tuple[int, float] | None = None
        self._kept: OrderedDict[Asked, bytes] = OrderedDict()
        self._kept_bytes = 0
        self._waiting: dict[Asked, Wait] = {}
        self._waiting_keys: dict[bytes, int] = {}
        self._follower: threading.Thread | None = None
        self._followed_from = _FOLLOWED
        self._opened = threading.Event()
        self._searcher: threading.Thread | None = None
        self._to_search: dict[Asked, int] = {}
        self._searching: dict[Asked, int] = {}
        self._wake = threading.Event()
        self._trouble: ForebayError | None = None
        self._stopping = threading.Event()

    @property
    def is_open(self) -> bool:
        """Whether the brokers have answered and the follower reads."""
        return self._opened.is_set()

    def submitting(self, request_id: str) -> None:
        """Registers a request of this producer before it is sent."""
        with self._lock:
            if (request_id, 0) in self._kept:
                return  # submitted again: its first outcome counts
            since_ms = self._acknowledged[0] - CLOCK_MARGIN_MS if self._acknowledged is not None else 0
            self._own.put(_key(request_id), _FOLLOWED if self._opened.is_set() else since_ms)

    def acknowledged(self, request_id: str, enqueued_at: int) -> None:
        """Notes the broker's acknowledgement. ``enqueued_at``: epoch milliseconds on its clock."""
        key = _key(request_id)
        with self._lock:
            if self._acknowledged is None or enqueued_at > self._acknowledged[0]:
                self._acknowledged = (enqueued_at, self._clock.monotonic())
            # Times are fixed once the follower reads: results were already judged by them.
            if not self._opened.is_set() and self._own.get(key, _FOLLOWED) != _FOLLOWED:
                self._own[key] = enqueued_at - CLOCK_MARGIN_MS

    def since_ms(self, request_id: str) -> int | None:
        """Earliest time at which the outcome of an own request can be in the topic; None for other requests."""
        with self._lock:
            since_ms = self._own.get(_key(request_id), 0)
        return since_ms if 0 < since_ms < _FOLLOWED else None

    def wait(self, asked: Asked, *, since_ms: int, timeout_seconds: float, look_back: bool = False) -> bytes | None:
        """The record value of the first outcome written after ``since_ms``; None when none arrived in time.

        ``look_back``: search for an earlier submit of an own request as well. Raises the error that prevents reading
        results; ``ProducerClosedError`` after `close`.
        """
        awaited = self.begin(asked, since_ms=since_ms, look_back=look_back)
        if awaited.wait is not None:
            awaited.wait.done.wait(timeout_seconds)
        return self.end(awaited)

    def begin(
        self, asked: Asked, *, since_ms: int, look_back: bool = False, on_done: Callable[[], None] | None = None
    ) -> Awaited:
        """Starts a wait; arguments as in `wait`. The caller must `end` it.

        ``on_done`` is called when it is over, on another thread; it must return at once and must not call the watch.
        It is not called for an outcome that is known already (``Awaited.value``).
        """
        key = _key(asked[0])
        with self._lock:
            if self._stopping.is_set():
                raise _closed()
            if (value := self._kept.get(asked)) is not None:
                return Awaited(asked, value=value)
            self._start_following()
            wait = self._waiting.get(asked)
            if wait is None:
                wait = self._waiting[asked] = Wait(since_ms=since_ms)
                self._waiting_keys[key] = self._waiting_keys.get(key, 0) + 1
            wait.callers += 1
            if on_done is not None:
                wait.listeners.append(on_done)
            is_followed = asked[1] == 0 and self._own.get(key, 0) >= self._followed_from
            if look_back or not is_followed:
                self._search(asked, since_ms)
            if self._followed is Followed.OWN:
                self._search_later(wait, is_followed)
        return Awaited(asked, wait)

    def end(self, awaited: Awaited) -> bytes | None:
        """The record value of the outcome; None when it has not come. Raises as `wait` does."""
        wait = awaited.wait
        if wait is None:
            return awaited.value
        with self._lock:
            wait.callers -= 1
            if not wait.callers:
                self._take_out(awaited.asked, wait)
            trouble = wait.failure or self._trouble
        if wait.value is None and trouble is not None:
            raise trouble.with_traceback(None)
        return wait.value

    def close(self, *, timeout_seconds: float | None = None) -> None:
        """Ends the threads and all waits, within `JOIN_SECONDS_MAX`. May be called again."""
        seconds = JOIN_SECONDS_MAX if timeout_seconds is None else min(timeout_seconds, JOIN_SECONDS_MAX)
        give_up_at = self._clock.monotonic() + seconds
        with self._lock:
            self._stopping.set()
            self._fail(list(self._waiting), _closed())
        self._wake.set()
        for thread in (self._follower, self._searcher):
            if thread is not None and thread is not threading.current_thread():
                thread.join(max(0.0, give_up_at - self._clock.monotonic()))

    # Called with the lock held.

    def _start_following(self) -> None:
        if self._follower is not None:
            return
        since_ms, now_ms = None, self._now_ms()
        if now_ms is not None:
            since_ms = now_ms - RECENT_MS
            if self._own:
                since_ms = max(since_ms, self._own.oldest() - CLOCK_MARGIN_MS)
        self._followed_from = _FOLLOWED if since_ms is None else since_ms
        # Daemons, so that an owner that forgets to close them can still exit.
        self._follower = threading.Thread(
            target=self._follow, args=(since_ms,), name="forebay-producer-outcomes", daemon=True
        )
        self._follower.start()

    def _now_ms(self) -> int | None:
        """The time on the brokers' clock; None before the first acknowledgement."""
        if self._acknowledged is None:
            return None
        enqueued_at, at = self._acknowledged
        return enqueued_at + int((self._clock.monotonic() - at) * 1000)

    def _search(self, asked: Asked, since_ms: int) -> None:
        if self._searching.get(asked, since_ms + 1) <= since_ms:
            return
        self._to_search[asked] = min(since_ms, self._to_search.get(asked, since_ms))
        self._start_searching()
        self._wake.set()

    def _start_searching(self) -> None:
        if self._searcher is None:
            self._searcher = threading.Thread(target=self._search_all, name="forebay-producer-lookups", daemon=True)
            self._searcher.start()

    def _search_later(self, wait: Wait, is_followed: bool) -> None:
        wait.search_seconds = ROUTED_SEARCH_SECONDS[0] if is_followed else SEARCH_AGAIN_SECONDS
        wait.search_at = self._clock.monotonic() + wait.search_seconds
        self._start_searching()

    def _search_again(self) -> None:
        """Searches the partitions that the follower does not read for what is still awaited."""
        now = self._clock.monotonic()
        for asked, wait in self._waiting.items():
            if now < wait.search_at:
                continue
            self._search(asked, wait.since_ms)
            if wait.search_seconds > SEARCH_AGAIN_SECONDS:
                wait.search_seconds = min(ROUTED_SEARCH_SECONDS[1], 2 * wait.search_seconds)
            wait.search_at = now + wait.search_seconds

    def _take(self, found: list[ReadResult], *, searched_from: int | None) -> None:
        """Processes results in topic order. ``searched_from``: None for results of the follower."""
        for result, value in found:
            asked, key = (result.request_id, result.replay_count), _key(result.request_id)
            if asked in self._kept:
                continue
            known_from = self._followed_from if searched_from is None else searched_from
            is_own = asked[1] == 0 and self._own.get(key, -1) >= known_from
            is_searched = asked in self._searching or asked in self._to_search
            wait = self._waiting.get(asked)
            if searched_from is None and is_searched:
                if wait is not None and wait.late is None:
                    wait.late = value
            elif is_own or (wait is not None and (searched_from is None or asked in self._searching)):
                self._settle(asked, value)

    def _settle(self, asked: Asked, value: bytes) -> None:
        wait = self._waiting.get(asked)
        if wait is not None:
            wait.value = value
            self._take_out(asked, wait)
            wait.end()
        if asked[1] == 0:
            self._own.pop(_key(asked[0]), None)
        self._kept[asked] = value
        self._kept_bytes += len(value)
        while self._kept_bytes > KEPT_BYTES_MAX or len(self._kept) > KEPT_COUNT_MAX:
            self._kept_bytes -= len(self._kept.popitem(last=False)[1])

    def _take_out(self, asked: Asked, wait: Wait) -> None:
        if self._waiting.get(asked) is not wait:
            return
        del self._waiting[asked]
        self._to_search.pop(asked, None)
        self._searching.pop(asked, None)
        key = _key(asked[0])
        self._waiting_keys[key] -= 1
        if not self._waiting_keys[key]:
            del self._waiting_keys[key]

    def _fail(self, those: list[Asked], failure: ForebayError) -> None:
        for asked in those:
            wait = self._waiting[asked]
            wait.failure = failure
            self._take_out(asked, wait)
            wait.end()

    # The threads.

    def _is_wanted(self, key: bytes | None) -> bool:
        # Without the lock: each is one dictionary lookup.
        return key in self._waiting_keys or key in self._own

    def _follow(self, since_ms: int | None) -> None:
        try:
            reader = self._open(since_ms, self._make_follower)
            if reader is None:
                return
            try:
                with self._lock:
                    self._opened.set()
                while not self._stopping.is_set():
                    found = reader.read(timeout_seconds=_READ_SECONDS, wanted=self._is_wanted)
                    if found:
                        with self._lock:
                            self._take(found, searched_from=None)
            finally:
                reader.close()
        except Exception as error:  # noqa: BLE001 - no caller may wait for results that nobody reads
            with self._lock:
                self._fail(list(self._waiting), _as_forebay_error(error))
                # The next wait starts a new follower and searches for what was not read in between.
                self._follower = None
                self._opened.clear()
                self._followed_from = _FOLLOWED
                for key in [key for key, since in self._own.items() if since == _FOLLOWED]:
                    self._own[key] = 0

    def _open(self, since_ms: int | None, make: Callable[[int | None, float], Reader]) -> Reader | None:
        """Opens a reader, with retries; None after `close`."""
        open_seconds = _OPEN_SECONDS
        while not self._stopping.is_set():
            try:
                reader = make(since_ms, open_seconds)
            except BrokerUnreachableError as error:
                open_seconds = _REOPEN_SECONDS
                self._trouble = error
                self._stopping.wait(_READ_SECONDS)
            else:
                self._trouble = None
                return reader
        return None

    def _search_all(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait(None if self._followed is Followed.ALL else _LOOK_SECONDS)
            self._wake.clear()
            if self._followed is Followed.OWN:
                with self._lock:
                    self._search_again()
            # The follower sees everything written after it began: a search ends there, or later.
            while not self._opened.wait(_READ_SECONDS) and not self._stopping.is_set():
                pass
            with self._lock:
                self._searching, self._to_search = self._to_search, {}
            try:
                if self._searching:
                    self._search_once(min(self._searching.values()))
            except Exception as error:  # noqa: BLE001
                with self._lock:
                    self._fail(list(self._searching), _as_forebay_error(error))
            finally:
                with self._lock:
                    self._searching = {}

    def _search_once(self, since_ms: int) -> None:
        """Reads from ``since_ms``, or a little earlier, to the end: for all awaited requests, and for all own requests
        of that time, as a caller that asks for one outcome is likely to ask for the next."""
        with self._lock:
            follower, began_ms = self._follower, self._now_ms()
            if any(since < self._followed_from for since in self._own.values()):
                since_ms = max(0, since_ms - RECENT_MS)
        reader = self._open(since_ms, self._make_reader)
        if reader is None:
            return
        try:
            while not (is_complete := reader.caught_up()) and not self._stopping.is_set():
                found = reader.read(timeout_seconds=_READ_SECONDS, wanted=self._is_wanted)
                with self._lock:
                    self._take(found, searched_from=since_ms)
                    if not self._searching:
                        break
        finally:
            reader.close()
        with self._lock:
            if is_complete and self._follower is follower:  # the same follower reads what comes behind the search
                self._followed_from = min(self._followed_from, since_ms)
            for asked in list(self._searching):
                wait = self._waiting[asked]
                if wait.late is not None and asked not in self._to_search:
                    self._settle(asked, wait.late)
                elif is_complete and began_ms is not None:
                    wait.since_ms = max(wait.since_ms, began_ms - CLOCK_MARGIN_MS)


def _key(request_id: str) -> bytes:
    """The key of the result's record."""
    return request_id.encode(errors="surrogatepass")


def _closed() -> ProducerClosedError:
    return ProducerClosedError("the producer was closed")


def _as_forebay_error(error: Exception) -> ForebayError:
    return error if isinstance(error, ForebayError) else KafkaFailedError(f"results cannot be read: {error}")
