"""Bugs by name. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simulation.process import Patch


@dataclass(frozen=True, slots=True)
class Bug:
    """``meaning``: what the code does wrong."""

    name: str
    meaning: str
    patches: Callable[[], list[Patch]]


BUGS: list[Bug] = []


def bug_named(name: str) -> Bug:
    """The bug of that name."""
    return next(bug for bug in BUGS if bug.name == name)


def bug(name: str, meaning: str) -> Callable[[Callable[[], list[Patch]]], Callable[[], list[Patch]]]:
    """Adds a function's patches to `BUGS`."""

    def add(patches: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
        BUGS.append(Bug(name, meaning, patches))
        return patches

    return add
