"""The selection of dead letters: the filters of all dead-letter commands in one value. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import cached_property
from typing import Final

import msgspec

from forebay_producer.dead_letters.letter import Letter
from forebay_producer.dead_letters.views import rfc3339
from forebay_schemas.runtime.terminal import printable

NONE: Final = "-"
"""Stands for a missing attribute, e.g. no tenant. `list` prints it too."""


class Selection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, dict=True):
    """Filters. A letter must pass each given filter by matching one of its values.

    ``error``: text that the error contains, ignoring case. ``id``: a request id, a record's key or a place
    (partition:offset). ``since`` (inclusive), ``until`` (exclusive): time of death in epoch milliseconds. The JSON
    encoding contains only given filters and can be decoded again.
    """

    reason: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    tenant: tuple[str, ...] = ()
    tier: tuple[str, ...] = ()
    biz_type: tuple[str, ...] = ()
    error_class: tuple[str, ...] = ()
    error: tuple[str, ...] = ()
    id: tuple[str, ...] = ()
    since: int | None = None
    until: int | None = None

    @property
    def is_everything(self) -> bool:
        """Whether no filter is given."""
        return not self._checks

    @cached_property
    def ids(self) -> frozenset[str]:
        """The ids, for `Letter.is_called`."""
        return frozenset(self.id)

    def matches(self, letter: Letter) -> bool:
        """Whether the letter is selected. Never raises."""
        checks = self._checks
        return not checks or all(check(letter) for check in checks)

    def __str__(self) -> str:
        """The options for this selection, in a stable order, as typed; ``(all)`` without any."""
        return shlex.join(map(printable, self.options)) or "(all)"

    @property
    def options(self) -> list[str]:
        """The same as the words of a command line."""
        words: list[str] = []
        for option, values in (
            ("--reason", self.reason),
            ("--model", self.model),
            ("--tenant", self.tenant),
            ("--tier", self.tier),
            ("--biz-type", self.biz_type),
            ("--error-class", self.error_class),
            ("--error", self.error),
            ("--id", self.id),
            ("--since", () if self.since is None else (rfc3339(self.since),)),
            ("--until", () if self.until is None else (rfc3339(self.until),)),
        ):
            for value in values:
                # "--tenant -x" would be parsed as two options.
                words += [f"{option}={value}"] if value.startswith("-") and value != NONE else [option, value]
        return words

    @cached_property
    def _checks(self) -> list[Callable[[Letter], bool]]:
        # Cheap filters first: a letter decodes only what is needed.
        checks: list[Callable[[Letter], bool]] = []
        since, until, ids = self.since, self.until, self.ids
        texts = [text.casefold() for text in self.error]
        if since is not None:
            checks.append(lambda letter: letter.at_ms >= since)
        if until is not None:
            checks.append(lambda letter: letter.at_ms < until)
        for wanted, found in (
            (self.reason, lambda letter: letter.reason),
            (self.error_class, lambda letter: letter.error_class),
            (self.tier, lambda letter: letter.tier),
            (self.tenant, lambda letter: letter.tenant),
            (self.biz_type, lambda letter: letter.biz_type),
            (self.model, lambda letter: letter.model),
        ):
            if wanted:
                checks.append(_is_one_of(frozenset(wanted), found))
        if texts:
            checks.append(lambda letter: any(text in (letter.error or "").casefold() for text in texts))
        if ids:
            checks.append(lambda letter: bool(letter.is_called(ids)))
        return checks


def _is_one_of(wanted: frozenset[str], found: Callable[[Letter], str | None]) -> Callable[[Letter], bool]:
    def is_one(letter: Letter) -> bool:
        name = found(letter) or NONE
        # Untrusted names are shown with control characters escaped; the escaped form selects them.
        return name in wanted or (not name.isprintable() and printable(name) in wanted)

    return is_one
