"""Fixtures for tests of the producer's side. Nothing is imported before a test asks for one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from forebay_sandbox.kafka_access import KafkaAccess
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
