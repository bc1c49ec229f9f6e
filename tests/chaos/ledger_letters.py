"""The account of the dead letters: each is open, replayed or discarded, and no replay lies there twice. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from chaos.facts import Facts, Letter, RequestRecord, Turn

Place = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterAccount:
    """``replayed``, ``discarded``, ``open``: dead letters. ``replays``: turns that were sent; ``sent_twice``: those
    of which more than one record lies in the request topics. ``problems``: what must not be, in words."""

    letters: int
    open: int
    replayed: int
    discarded: int
    replays: int
    sent_twice: tuple[Turn, ...]
    problems: tuple[str, ...]


def account_letters(facts: Facts) -> LetterAccount:
    """Counts."""
    letters = {(letter.partition, letter.offset): letter for letter in facts.letters}
    sent: dict[Turn, list[RequestRecord]] = defaultdict(list)
    for record in facts.records:
        if record.replay_count and record.attempt == 1 and not record.is_copy:
            sent[record.turn].append(record)
    recorded = {each.turn for each in facts.replayed}
    discarded = {(each.partition, each.offset) for each in facts.discarded}
    states = Counter(_state(place, letter, recorded, discarded) for place, letter in letters.items())
    twice = tuple(turn for turn, records in sent.items() if len(records) > 1)
    problems = [
        f"replay {count} of {request_id} was sent {len(sent[request_id, count])} times" for request_id, count in twice
    ]
    problems += _wrong_records(facts, letters, sent)
    problems += [f"replay {count} of {request_id} is on no record" for request_id, count in sent.keys() - recorded]
    problems += [f"what was discarded is no dead letter: {place}" for place in discarded - letters.keys()]
    problems += [
        f"{place} was discarded, and replayed as well"
        for place in discarded & {(each.partition, each.offset) for each in facts.replayed}
    ]
    return LetterAccount(
        letters=len(letters),
        open=states["open"],
        replayed=states["replayed"],
        discarded=states["discarded"],
        replays=len(sent),
        sent_twice=twice,
        problems=tuple(problems),
    )


def _state(place: Place, letter: Letter, recorded: set[Turn], discarded: set[Place]) -> str:
    # A crash can make two dead letters of one turn: a replay of either is the replay of both.
    if letter.replayed_as in recorded:
        return "replayed"
    return "discarded" if place in discarded else "open"


def _wrong_records(facts: Facts, letters: dict[Place, Letter], sent: dict[Turn, list[RequestRecord]]) -> list[str]:
    """The audit topic's wrong records of replays."""
    problems = []
    seen: set[Turn] = set()
    for each in facts.replayed:
        request_id, count = each.turn
        name = f"replay {count} of {request_id}"
        letter = letters.get((each.partition, each.offset))
        if letter is None or letter.replayed_as != each.turn:
            problems.append(f"{name} is recorded as of {each.partition}:{each.offset}, which is another dead letter")
        places = {(record.topic, record.partition, record.offset) for record in sent.get(each.turn, ())}
        if (each.topic, each.to_partition, each.to_offset) not in places:
            problems.append(f"{name} is not at {each.topic}/{each.to_partition}:{each.to_offset}, where it should be")
        if each.turn in seen:
            problems.append(f"{name} is recorded twice")
        seen.add(each.turn)
    return problems
