"""Errors of an intake's client: until when they count, and how often they are logged."""

from __future__ import annotations

import pytest

from forebay_schemas.kafka.permissions import Access, Operation, on_group, on_topic
from forebay_worker.intake.client_errors import SAY_AGAIN_SECONDS, ClientErrors

READ_A = on_topic(Operation.READ, "a")
READ_GROUP = on_group(Operation.READ, "g")


@pytest.fixture
def troubles() -> ClientErrors:
    """A topic and the group were denied, another topic is broken."""
    troubles = ClientErrors()
    assert troubles.note("a", "a denied", now=1.0, is_denial=True)
    assert troubles.note(None, "group denied", now=1.0, is_denial=True)
    assert troubles.note("b", "b broken", now=1.0, is_denial=False)
    return troubles


def test_a_record_ends_the_trouble_of_its_topic_and_of_the_client(troubles: ClientErrors) -> None:
    troubles.received("a")
    assert troubles.texts({}) == ["b broken"]
    assert not troubles.has_denial


@pytest.mark.parametrize(
    ("lacking", "left"),
    [
        ([], ["b broken"]),
        ([READ_A], ["a denied", "b broken"]),
        ([READ_GROUP], ["group denied", "b broken"]),
        ([READ_A, READ_GROUP], ["a denied", "group denied", "b broken"]),
    ],
)
def test_a_denial_is_over_when_nothing_lacks_though_no_record_comes(
    troubles: ClientErrors, lacking: list[Access], left: list[str]
) -> None:
    troubles.forget_denials(lacking, before=2.0)
    assert troubles.texts({}) == left


def test_what_was_denied_after_the_brokers_were_asked_stays(troubles: ClientErrors) -> None:
    troubles.note("a", "a denied", now=3.0, is_denial=True)
    troubles.forget_denials([], before=2.0)
    assert troubles.texts({}) == ["a denied", "b broken"]


def test_a_topic_that_is_assigned_anew_is_there_again(troubles: ClientErrors) -> None:
    assert troubles.texts({"b": 2.0}) == ["a denied", "group denied"]


def test_what_goes_on_is_said_at_first_when_it_changes_and_every_ten_seconds(troubles: ClientErrors) -> None:
    said = [troubles.note("a", "a denied", now=1.0 + 0.01 * number, is_denial=True) for number in range(100)]
    assert not any(said)
    assert troubles.note("a", "a denied", now=1.0 + SAY_AGAIN_SECONDS, is_denial=True)
    assert troubles.note("a", "a gone", now=1.1 + SAY_AGAIN_SECONDS, is_denial=False)
