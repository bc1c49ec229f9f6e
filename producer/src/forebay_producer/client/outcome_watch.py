"""Follows the results topic for callers that wait for single requests. Owns a thread, which owns the reader."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Final

from forebay_producer.client.results_reader import ReadResult, ResultsReader
from forebay_producer.errors import ProducerClosedError
from forebay_schemas.errors import ForebayError

KEPT_BYTES_MAX: Final = 64 * 1024 * 1024
KEPT_COUNT_MAX: Final = 200_000

_WAIT_SECONDS: Final = 0.2


Asked = tuple[str, int]


@dataclass(slots=True, eq=False)
class _Waiter:
    done: threading.Event = field(default_factory=threading.Event)
    value: bytes | None = None


class OutcomeWatch:
    """Hands each awaited request its first outcome, and keeps the latest outcomes for those who ask later.

    An ``Asked`` is a request id and the number of its replay, 0 for the request as it was submitted.
    Kept are at most ``KEPT_COUNT_MAX`` record values of ``KEPT_BYTES_MAX`` together; older ones are forgotten.
    ``since_ms`` is where ``reader`` began. Thread-safe. Must be closed.
    """

    def __init__(self, reader: ResultsReader, *, since_ms: int) -> None:
        self.since_ms = since_ms
        self._reader = reader
        self._lock = threading.Lock()
        self._kept: dict[Asked, bytes] = {}
        self._kept_bytes = 0
        self._forgot = False
        self._waiting: dict[Asked, list[_Waiter]] = {}
        self._failure: ForebayError | None = None
        self._stopping = threading.Event()
        # A daemon, so that an owner that forgets to close it does not keep its process alive.
        self._thread = threading.Thread(target=self._run, name="forebay-producer-outcomes", daemon=True)
        self._thread.start()

    def may_have_forgotten(self, asked: Asked) -> bool:
        """Whether the request's outcome may have been read and forgotten: then only the topic itself can tell."""
        with self._lock:
            return self._forgot and asked not in self._kept

    def wait(self, asked: Asked, *, timeout_seconds: float) -> bytes | None:
        """The record value of the request's first outcome; None when none came in time.

        Raises what stopped the reading, ``ProducerClosedError`` when that was `close`.
        """
        waiter = _Waiter()
        with self._lock:
            if (value := self._kept.get(asked)) is not None:
                return value
            if self._failure is not None:
                raise self._failure.with_traceback(None)
            self._waiting.setdefault(asked, []).append(waiter)
        waiter.done.wait(timeout_seconds)
        with self._lock:
            if waiter.value is not None:
                return waiter.value
            others = self._waiting.get(asked, [])
            if waiter in others:
                others.remove(waiter)
                if not others:
                    del self._waiting[asked]
            if self._failure is not None:
                raise self._failure.with_traceback(None)
        return None

    def close(self) -> None:
        """Ends the thread and everybody's waiting. May be called again."""
        self._stopping.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        failure: ForebayError = ProducerClosedError("the producer was closed")
        try:
            while not self._stopping.is_set():
                found = self._reader.read(timeout_seconds=_WAIT_SECONDS)
                if found:
                    with self._lock:
                        self._take(found)
        except ForebayError as error:
            failure = error
        finally:
            self._reader.close()
            with self._lock:
                self._failure = failure
                for waiters in self._waiting.values():
                    for waiter in waiters:
                        waiter.done.set()

    def _take(self, found: list[ReadResult]) -> None:
        for result, value in found:
            asked = (result.request_id, result.replay_count)
            if asked in self._kept:
                continue
            for waiter in self._waiting.pop(asked, ()):
                waiter.value = value
                waiter.done.set()
            self._kept[asked] = value
            self._kept_bytes += len(value)
        while self._kept_bytes > KEPT_BYTES_MAX or len(self._kept) > KEPT_COUNT_MAX:
            oldest = next(iter(self._kept))
            self._kept_bytes -= len(self._kept.pop(oldest))
            self._forgot = True
