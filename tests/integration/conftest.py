"""Fixtures for integration tests. Nothing is imported before a test asks for one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay_sandbox.kafka.access import KafkaAccess
    from forebay_sandbox.kafka.local import LocalKafka
    from forebay_sandbox.testing.kafka_secure import SecureKafka
    from harness.producer_pool import ProducerPool


@pytest.fixture
def producer_pool(kafka: KafkaAccess) -> ProducerPool:
    """A pool of the test's own on the shared broker, with its topics: three partitions a tier."""
    from harness.producer_pool import made_pool

    return made_pool(kafka)


@pytest.fixture
def unmade_producer_pool(kafka: KafkaAccess) -> ProducerPool:
    """The name of a pool of the test's own, without topics."""
    from harness.producer_pool import unmade_pool

    return unmade_pool(kafka)


@pytest.fixture(scope="session")
def brisk_kafka(
    kafka: KafkaAccess,  # noqa: ARG001 - skips the test where no broker can run
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LocalKafka]:
    """A broker that soon notices members that come and members that go, in both protocols."""
    from forebay_sandbox.kafka.local import local_kafka
    from harness.protocols import BRISK

    with local_kafka(BRISK, log_dir=tmp_path_factory.mktemp("brisk-kafka-log")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def secure_kafka(
    kafka: KafkaAccess,  # noqa: ARG001 - skips the test where no broker can run
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SecureKafka]:
    """A locked-down broker with every kind of listener, shared: tests use names of their own in it."""
    from forebay_sandbox.testing.kafka_secure import secure_kafka

    log_dir = tmp_path_factory.mktemp("secure-kafka-log")
    with secure_kafka(clients={"oauth-client": "oauth-secret"}, log_dir=log_dir) as secure:
        yield secure
