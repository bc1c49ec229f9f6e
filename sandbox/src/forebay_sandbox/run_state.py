"""The state file of a command that leaves processes running. Reads and writes it, and ends the processes that it
names."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

from forebay_sandbox.errors import SandboxError
from forebay_sandbox.files import write_atomically
from forebay_sandbox.process import end_all, processes_of

STATE: Final = "run.json"
LOCK: Final = "up.lock"
"""Held while a command starts or ends the folder's processes."""


class Run(Protocol):
    """The content of a state file: a dataclass."""

    @property
    def token(self) -> str:
        """The token of the run's processes."""
        ...


_Run = TypeVar("_Run", bound=Run)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFile(Generic[_Run]):
    """``of_fields`` makes a run from the file's fields; ``processes`` names them in errors."""

    of_fields: Callable[[Mapping[str, Any]], _Run]
    processes: str

    def read(self, folder: Path) -> _Run | None:
        """The run; None without a file. Raises ``SandboxError`` for a damaged file."""
        try:
            return self.of_fields(json.loads((folder / STATE).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            fix = f"end its {self.processes} by hand and delete the folder"
            raise SandboxError(f"{folder / STATE} is damaged; {fix}") from None

    def write(self, folder: Path, run: _Run) -> None:
        """Replaces the file atomically."""
        write_atomically(folder / STATE, json.dumps(asdict(run)))  # type: ignore[call-overload] # it is a dataclass

    def end(self, folder: Path) -> bool:
        """Ends the run's processes tidily. False when none was running."""
        run = self.read(folder)
        if run is None or not processes_of(run.token):
            return False
        end_all(run.token)
        return True
