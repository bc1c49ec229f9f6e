"""Checks that this process has the deadlines and waits of the pool's workers, and that those agree. Reads the
coordination topic."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from confluent_kafka import KafkaException

from forebay_schemas.contract.coordination import Capacity
from forebay_schemas.contract.tier_agreement import agreement_of, difference
from forebay_schemas.contract.tiers import TIERS, TierTimes
from forebay_schemas.doctor.findings import Finding, named, ok, skipped, warning
from forebay_schemas.kafka.announcements import read_announcements
from forebay_schemas.kafka.connection import KafkaConnection

CHECK: Final = "tiers"
FIX: Final = (
    "give the pool's workers and clients the same FOREBAY_TIER_TTL_MS and FOREBAY_TIER_WAIT_MS; until then a request "
    "that names no deadline has the worker's that takes it, and one of our client the client's"
)


def check_tiers(connection: KafkaConnection, *, topic: str, own: TierTimes, seconds: float) -> list[Finding]:
    """Reads the workers' values on ``topic``; takes at most ``seconds``."""
    try:
        workers = read_announcements(connection, topic=topic, client_id="forebay-doctor", seconds=seconds)
    except KafkaException as error:
        return [skipped(CHECK, f"what the workers have cannot be told ({error.args[0].str()})")]
    return tiers_findings(own, workers)


def tiers_findings(own: TierTimes, workers: Collection[Capacity]) -> list[Finding]:
    """A finding for each worker that differs from the one that started last, and one for this process. Pure."""
    agreement = agreement_of(workers)
    if agreement is None:
        return [skipped(CHECK, f"no worker has said its deadlines and waits lately; here {_shown(own)}")]
    found = [
        warning(
            CHECK,
            f"worker {worker} has other values than {agreement.worker}, which started last: "
            f"{difference(times, agreement.times)}",
            fix=FIX,
        )
        for worker, times in agreement.differing.items()
    ]
    if own != agreement.times:
        said = difference(own, agreement.times)
        found.append(warning(CHECK, f"here are other values than worker {agreement.worker} has: {said}", fix=FIX))
    if not found:
        names = named(sorted(each.worker for each in workers))
        return [ok(CHECK, f"as {len(workers)} worker(s) have them ({names}): {_shown(own)}")]
    return found


def _shown(times: TierTimes) -> str:
    return ", ".join(f"{tier} {times.ttl_seconds(tier):g} s (waits {times.wait_seconds(tier):g} s)" for tier in TIERS)
