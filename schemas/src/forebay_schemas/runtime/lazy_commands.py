"""Commands that are imported when they are called: for the list of them, a line of each is enough."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class LazyCommand:
    """A command, or a group of them. ``summary``: the first paragraph of its help; ``add`` imports and adds it."""

    summary: str
    add: Callable[[typer.Typer], object]


class LazyGroup(TyperGroup):
    """A group that imports those of its commands that are ``lazy`` when they are called; the others come first."""

    lazy: Mapping[str, LazyCommand] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Commands(self.commands, self.lazy)
        self._lists = False

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - as its base has it
        """The names, in the order of the help."""
        return [*self.commands]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command; while the help is made, a stand-in with its summary."""
        if self._lists and cmd_name in self.lazy:
            return TyperCommand(cmd_name, help=self.lazy[cmd_name].summary)
        return super().get_command(ctx, cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Writes the help."""
        self._lists = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._lists = False


class _Commands(MutableMapping[str, Any]):
    """By name; a lazy one is imported when it is looked up."""

    def __init__(self, eager: Mapping[str, Any], lazy: Mapping[str, LazyCommand]) -> None:
        self._made = dict(eager)
        self._lazy = lazy

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            holder = typer.Typer()
            self._lazy[name].add(holder)
            self._made[name] = typer.main.get_group(holder).commands[name]
        return self._made[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._made, *self._lazy]))

    def __len__(self) -> int:
        return len(self._made.keys() | self._lazy.keys())
