"""The state of a dead letter, from the audit topic. Pure."""

from __future__ import annotations

from enum import StrEnum

from forebay_producer.dead_letters.audit import AuditIndex
from forebay_producer.dead_letters.letter import Letter


class State(StrEnum):
    """Open, or what a run did with the letter."""

    OPEN = "open"
    REPLAYED = "replayed"
    DISCARDED = "discarded"


def state_of(letter: Letter, handled: AuditIndex) -> State:
    """The state of the letter."""
    if was_replayed(letter, handled):
        return State.REPLAYED
    return State.DISCARDED if handled.was_discarded(letter.partition, letter.offset) else State.OPEN


def was_replayed(letter: Letter, handled: AuditIndex) -> bool:
    """Whether the letter, or another letter of the same death, was replayed."""
    if handled.was_replayed_from(letter.partition, letter.offset):
        return True
    return handled.has_request(letter.request_id, letter.replay_count + 1)
