"""The difference of this machine's clock from the brokers', by records that a broker stamps. Writes probe records,
which readers ignore, to the coordination topic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Producer

from forebay_schemas.clock import Clock
from forebay_schemas.contract.coordination import encode_clock_probe
from forebay_schemas.contract.topics import LATER_BYTES_MAX
from forebay_schemas.doctor.findings import Finding, ok, skipped, warning
from forebay_schemas.kafka.clients import create_client
from forebay_schemas.kafka.configs import producer_config
from forebay_schemas.kafka.connection import KafkaConnection

CHECK: Final = "clock"
PROBES: Final = 3
"""The first probe also waits for the connection."""

WRONG_MS: Final = 1_000.0
"""From here on the difference is reported, here and in a worker's log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeTimes:
    """One probe: local times of send and acknowledgement, and the broker's timestamp; epoch milliseconds."""

    sent_ms: int
    acked_ms: int
    broker_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Skew:
    """How far the local clock is ahead of the brokers', to within ``margin_ms``."""

    ahead_ms: float
    margin_ms: float


def skew_of(probes: Sequence[ProbeTimes]) -> Skew:
    """The result of all probes: each was stamped between its send and its acknowledgement. Pure.

    Where they contradict each other, because a clock was set meanwhile, the last one counts.
    """
    # All times are cut to the millisecond.
    bounds = [(one.sent_ms - one.broker_ms - 1, one.acked_ms + 1 - one.broker_ms) for one in probes]
    low, high = max(low for low, _ in bounds), min(high for _, high in bounds)
    if low > high:
        low, high = bounds[-1]
    return Skew(ahead_ms=(low + high) / 2, margin_ms=(high - low) / 2)


def skew_finding(skew: Skew) -> Finding:
    """The finding. Pure."""
    way = "ahead of" if skew.ahead_ms >= 0 else "behind"
    said = (
        f"this machine's clock is {abs(skew.ahead_ms) / 1000:.3f} s {way} the brokers' "
        f"(to within {skew.margin_ms / 1000:.3f} s)"
    )
    if abs(skew.ahead_ms) - skew.margin_ms > WRONG_MS:
        return warning(
            CHECK,
            said,
            fix="synchronise the clock that is wrong (NTP); Forebay goes by the brokers', other programs may not",
        )
    return ok(CHECK, said)


def check_clock(connection: KafkaConnection, *, topic: str, clock: Clock, seconds: float) -> Finding:
    """Probes the broker's clock with records on ``topic``; takes at most ``seconds``."""
    end = clock.monotonic() + seconds
    config = producer_config(connection, client_id="forebay-doctor", record_bytes_max=LATER_BYTES_MAX)
    producer = create_client(Producer, config | {"message.timeout.ms": max(1, int(seconds * 1000))})
    probes: list[ProbeTimes] = []
    for _ in range(PROBES):
        answer = _probe(producer, topic, clock, end=end)
        if isinstance(answer, str):
            if not probes:
                return skipped(CHECK, f"cannot be told: {answer}")
            break
        probes.append(answer)
    return skew_finding(skew_of(probes))


def _probe(producer: Producer, topic: str, clock: Clock, *, end: float) -> ProbeTimes | str:
    """The times of one probe, or why there are none."""
    answers: list[ProbeTimes | str] = []
    sent_ms = clock.wall_ms()

    def delivered(error: KafkaError | None, message: Any) -> None:
        acked_ms = clock.wall_ms()
        kind, stamp_ms = (None, 0) if error is not None else message.timestamp()
        if error is not None:
            answers.append(f"a record on {topic} was not delivered ({error.str()})")
        elif kind != TIMESTAMP_LOG_APPEND_TIME:
            answers.append(f"the broker does not stamp the records of {topic}, which needs LogAppendTime")
        else:
            answers.append(ProbeTimes(sent_ms=sent_ms, acked_ms=acked_ms, broker_ms=stamp_ms))

    try:
        producer.produce(topic, encode_clock_probe("doctor"), b"doctor", on_delivery=delivered)
    except (BufferError, KafkaException) as error:
        return f"a record on {topic} was not sent ({error})"
    while not answers and clock.monotonic() < end:
        producer.poll(0.05)
    return answers[0] if answers else f"no broker acknowledged a record on {topic} in time"
