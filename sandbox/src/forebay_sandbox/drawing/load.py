"""The drawing service's users, each served as an application with Forebay's client would. A thread for each of them.

Speaks Kafka through the client and uses the machine's clocks.
"""

from __future__ import annotations

import base64
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, ThreadPoolExecutor, wait
from typing import Final

from forebay_producer import Producer
from forebay_producer.errors import OutcomeTimeoutError
from forebay_producer.settings import ProducerSettings
from forebay_sandbox.demo.ledger import Passage
from forebay_sandbox.demo.view import Board
from forebay_sandbox.drawing.handler import png_of
from forebay_sandbox.drawing.report import Visit
from forebay_sandbox.drawing.users import User
from forebay_sandbox.stack.stack import Stack, client_environment
from forebay_schemas.clock import Clock
from forebay_schemas.contract.control import ControlOutcome
from forebay_schemas.contract.reasons import Status
from forebay_schemas.contract.results import Result
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.runtime.settings import load_settings

LOST_IMAGES: Final = 12
LOST_SECONDS: Final = 20.0
"""A request without an outcome after `LOST_SECONDS` and the time of `LOST_IMAGES` is lost. No queue is as long."""

_SHOW_SECONDS: Final = 0.5
_ROWS: Final = {Tier.HIGH: "paid (high)", Tier.LOW: "free (low)"}


class DrawingService:
    """One run of all users. Calls ``show`` twice a second."""

    def __init__(
        self,
        *,
        stack: Stack,
        users: Sequence[User],
        image_seconds: float,
        clock: Clock,
        show: Callable[[Board], None],
    ) -> None:
        environ = client_environment(stack.kafka, pool=stack.pool)
        self._settings = load_settings(ProducerSettings, flags={}, config=None, environ=environ)
        self._users = users
        self._lost_seconds = LOST_SECONDS + LOST_IMAGES * image_seconds
        self._clock = clock
        self._show = show
        self._started = clock.monotonic()
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._open: dict[str, User] = {}
        self._served: Counter[Tier] = Counter()
        self._fees = 0

    def run(self) -> list[Visit]:
        """Returns once every user has an outcome, or its request is lost. Raises ``ForebayError``."""
        with (
            ThreadPoolExecutor(len(self._users), thread_name_prefix="drawing-user") as threads,
            Producer(settings=self._settings) as producer,
        ):
            # The client closes first, which wakes the threads; then the pool waits for them.
            try:
                visits = [threads.submit(self._visit, producer, user) for user in self._users]
                while True:
                    done, going_on = wait(visits, timeout=_SHOW_SECONDS, return_when=FIRST_EXCEPTION)
                    self._show(self._board())
                    for one in done:
                        one.result()  # raises what went wrong
                    if not going_on:
                        return [visit.result() for visit in visits]
            finally:
                self._over.set()

    def _visit(self, producer: Producer, user: User) -> Visit:
        if self._over.wait(user.at_seconds - self._now()):
            raise CancelledError
        handle = producer.submit(user.request())
        accepted_seconds = self._now()
        with self._lock:
            self._open[handle.request_id] = user
        result, asked_seconds, answer = None, None, None
        if user.patience_seconds is not None:
            result = _outcome(producer, handle.request_id, timeout_seconds=user.patience_seconds)
            if result is None:
                asked_seconds = self._now()
                answer = handle.expedite().outcome
                with self._lock:
                    self._fees += answer is ControlOutcome.EXPEDITED
        if result is None:
            result = _outcome(producer, handle.request_id, timeout_seconds=self._lost_seconds)
        with self._lock:
            del self._open[handle.request_id]
            self._served[user.tier] += 1
        return Visit(
            request_id=handle.request_id,
            passage=Passage(
                arrival=user,
                accepted_seconds=accepted_seconds,
                result=result,
                ended_seconds=None if result is None else self._now(),
            ),
            asked_seconds=asked_seconds,
            answer=answer,
            is_right_picture=None if result is None else _is_picture_of(user.prompt, result),
        )

    def _now(self) -> float:
        """Seconds since the start."""
        return self._clock.monotonic() - self._started

    def _board(self) -> Board:
        now = self._now()
        with self._lock:
            rows = {name: self._cells(tier, now) for tier, name in _ROWS.items()}
            came = len(self._open) + self._served.total()
            return Board(
                at_seconds=now,
                title=f"Forebay drawing service, {came} of {len(self._users)} users have come",
                rows=rows,
                notes=(f"{self._fees} free users have paid the fee",),
            )

    def _cells(self, tier: Tier, now: float) -> dict[str, int | str]:
        came = [user.at_seconds for user in self._open.values() if user.tier is tier]
        return {
            "came": len(came) + self._served[tier],
            "waiting or watching": len(came),
            "at most": f"{now - min(came, default=now):.0f} s",
            "served": self._served[tier],
        }


def _outcome(producer: Producer, request_id: str, *, timeout_seconds: float) -> Result | None:
    try:
        return producer.outcome(request_id, timeout_seconds=timeout_seconds)
    except OutcomeTimeoutError:
        return None


def _is_picture_of(prompt: str, result: Result) -> bool | None:
    """None without a picture."""
    if result.status is not Status.COMPLETED:
        return None
    came: str = result.body["data"][0]["b64_json"]
    return came == base64.b64encode(png_of(prompt)).decode()
