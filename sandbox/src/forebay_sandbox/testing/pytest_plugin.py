"""Fixtures for tests that need a real Kafka (`kafka`, `new_kafka`) or Schema Registry (`registry`).

Those for engines are in `engine_fixtures`.
Loaded in every pytest run, so nothing is imported and nothing looked up before a test asks for a fixture.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, NoReturn, Protocol

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay_sandbox.kafka.access import KafkaAccess
    from forebay_sandbox.kafka.local import LocalKafka
    from forebay_sandbox.kafka.spec import ClusterSpec
    from forebay_sandbox.testing.schema_registry import LocalRegistry

pytest_plugins = ["forebay_sandbox.testing.engine_fixtures"]


class NewKafka(Protocol):
    """Starts a cluster of the test's own; it ends with the test."""

    def __call__(self, spec: ClusterSpec | None = None) -> LocalKafka: ...


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaAccess]:
    """One cluster for the whole run: FOREBAY_BOOTSTRAP_SERVERS's if set, else a broker of our own.

    Its topics are shared, so tests make their own (`kafka.create_topic()`) or use a pool name of their own.
    """
    from forebay_sandbox.errors import PrerequisiteMissingError
    from forebay_sandbox.kafka.local import running_kafka

    with ExitStack() as stack:
        try:
            cluster = stack.enter_context(running_kafka(log_dir=tmp_path_factory.mktemp("kafka-log")))
        except PrerequisiteMissingError as error:
            _give_up(str(error))
        yield cluster


@pytest.fixture
def new_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewKafka]:
    """A function that starts a cluster as specified; always one of our own, ended at the end of the test."""
    from forebay_sandbox.errors import PrerequisiteMissingError
    from forebay_sandbox.kafka.local import local_kafka

    with ExitStack() as stack:

        def start(spec: ClusterSpec | None = None) -> LocalKafka:
            try:
                return stack.enter_context(local_kafka(spec, log_dir=tmp_path_factory.mktemp("kafka-log")))
            except PrerequisiteMissingError as error:
                _give_up(str(error))

        yield start


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRegistry]:
    """A Schema Registry for the whole run. Tests use subjects of their own; to be without it they cut a link to it."""
    from forebay_sandbox.errors import PrerequisiteMissingError
    from forebay_sandbox.testing.schema_registry import running_registry

    with ExitStack() as stack:
        try:
            started = stack.enter_context(running_registry(log_dir=tmp_path_factory.mktemp("registry-log")))
        except PrerequisiteMissingError as error:
            _give_up(str(error))
        yield started


def _give_up(why: str) -> NoReturn:
    """In CI a missing program is a failure: a run that tests nothing must not look green."""
    if os.environ.get("CI", "").lower() in {"true", "1"}:
        pytest.fail(why, pytrace=False)
    pytest.skip(why)
