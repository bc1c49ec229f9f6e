"""The faults that the simulated engine can inject, and the requests that each affects. Pure; its randomness is
seeded."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from forebay_schemas.errors import UsageError


class FaultKind(Enum):
    STATUS = "status"
    """Answers with an error status, without running the request."""
    HANG = "hang"
    """Never answers; ends when the client disconnects."""
    CUT = "cut"
    """Closes the connection: `before` any byte and without running it, or in the `middle` of the body after running."""
    SLOW = "slow"
    """Every step takes `factor` times as long. With match, count or a probability: only those requests' answers do."""
    REFUSE = "refuse"
    """As if the process had crashed: connections are cut and the port refuses new ones, for `seconds` or until
    changed."""


class CutWhere(Enum):
    BEFORE = "before"
    MIDDLE = "middle"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. Fields of other kinds keep their defaults."""

    kind: FaultKind
    status: int = 503
    retry_after_seconds: int | None = None
    where: CutWhere = CutWhere.BEFORE
    factor: float = 1.0
    seconds: float | None = None
    probability: float = 1.0
    count: int | None = None
    """Only this many of the requests that it would affect."""
    match: str | None = None
    """Only requests with this text in the body or in the header x-forebay-request-id or x-request-id."""

    @property
    def meets_all(self) -> bool:
        return self.probability == 1.0 and self.count is None and self.match is None


class FaultPlan:
    """The active faults, in order: the first that applies affects a request."""

    def __init__(self, *, seed: int) -> None:
        self._seed = seed
        self._random = random.Random(seed)  # noqa: S311 - reproducible, not secret
        self._faults: tuple[Fault, ...] = ()
        self._hits: list[int] = []

    def replace(self, faults: Sequence[Fault]) -> None:
        """Replaces the faults. The random sequence starts at the seed again, so that the same faults affect the same
        requests."""
        self._random.seed(self._seed)
        self._faults = tuple(faults)
        self._hits = [0] * len(self._faults)

    def end_refusal(self) -> None:
        kept = [index for index, fault in enumerate(self._faults) if fault.kind is not FaultKind.REFUSE]
        self._hits = [self._hits[index] for index in kept]
        self._faults = tuple(self._faults[index] for index in kept)

    @property
    def refusal(self) -> Fault | None:
        return next((fault for fault in self._faults if fault.kind is FaultKind.REFUSE), None)

    @property
    def step_factor(self) -> float:
        """The present factor of a step's duration."""
        factor = 1.0
        for fault in self._faults:
            if _slows_steps(fault):
                factor *= fault.factor
        return factor

    def choose(self, *, request_id: str, body: bytes) -> Fault | None:
        """The fault for this request, counted as a hit."""
        for index, fault in enumerate(self._faults):
            if fault.kind is FaultKind.REFUSE or _slows_steps(fault):
                continue
            if fault.match is not None and fault.match not in request_id and fault.match.encode() not in body:
                continue
            if fault.count is not None and self._hits[index] >= fault.count:
                continue
            if fault.probability < 1.0 and self._random.random() >= fault.probability:
                continue
            self._hits[index] += 1
            return fault
        return None

    def describe(self) -> list[dict[str, Any]]:
        """The faults as given, each with `hits`: the number of affected requests."""
        return [
            {name: _plain(getattr(fault, name)) for name in _given(fault)} | {"hits": hits}
            for fault, hits in zip(self._faults, self._hits, strict=True)
        ]


def _slows_steps(fault: Fault) -> bool:
    return fault.kind is FaultKind.SLOW and fault.meets_all


def _given(fault: Fault) -> list[str]:
    return ["kind", *(name for name in _FIELDS[fault.kind] if getattr(fault, name) is not None)]


def _plain(value: object) -> object:
    return value.value if isinstance(value, Enum) else value


_SELECTORS = ("probability", "count", "match")
_FIELDS: dict[FaultKind, tuple[str, ...]] = {
    FaultKind.STATUS: ("status", "retry_after_seconds", *_SELECTORS),
    FaultKind.HANG: _SELECTORS,
    FaultKind.CUT: ("where", *_SELECTORS),
    FaultKind.SLOW: ("factor", *_SELECTORS),
    FaultKind.REFUSE: ("seconds",),
}
_REQUIRED: dict[FaultKind, str] = {FaultKind.STATUS: "status", FaultKind.SLOW: "factor", FaultKind.CUT: "where"}


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# For each field: what it must be, and how to say so.
_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "status": (lambda value: _whole(value) and 400 <= value <= 599, "a status from 400 to 599"),
    "retry_after_seconds": (lambda value: _whole(value) and value >= 0, "a whole number of seconds"),
    "where": (lambda value: value in [where.value for where in CutWhere], "before or middle"),
    "factor": (lambda value: _number(value) and value >= 1, "a number of at least 1"),
    "seconds": (lambda value: _number(value) and value > 0, "a number above 0, or leave it out: until told"),
    "probability": (lambda value: _number(value) and 0 < value <= 1, "a number above 0 and up to 1"),
    "count": (lambda value: _whole(value) and value >= 1, "a whole number of at least 1"),
    "match": (lambda value: isinstance(value, str) and value != "", "a text"),
}


def parse_faults(document: object) -> tuple[Fault, ...]:
    """Parses `{"faults": [{"kind": ...}, ...]}`; UsageError names the invalid field."""
    if not isinstance(document, dict) or not isinstance(document.get("faults"), list) or len(document) != 1:
        raise UsageError("body", "is not an object with a list of faults", fix='send {"faults": [{"kind": ...}]}')
    faults = tuple(_parse_fault(f"faults[{index}]", spec) for index, spec in enumerate(document["faults"]))
    if sum(fault.kind is FaultKind.REFUSE for fault in faults) > 1:
        raise UsageError("faults", "refuse is given twice", fix="give it once")
    return faults


def _parse_fault(field: str, spec: object) -> Fault:
    kinds = [kind.value for kind in FaultKind]
    if not isinstance(spec, dict):
        raise UsageError(field, "is not an object", fix='give {"kind": ...}')
    if spec.get("kind") not in kinds:
        raise UsageError(f"{field}.kind", f"is {spec.get('kind')!r}", fix=f"give one of {', '.join(kinds)}")
    kind = FaultKind(spec["kind"])
    required = _REQUIRED.get(kind)
    if required is not None and required not in spec:
        raise UsageError(f"{field}.{required}", "is missing", fix=f"give {_CHECKS[required][1]}")
    values = {name: value for name, value in spec.items() if name != "kind"}
    for name, value in values.items():
        if name not in _FIELDS[kind]:
            known = ", ".join(_FIELDS[kind])
            raise UsageError(f"{field}.{name}", f"does not go with {kind.value}", fix=f"it takes {known}")
        is_right, description = _CHECKS[name]
        if not is_right(value):
            raise UsageError(f"{field}.{name}", f"is {value!r}", fix=f"give {description}")
    if "where" in values:
        values["where"] = CutWhere(values["where"])
    return Fault(kind=kind, **values)
