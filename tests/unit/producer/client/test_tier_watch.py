"""A client that stamps other deadlines than its pool's workers have says so once, and nothing it meets stops it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, KafkaException
from structlog.testing import capture_logs

from forebay_producer.client.prepare import names_deadline
from forebay_producer.client.tier_watch import AGAIN_SECONDS, TierWatch
from forebay_schemas.contract.coordination import Capacity
from forebay_schemas.contract.envelope import Request
from forebay_schemas.contract.tiers import DEFAULT_TIER_TIMES, Tier, tier_times
from simulated.capacities import make_capacity
from simulated.ports import ManualClock

LONG = tier_times({Tier.HIGH: 60_000}, {})


class Looks:
    """``answers``: what each look finds, or what it ends with; the last one goes on."""

    def __init__(self, *answers: list[Capacity] | Exception) -> None:
        self.answers = list(answers)
        self.count = 0

    def __call__(self, _stopped: Callable[[], bool]) -> list[Capacity]:
        self.count += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def watch(looks: Looks, clock: ManualClock) -> TierWatch:
    return TierWatch(looks, pool="chat", times=DEFAULT_TIER_TIMES, clock=clock)


def test_a_difference_is_told_once_with_both_values_and_the_worker() -> None:
    looks = Looks([make_capacity(times=LONG)])
    made = watch(looks, ManualClock())
    with capture_logs() as logs:
        made.compare()
        made.compare()
    [told] = logs
    assert (told["log_level"], told["pool"], told["worker"]) == ("warning", "chat", "w-1")
    assert told["differs"] == "FOREBAY_TIER_TTL_MS high 5000 against 60000"


@pytest.mark.parametrize(
    "answer",
    [[], [make_capacity(times=DEFAULT_TIER_TIMES)], KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))],
)
def test_agreement_nobody_and_a_denial_are_no_warning(answer: list[Capacity] | Exception) -> None:
    with capture_logs() as logs:
        watch(Looks(answer), ManualClock()).compare()
    assert [entry for entry in logs if entry["log_level"] != "debug"] == []


def test_it_looks_once_and_again_after_ten_minutes() -> None:
    clock, looks = ManualClock(), Looks([])
    made = watch(looks, clock)
    for _ in range(3):
        made.stamped()
    made.close()
    assert looks.count == 1
    clock.advance(AGAIN_SECONDS)
    made.stamped()
    made.close()
    assert looks.count == 2


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        ({}, False),
        ({"ttl_ms": None, "expire_at": None}, False),
        ({"ttl_ms": 1}, True),
        ({"expire_at": 1}, True),
        (Request("r", "chat", {}), False),
        (Request("r", "chat", {}, ttl_ms=1), True),
        ("no request", False),
    ],
)
def test_a_request_names_its_deadline_by_either_field(request_: object, named: bool) -> None:
    assert names_deadline(request_) is named  # type: ignore[arg-type]
