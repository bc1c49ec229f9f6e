"""One attempt of a replay or discard command: its run, what interrupts it, and the resulting exit code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import typer

from forebay_producer.cli.common import Session, say
from forebay_producer.cli.progress import GO_ON, INTERRUPTED, Interruption
from forebay_producer.dead_letters.audit import Ending, RunStarted
from forebay_producer.dead_letters.runs.interruptions import InterruptedRunError
from forebay_producer.dead_letters.runs.lease import Run
from forebay_schemas.clock import Clock
from forebay_schemas.errors import ExitCode, ForebayError
from forebay_schemas.runtime.entry import EXIT_INTERRUPTED


class Attempt:
    """While it is entered, Ctrl-C is a flag. ``failure``: the error that ended the `work`."""

    def __init__(self) -> None:
        self.failure: ForebayError | None = None
        self._interruption = Interruption()

    def __enter__(self) -> Self:
        self._interruption.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._interruption.__exit__()

    def interrupted(self) -> bool:
        """Whether Ctrl-C came."""
        return self._interruption.came

    @property
    def is_whole(self) -> bool:
        """Whether it was neither interrupted nor failed, so that it saw all letters."""
        return self.failure is None and not self.interrupted()

    @property
    def ending(self) -> Ending:
        """The ending for the audit record."""
        if self.failure is not None:
            return Ending.FAILED
        return Ending.INTERRUPTED if self.interrupted() else Ending.DONE

    def open_run(self, session: Session, *, clock: Clock, opening: RunStarted, tell: Callable[[str], None]) -> Run:
        """The run, not yet entered. Must be closed."""
        return Run(
            session.connection,
            pool=session.pool,
            clock=clock,
            opening=opening,
            wait_seconds=session.settings.delivery_timeout_seconds,
            interrupted=self.interrupted,
            tell=tell,
        )

    def work(self) -> _Work:
        """A block that Ctrl-C or a ``ForebayError`` ends; the error is kept instead of raised."""
        return _Work(self)

    def exit_if_cut_short(self, *, done: int) -> None:
        """Prints the error or interruption and exits, if there was one. ``done``: letters handled until then."""
        if self.failure is not None:
            say(f"error: {self.failure}{GO_ON if done else ''}")
            partly = done and self.failure.exit_code is not ExitCode.UNREACHABLE
            raise typer.Exit(ExitCode.PARTLY if partly else self.failure.exit_code)
        if self.interrupted():
            say(INTERRUPTED)
            raise typer.Exit(EXIT_INTERRUPTED)


class _Work:
    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        if isinstance(error, ForebayError) and not isinstance(error, InterruptedRunError):
            self._attempt.failure = error
        return isinstance(error, ForebayError)
