"""The account of cancels and expedites: the orders, the state of their requests, and whether workers obeyed. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from enum import StrEnum

from chaos.acts import Ask
from chaos.facts import Asked, Execution, Facts, Outcome, Turn
from chaos.ledger import Judge

HEEDED_MS = 5_000
"""Time after a cancel from which on no worker starts the request any more, unless it was cut off."""

SLACK_MS = 100
"""A request that the engine notes so shortly after its `cancelled` outcome was sent before it."""


class Met(StrEnum):
    """State of a request when a cancel or expedite arrives."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderAccount:
    """``asked``: by what was asked and what it met.

    ``cancelled``: turns whose outcome that is. ``expedited``: turns with a copy in the high tier; ``copied_twice``:
    those with more copies of an attempt than originals. ``late_starts``: executions of a request after its cancel, by a
    worker that was cut off. ``problems``: in words, executions after a cancel that nothing explains, and what workers
    said that they did and is not so.
    """

    asked: dict[Ask, dict[Met, int]]
    cancelled: int
    expedited: int
    copied_twice: int
    late_starts: int
    problems: tuple[str, ...]


def account_orders(facts: Facts) -> OrderAccount:
    """Counts."""
    judge = Judge(facts)
    executions: dict[Turn, list[Execution]] = defaultdict(list)
    for execution in facts.executions:
        executions[execution.turn].append(execution)
    first: dict[Turn, Outcome] = {}
    for outcome in sorted(facts.outcomes, key=lambda each: each.at_ms):
        first.setdefault(outcome.turn, outcome)
    copies = Counter((record.turn, record.attempt) for record in facts.records if record.is_copy)
    originals = Counter((record.turn, record.attempt) for record in facts.records if not record.is_copy)
    asked: dict[Ask, Counter[Met]] = {ask: Counter() for ask in Ask}
    for order in facts.asked:
        asked[order.ask][_met(order, executions, first)] += 1
    late = _late_starts(facts, executions, first)
    unexplained = [each for each, since_ms in late if not judge.is_cut_off(each.worker, since_ms, each.started_ms)]
    problems = [
        f"{each.request_id} attempt {each.attempt} was started by {each.worker} after it was cancelled"
        for each in unexplained
    ]
    problems += _untrue(facts)
    return OrderAccount(
        asked={ask: dict(sorted(counts.items())) for ask, counts in asked.items()},
        cancelled=sum(outcome.status == "cancelled" for outcome in first.values()),
        expedited=len({turn for turn, _ in copies}),
        copied_twice=sum(count > max(1, originals[key]) for key, count in copies.items()),
        late_starts=len(late) - len(unexplained),
        problems=tuple(problems),
    )


def _met(order: Asked, executions: dict[Turn, list[Execution]], first: dict[Turn, Outcome]) -> Met:
    turn = (order.request_id, 0)
    at_ms = order.at_ms
    if turn in first and first[turn].at_ms <= at_ms:
        return Met.ENDED
    runs = any(each.started_ms <= at_ms <= each.ended_ms for each in executions[turn])
    return Met.RUNNING if runs else Met.WAITING


def _late_starts(
    facts: Facts, executions: dict[Turn, list[Execution]], first: dict[Turn, Outcome]
) -> list[tuple[Execution, int]]:
    """Executions that began after the request's `cancelled` outcome, or long after its cancel; and since when that was
    known."""
    submitted: dict[str, dict[Turn, int]] = defaultdict(dict)
    for record in facts.records:
        if record.attempt == 1 and not record.is_copy:
            turns = submitted[record.request_id]
            turns[record.turn] = max(record.written_ms, turns.get(record.turn, 0))
    since: dict[Turn, int] = {}
    for order in facts.asked:
        if order.ask is Ask.EXPEDITE:
            continue
        for turn, written_ms in submitted[order.request_id].items():
            # A cancel means what was submitted before it.
            if written_ms > order.at_ms:
                continue
            known_ms = order.at_ms + HEEDED_MS
            if turn in first and first[turn].status == "cancelled":
                known_ms = min(known_ms, first[turn].at_ms + SLACK_MS)
            since[turn] = min(known_ms, since.get(turn, known_ms))
    return [(each, at_ms) for turn, at_ms in since.items() for each in executions[turn] if each.started_ms > at_ms]


def _untrue(facts: Facts) -> list[str]:
    """Workers' answers that are not true."""
    copied = {record.request_id for record in facts.records if record.is_copy}
    cancelled = {outcome.request_id for outcome in facts.outcomes if outcome.status == "cancelled"}
    problems = []
    for order in facts.asked:
        if order.answer == "cancelled" and order.request_id not in cancelled:
            problems.append(f"{order.request_id} was cancelled, a worker says, and has no such outcome")
        if order.answer == "expedited" and order.request_id not in copied:
            problems.append(f"{order.request_id} was expedited, a worker says, and has no copy in the high tier")
    return problems
