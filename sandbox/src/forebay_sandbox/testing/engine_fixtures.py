"""pytest fixtures for engines: the simulated one, and two that are not ours. Loads nothing heavy until one is used."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forebay_sandbox.engine.process import EngineProcess
    from forebay_sandbox.testing.foreign_engines import ForeignEngine


@pytest.fixture
def new_engine() -> Iterator[Callable[..., EngineProcess]]:
    """Start simulated engines with the options of `running_engine`; they end with the test."""
    from forebay_sandbox.engine.process import running_engine

    with ExitStack() as stack:

        def start(**options: object) -> EngineProcess:
            return stack.enter_context(running_engine(**options))  # type: ignore[arg-type]  # checked by the call

        yield start


@pytest.fixture
def engine(new_engine: Callable[..., EngineProcess]) -> EngineProcess:
    """A simulated engine with the default physics, in a process of its own."""
    return new_engine()


@pytest.fixture(scope="session")
def xpyd_engine() -> Iterator[ForeignEngine]:
    """xpyd-sim: eight slots, 5 ms a token."""
    from forebay_sandbox.testing.foreign_engines import running_xpyd

    with running_xpyd() as foreign:
        yield foreign


@pytest.fixture(scope="session")
def llamacpp_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForeignEngine]:
    """Real llama.cpp with a tiny random model: four slots, noise for text."""
    from forebay_sandbox.testing.foreign_engines import running_llamacpp

    with running_llamacpp(tmp_path_factory.mktemp("llamacpp")) as foreign:
        yield foreign
