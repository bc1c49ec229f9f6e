"""The differences of a topic from its specification. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forebay_schemas.contract.topics import TopicSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A setting that differs."""

    setting: str
    actual: str
    wanted: str

    def __str__(self) -> str:
        return f"{self.setting} is {self.actual}, should be {self.wanted}"


def drift_of(spec: TopicSpec, *, partitions: int, replication: int, settings: Mapping[str, str]) -> tuple[Drift, ...]:
    """The differences of a topic from its specification."""
    wanted = {"partitions": str(spec.partitions), "replication": str(spec.replication), **spec.config}
    actual = {"partitions": str(partitions), "replication": str(replication), **settings}
    return tuple(
        Drift(setting=name, actual=actual.get(name, "not known"), wanted=value)
        for name, value in wanted.items()
        if actual.get(name) != value
    )
