"""The two ways in which Kafka shares partitions out, and a broker on which both are quick. Writes files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from forebay_sandbox.kafka.spec import ClusterSpec

PROTOCOLS: Final = ("cooperative-sticky", "consumer")

BRISK: Final = ClusterSpec(
    properties={
        # By default a member of the consumer protocol hears of a change within 5 s, and is missed after 45 s.
        "group.consumer.heartbeat.interval.ms": "500",
        "group.consumer.min.heartbeat.interval.ms": "500",
        "group.consumer.session.timeout.ms": "6000",
        "group.consumer.min.session.timeout.ms": "6000",
        # By default a member of the classic protocol cannot be missed before 6 s have passed.
        "group.min.session.timeout.ms": "1000",
        # A day: shorter than requests may wait, and longer than any test.
        "offsets.retention.minutes": "1440",
    }
)


def protocol_properties(folder: Path, protocol: str, **more: str) -> Path:
    """A properties file for a worker: the protocol, with a session of 6 s on the brisk broker."""
    lines = ["group.protocol=consumer"] if protocol == "consumer" else ["session.timeout.ms=6000"]
    path = folder / f"{protocol}.properties"
    lines += [f"{name.replace('_', '.')}={value}" for name, value in more.items()]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path
