"""New credentials reach every client, bad files keep the old ones, and failures are logged for a while only."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping

import pytest
from confluent_kafka import KafkaError

from forebay_schemas.errors import UsageError
from forebay_schemas.kafka.watch import FRESH_SECONDS, ConnectionWatch

OLD = {"sasl.username": "alice", "sasl.password": "old"}
NEW = {"sasl.username": "alice", "sasl.password": "new"}


class StillClock:
    """Stands unless moved; who sleeps by it sleeps until the test is over, and then finds no client."""

    def __init__(self) -> None:
        self.now = 100.0
        self.over = threading.Event()

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return 0

    def sleep(self, seconds: float) -> None:
        self.over.wait()
        time.sleep(seconds / 100)


class Client:
    """The watch's view of a client."""

    new_credentials: tuple[str, str] | None = None


class File:
    """The properties file."""

    def __init__(self) -> None:
        self.content: Mapping[str, str] | UsageError = OLD

    def read(self) -> Mapping[str, str]:
        if isinstance(self.content, UsageError):
            raise self.content
        return self.content


Watched = tuple[ConnectionWatch, File, StillClock]


@pytest.fixture
def watched() -> Iterator[Watched]:
    file, clock = File(), StillClock()
    yield ConnectionWatch(reread=file.read, clock=clock), file, clock
    clock.over.set()


def test_new_credentials_are_left_for_every_client_once(watched: Watched) -> None:
    watch, file, _ = watched
    clients = [Client(), Client()]
    for client in clients:
        watch.add(client, OLD)
    watch.look()
    assert [client.new_credentials for client in clients] == [None, None]
    file.content = NEW
    watch.look()
    watch.look()
    assert [client.new_credentials for client in clients] == [("alice", "new")] * 2
    assert watch.rotations == 1


def test_a_client_made_with_the_old_ones_after_the_change_gets_the_new_ones(watched: Watched) -> None:
    watch, file, _ = watched
    first, late = Client(), Client()
    watch.add(first, OLD)
    file.content = NEW
    watch.look()
    watch.add(late, OLD)
    assert late.new_credentials == ("alice", "new")


def test_a_client_that_is_made_after_the_change_begins_with_the_new_ones(watched: Watched) -> None:
    watch, file, _ = watched
    assert watch.renewed(OLD) == OLD
    watch.add(client := Client(), OLD)
    assert watch.renewed(OLD) == OLD
    file.content = NEW
    assert watch.renewed(OLD | {"client.id": "late"}) == NEW | {"client.id": "late"}
    assert client.new_credentials == ("alice", "new")
    without = {"security.protocol": "ssl"}
    assert watch.renewed(without) == without


def test_a_file_that_cannot_be_read_or_lacks_a_password_changes_nothing(watched: Watched) -> None:
    watch, file, _ = watched
    client = Client()
    watch.add(client, OLD)
    gone = UsageError("FILE", "is gone", fix="name one")
    for file.content in (gone, {}, {"sasl.username": "alice"}, NEW | {"sasl.password": ""}):
        watch.look()
    assert (client.new_credentials, watch.rotations) == (None, 0)


def test_a_client_without_a_password_or_a_file_is_left_alone(watched: Watched) -> None:
    watch, file, _ = watched
    without, unfiled = Client(), Client()
    watch.add(without, {"security.protocol": "ssl"})
    ConnectionWatch().add(unfiled, OLD)
    watch.add(Client(), OLD)
    file.content = NEW
    watch.look()
    assert without.new_credentials is unfiled.new_credentials is None


def test_a_failure_is_told_of_for_a_while_and_not_after_new_credentials(watched: Watched) -> None:
    watch, file, clock = watched
    watch.add(client := Client(), OLD)
    refused = KafkaError(KafkaError._AUTHENTICATION, "no")
    watch(KafkaError(KafkaError._TRANSPORT, "gone"))
    assert watch.failure is None, "that says nothing of credentials"
    watch(refused)
    assert watch.authentication_failure == "no"
    clock.now += FRESH_SECONDS + 1
    assert watch.failure is None
    watch(refused)
    file.content = NEW
    watch.look()
    assert (watch.failure, client.new_credentials) == (None, ("alice", "new"))
    watch(KafkaError(KafkaError._SSL, "bad certificate"))
    assert str(watch.failure) == str(KafkaError(KafkaError._SSL, "bad certificate"))
