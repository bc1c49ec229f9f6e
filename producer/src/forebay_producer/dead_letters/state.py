"""What has become of a dead letter, by what the audit topic says. Pure."""

from __future__ import annotations

from enum import StrEnum

from forebay_producer.dead_letters.audit import Handled
from forebay_producer.dead_letters.letter import Letter


class State(StrEnum):
    """What has become of a dead letter: nothing yet, or what a run did with it."""

    OPEN = "open"
    REPLAYED = "replayed"
    DISCARDED = "discarded"


def state_of(letter: Letter, handled: Handled) -> State:
    """What has become of the letter."""
    if was_replayed(letter, handled):
        return State.REPLAYED
    return State.DISCARDED if handled.was_discarded(letter.partition, letter.offset) else State.OPEN


def was_replayed(letter: Letter, handled: Handled) -> bool:
    """Whether the letter, or another one of the same death, was replayed."""
    if handled.was_replayed_from(letter.partition, letter.offset):
        return True
    return handled.has_request(letter.request_id, letter.replay_count + 1)
