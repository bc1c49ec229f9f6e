"""The load: requests at a pace of their own, whatever becomes of them. A thread of its own; produces to the brokers."""

from __future__ import annotations

import json
import logging
import math
import random
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Any

from confluent_kafka import Producer

from forebay_sandbox.kafka.access import KafkaAccess
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.contract.topics import REQUEST_BYTES_MAX, Pool

TOKEN_SECONDS = 0.05
"""The engine's time for a token."""

FLAWS_OF_ENGINE: tuple[dict[str, Any], ...] = (
    {"kind": "status", "status": 500, "match": "fails-at-times", "probability": 0.6},
    {"kind": "hang", "match": "hangs-at-times", "probability": 0.6},
)
"""The engine's faults for requests with such a text, whatever else is wrong with it."""

_BURST_EVERY_SECONDS = 20.0
_BURST_SECONDS = 4.0
_BURST_FACTOR = 2.0
_RECENT_MAX = 5_000
_TIERS = {Tier.HIGH: 3, Tier.MID: 4, Tier.LOW: 3}
_FLUSH_SECONDS_MAX = 120.0
_LOG = logging.getLogger("tests.kafka")


class Flaw(StrEnum):
    """The reason for which a request becomes a dead letter at its first try. A replay of one of the first two may
    pass."""

    FAILS_AT_TIMES = "fails-at-times"
    HANGS_AT_TIMES = "hangs-at-times"
    WRONG_MODEL = "no-such-model"
    WRONG_BIZ_TYPE = "no_such_type"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """The submitted requests. ``work_seconds``: minimum and maximum of a request, most often small. ``ttl_ms``: weight
    of each time to live. ``twice_share``: submitted again within ten seconds. ``junk_share``: not decodable.
    ``flawed_share``: share of each flaw."""

    per_second: float
    work_seconds: tuple[float, float]
    ttl_ms: Mapping[int, int]
    twice_share: float = 0.0
    junk_share: float = 0.0
    flawed_share: Mapping[Flaw, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A request that the brokers confirmed, and where it lies. ``at_seconds``: monotonic."""

    at_seconds: float
    request_id: str
    tier: Tier
    partition: int
    offset: int
    enqueued_ms: int


class Load:
    """Produces while the block runs. ``accepted``, ``junk``: ids and keys whose delivery the brokers confirmed.
    ``recent``: the last of the accepted, in order of time; other threads may look at it."""

    def __init__(self, kafka: KafkaAccess, pool: Pool, mix: Mix, *, seed: int) -> None:
        self.accepted: set[str] = set()
        self.junk: set[str] = set()
        self.recent: deque[Accepted] = deque(maxlen=_RECENT_MAX)
        self.refused: list[str] = []
        """Errors of deliveries that failed: those requests may or may not have come in."""
        self._pool = pool
        self._mix = mix
        self._random = random.Random(seed)
        self._seed = seed
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._produce_all, name="load")
        self._producer = Producer(
            {
                **kafka.connection.properties,
                "bootstrap.servers": kafka.bootstrap_servers,
                "acks": "all",
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "linger.ms": 5,
                "message.max.bytes": REQUEST_BYTES_MAX,
                "logger": _LOG,
            }
        )

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Stops, and returns when every delivery is known."""
        self._stop.set()
        self._thread.join()
        self._producer.flush(_FLUSH_SECONDS_MAX)

    def _produce_all(self) -> None:
        started = time.monotonic()
        due = 0.0
        number = 0
        twice: list[tuple[float, Tier, bytes, str]] = []
        while not self._stop.is_set():
            passed = time.monotonic() - started
            while due <= passed:
                number += 1
                self._produce_one(number, due, twice)
                bursting = due % _BURST_EVERY_SECONDS < _BURST_SECONDS
                due += self._random.expovariate(self._mix.per_second * (_BURST_FACTOR if bursting else 1.0))
            for again in [each for each in twice if each[0] <= passed]:
                twice.remove(again)
                self._send(again[1], again[2], again[3], self.accepted)
            self._producer.poll(0)
            self._stop.wait(0.02)

    def _produce_one(self, number: int, now: float, twice: list[tuple[float, Tier, bytes, str]]) -> None:
        draw, mix = self._random, self._mix
        [tier] = draw.choices(list(_TIERS), list(_TIERS.values()))
        if draw.random() < mix.junk_share:
            self._send(
                tier, draw.choice([b"{", b"\xff\x00junk", b"[]", b'{"request_id": 7}']), f"junk-{number}", self.junk
            )
            return
        low, high = (math.log(seconds) for seconds in mix.work_seconds)
        tokens = max(1, round(math.exp(draw.uniform(low, high)) / TOKEN_SECONDS))
        [ttl_ms] = draw.choices(list(mix.ttl_ms), list(mix.ttl_ms.values()))
        request_id = f"{self._seed}-{number}"
        envelope: dict[str, Any] = {
            "request_id": request_id,
            "biz_type": "chat_completion",
            "priority": draw.choice(["high", "low", *range(11)]),
            "ttl_ms": ttl_ms,
            "payload": {"messages": [], "max_tokens": tokens},
        }
        chance = draw.random()
        for flaw, share in mix.flawed_share.items():
            if 0 <= chance < share:
                _make_flawed(envelope, flaw)
            chance -= share
        value = json.dumps(envelope).encode()
        self._send(tier, value, request_id, self.accepted)
        if draw.random() < mix.twice_share:
            twice.append((now + draw.uniform(0.0, 10.0), tier, value, request_id))

    def _send(self, tier: Tier, value: bytes, key: str, confirmed: set[str]) -> None:
        def delivered(error: Any, message: Any) -> None:
            if error is None:
                confirmed.add(key)
                place = Accepted(
                    at_seconds=time.monotonic(),
                    request_id=key,
                    tier=tier,
                    partition=message.partition(),
                    offset=message.offset(),
                    enqueued_ms=message.timestamp()[1],
                )
                if confirmed is self.accepted:
                    self.recent.append(place)
            else:
                self.refused.append(error.str())

        try:
            self._producer.produce(self._pool.requests(tier), value, key, on_delivery=delivered)
        except BufferError:
            self.refused.append("the producer's queue is full")


def _make_flawed(envelope: dict[str, Any], flaw: Flaw) -> None:
    match flaw:
        case Flaw.FAILS_AT_TIMES | Flaw.HANGS_AT_TIMES:
            envelope["max_attempts"] = 1
            envelope["payload"]["user"] = flaw.value
        case Flaw.WRONG_MODEL:
            envelope["payload"]["model"] = flaw.value
        case Flaw.WRONG_BIZ_TYPE:
            envelope["biz_type"] = flaw.value
