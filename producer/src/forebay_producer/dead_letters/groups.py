"""Counts dead letters by kind and by error. Pure; memory is bounded."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from forebay_producer.dead_letters.letter import SAMPLES_MAX, Letter
from forebay_producer.dead_letters.state import State

GROUPS_MAX: Final = 1_000
OTHERS: Final = "(others)"
"""Group of all kinds beyond `GROUPS_MAX`, and of all errors beyond `ERRORS_MAX`."""

ERRORS_MAX: Final = 20
"""Distinct errors per group."""

ERROR_CHARS_MAX: Final = 300

KEPT_BYTES_MAX: Final = 4_096
"""Largest value of a letter kept as a sample: at most 3,000 samples, 12 MB."""

# Errors that differ only in ids, counts and times are counted as one. A status at the beginning is kept: HTTP 404.
_HEAD_BYTES: Final = 10
_VARYING: Final = b"0123456789abcdefABCDEF-"


class By(StrEnum):
    """The attribute that dead letters are grouped by."""

    REASON = "reason"
    TIER = "tier"
    TENANT = "tenant"
    BIZ_TYPE = "biz_type"
    MODEL = "model"
    ERROR_CLASS = "error_class"


def kind_of(letter: Letter, by: By) -> str | None:
    """The name of the letter's group; None if the letter lacks the attribute."""
    match by:
        case By.REASON:
            return letter.reason
        case By.TIER:
            return letter.tier
        case By.TENANT:
            return letter.tenant
        case By.BIZ_TYPE:
            return letter.biz_type
        case By.MODEL:
            return letter.model
        case By.ERROR_CLASS:
            return letter.error_class


@dataclass(slots=True)
class ErrorCount:
    """``error``: the first error of its kind."""

    error: str
    count: int = 0


@dataclass(slots=True, kw_only=True)
class Group:
    """Counts of one kind. Times, ids and errors are those of letters that are not discarded.

    ``first_seen``, ``last_seen``: epoch milliseconds.
    """

    name: str | None
    open: int = 0
    replayed: int = 0
    discarded: int = 0
    first_seen: int | None = None
    last_seen: int | None = None
    _samples: deque[Letter | str] = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX))
    _errors: dict[bytes, ErrorCount] = field(default_factory=dict)

    @property
    def is_discarded(self) -> bool:
        """Whether all letters of the group are discarded."""
        return not self.open and not self.replayed

    def add(self, letter: Letter, state: State) -> None:
        """Counts a letter."""
        if state is State.DISCARDED:
            self.discarded += 1
            return
        at_ms = letter.at_ms
        if self.first_seen is None or at_ms < self.first_seen:
            self.first_seen = at_ms
        if self.last_seen is None or at_ms > self.last_seen:
            self.last_seen = at_ms
        if state is State.REPLAYED:
            self.replayed += 1
            return
        self.open += 1
        # Reading a name from the value is expensive: done only for the samples that are shown.
        self._samples.append(letter if letter.value_bytes <= KEPT_BYTES_MAX else letter.name)
        self._count_error((letter.error or "")[:ERROR_CHARS_MAX])

    @property
    def sample_ids(self) -> list[str]:
        """The last open letters seen."""
        return [sample if isinstance(sample, str) else sample.name for sample in self._samples]

    def _count_error(self, error: str) -> None:
        # Comparing bytes takes a tenth of the time.
        text = error.encode(errors="replace")
        sort = text[:_HEAD_BYTES] + text[_HEAD_BYTES:].translate(None, _VARYING)
        if sort not in self._errors and len(self._errors) >= ERRORS_MAX:
            sort, error = b"", OTHERS
        counted = self._errors.get(sort)
        if counted is None:
            counted = self._errors[sort] = ErrorCount(error)
        counted.count += 1

    @property
    def errors(self) -> list[ErrorCount]:
        """The causes of the open letters, the most frequent error first."""
        return sorted(self._errors.values(), key=lambda counted: -counted.count)


class Groups:
    """Dead letters by kind."""

    def __init__(self, by: By) -> None:
        self._by = by
        self._groups: dict[str | None, Group] = {}

    def add(self, letter: Letter, state: State) -> None:
        """Counts a letter."""
        name = kind_of(letter, self._by)
        if name not in self._groups and len(self._groups) >= GROUPS_MAX:
            name = OTHERS
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = Group(name=name)
        group.add(letter, state)

    def ranked(self) -> list[Group]:
        """The groups, those with the most open letters first."""
        return sorted(self._groups.values(), key=lambda group: (-group.open, -group.replayed, group.name or ""))
