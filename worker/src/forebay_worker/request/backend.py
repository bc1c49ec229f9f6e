"""What executes a request, as the worker's core sees it, and how an execution fails. Pure."""

from __future__ import annotations

from typing import Protocol

from forebay_worker.request.work import Answer, Failure, Work


class BackendFailed(Exception):  # noqa: N818 - it carries a Failure, and is no bug to be seen by a person
    """An execution failed; ``failure`` gives the reason."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.error)
        self.failure = failure


class Backend(Protocol):
    """Executes requests. Cancelling `run` gives the execution up and tells the engine by closing the connection."""

    async def run(self, work: Work) -> Answer:
        """Raises ``BackendFailed``; any other exception is a bug of a handler."""
        ...

    async def close(self) -> None:
        """Frees what the backend holds."""
        ...
