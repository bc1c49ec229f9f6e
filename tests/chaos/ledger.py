"""The ledger of a run: what was lost, and what ran more than once and why. Pure.

An execution beyond the first of the same attempt needs a reason, and only these are known: its worker was killed while
it ran, or before the outcome was committed; it was silent for as long as its session lasts; or the hand-over went
unheard because of such a thing. Or a worker that was to expedite it had copied it, and could not commit that the
original is done. What had its outcome on the results topic when its worker was killed is not run again, unless that
worker or the one that runs it again was out of reach. All else is unexplained. What the engine refused, cut or left
hanging did not run, and a later attempt or a replay is no repetition.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from enum import StrEnum

from chaos.facts import End, Execution, Facts, Life, RequestRecord, Trouble, Turn, Window
from chaos.plan import SLOTS

ANSWER_MS = 100
"""An answer that left the engine so shortly before a kill may not have reached the worker."""

COMMIT_MS = 2_000
"""Longer than a result and the commit after it take, unless something is wrong with a broker or the link."""

SESSION_MS = 8_000
"""The session is 10 s, counted from the last heartbeat that got through."""

AFTERMATH_MS = 15_000
"""Time after a broker went or came, or a link was mended, in which coordinators may still move, load, or rebalance."""

LEARNING_MS = 2_000
"""Time after a silence in which a worker may not know yet that its partitions were lost."""

GOING_ON_MS = 500
"""Time after a stop in which a worker starts only requests that it had taken before."""

JOINED_MS = 1_000
"""Two silences with no longer a time between them are one: a heartbeat may not have got through."""


EARLY_MS = 10
"""A worker reads its two clocks one after the other, so far apart at most."""


class Cause(StrEnum):
    """The cause of a repeated execution."""

    IN_FLIGHT_AT_KILL = "in_flight_at_kill"
    SINCE_LAST_COMMIT = "since_last_commit"
    HANDED_OVER = "handed_over"
    CUT_OFF = "cut_off"
    COPIED_NOT_COMMITTED = "copied_not_committed"
    UNEXPLAINED = "unexplained"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """An execution that was followed by another one of the same attempt of the same turn."""

    request_id: str
    replay_count: int
    attempt: int
    cause: Cause
    first: Execution
    second: Execution
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """``lost``: accepted or replayed, and without an outcome. ``outcomes``: of what was accepted; ``replay_outcomes``:
    of its replays. ``doubled_outcomes``: those beyond the first of a turn, of whatever cause. ``early``: retries that
    were run before they were due."""

    accepted: int
    lost: tuple[str, ...]
    outcomes: dict[str, int]
    replay_outcomes: dict[str, int]
    doubled_outcomes: int
    repetitions: tuple[Repetition, ...]
    early: tuple[str, ...]

    def count(self, cause: Cause) -> int:
        return sum(repetition.cause is cause for repetition in self.repetitions)


def make_ledger(facts: Facts) -> Ledger:
    """Counts."""
    outcomes: dict[Turn, str] = {}
    for outcome in sorted(facts.outcomes, key=lambda each: each.at_ms):
        outcomes.setdefault(outcome.turn, f"{outcome.status}/{outcome.reason}")
    accepted = {(request_id, 0) for request_id in facts.accepted}
    replays = {record.turn for record in facts.records if record.replay_count}
    lost = [_name(turn) for turn in (accepted | replays) - outcomes.keys()]
    lost += facts.undecodable - {letter.key for letter in facts.letters}
    return Ledger(
        accepted=len(facts.accepted) + len(facts.undecodable),
        lost=tuple(sorted(lost)),
        outcomes=dict(Counter(what for turn, what in outcomes.items() if turn in accepted)),
        replay_outcomes=dict(Counter(what for turn, what in outcomes.items() if turn in replays)),
        doubled_outcomes=len(facts.outcomes) - len(outcomes),
        repetitions=tuple(_repetitions(facts)),
        early=tuple(_early(facts)),
    )


def _name(turn: Turn) -> str:
    request_id, replay_count = turn
    return f"{request_id} replay {replay_count}" if replay_count else request_id


def _early(facts: Facts) -> list[str]:
    due: dict[tuple[Turn, int], int] = {}
    for record in facts.records:
        key = (record.turn, record.attempt)
        due[key] = min(record.due_ms, due.get(key, record.due_ms))
    return [
        f"{_name(each.turn)} attempt {each.attempt} by {early_ms} ms"
        for each in facts.executions
        if each.attempt > 1 and (early_ms := due[each.turn, each.attempt] - each.started_ms) > EARLY_MS
    ]


def _repetitions(facts: Facts) -> list[Repetition]:
    places: dict[tuple[Turn, int], list[RequestRecord]] = defaultdict(list)
    for record in facts.records:
        places[record.turn, record.attempt].append(record)
    ran: dict[tuple[Turn, int], list[Execution]] = defaultdict(list)
    for execution in facts.executions:
        if execution.ran:
            ran[execution.turn, execution.attempt].append(execution)
    judge = Judge(facts)
    return [
        repetition
        for key, executions in ran.items()
        for repetition in _repetitions_of(sorted(executions, key=lambda each: each.started_ms), places[key], judge)
    ]


def _repetitions_of(executions: list[Execution], places: list[RequestRecord], judge: Judge) -> list[Repetition]:
    """Repetitions of one attempt of one turn.

    A request that was submitted twice may run twice; so may one whose earlier attempt ran twice, which is counted
    there. A copy in the high tier is no second request: it or the original runs.
    """
    heads = executions[: max(1, sum(not place.is_copy for place in places))]
    found = []
    for second in executions[len(heads) :]:
        # Which of the records it repeats is not known: one that it has a reason to, if there is one.
        judged = [(judge.cause(first, second, places), first) for first in heads]
        (cause, why), first = min(judged, key=lambda each: each[0][0] is Cause.UNEXPLAINED)
        heads[heads.index(first)] = second
        found.append(
            Repetition(
                request_id=first.request_id,
                replay_count=first.replay_count,
                attempt=first.attempt,
                cause=cause,
                first=first,
                second=second,
                why=why,
            )
        )
    return found


class Judge:
    """Knows when which worker was in trouble, and what was committed."""

    def __init__(self, facts: Facts) -> None:
        self._commits = facts.commits
        self._lives = {life.worker: life for life in facts.lives}
        self._windows = sorted(facts.windows, key=lambda window: window.start_ms)
        self._end_ms = facts.end_ms
        self._outcomes: dict[Turn, int] = {}
        for outcome in facts.outcomes:
            self._outcomes[outcome.turn] = min(outcome.at_ms, self._outcomes.get(outcome.turn, outcome.at_ms))
        self._troubles = {slot: self._spans_of(slot) for slot in range(1, SLOTS + 1)}
        self._waits = self._waits_of_groups()

    def cause(self, first: Execution, second: Execution, places: list[RequestRecord]) -> tuple[Cause, str]:
        """The cause for which ``second`` repeats ``first``, and its words. ``places``: of the request, for this
        attempt."""
        if self._covered(places, second.started_ms):
            return Cause.UNEXPLAINED, "a commit seen before it was repeated says that it is finished"
        cause, why = self._cause_of_worker(first, second)
        if cause is Cause.UNEXPLAINED:
            for copy in places:
                if copy.is_copy and self._troubled(copy.written_ms, copy.written_ms + COMMIT_MS):
                    return Cause.COPIED_NOT_COMMITTED, "it was expedited, and that could not be committed then"
        return cause, why

    def is_cut_off(self, worker: str, start_ms: int, end_ms: int) -> bool:
        """Whether a worker may not have known in that time of the loss of its partitions."""
        slot = self._lives[worker].slot
        return _touches(self._troubles[slot], start_ms, end_ms)

    def _troubled(self, start_ms: int, end_ms: int) -> bool:
        """Whether a fault may have kept a worker from committing then."""
        return _touches(self._waits + [span for spans in self._troubles.values() for span in spans], start_ms, end_ms)

    def _cause_of_worker(self, first: Execution, second: Execution) -> tuple[Cause, str]:
        life = self._lives[first.worker]
        killed = life.signalled_ms if life.end is End.KILLED else None
        if killed is not None and killed <= second.started_ms + ANSWER_MS:
            outcome_ms = self._outcomes.get(first.turn)
            if outcome_ms is not None and outcome_ms <= killed and self._is_plain_kill(first, second, killed):
                return Cause.UNEXPLAINED, f"its outcome was there {killed - outcome_ms} ms before its worker was killed"
            # A busy engine may note the start after the kill: nobody dead can have sent it.
            if first.ended_ms >= killed - ANSWER_MS:
                return Cause.IN_FLIGHT_AT_KILL, "its worker was killed while it ran"
            if killed - first.ended_ms <= COMMIT_MS:
                return Cause.SINCE_LAST_COMMIT, "its worker was killed right after it"
        silent = self._silent_ms(life, first.started_ms, second.started_ms)
        if silent >= SESSION_MS:
            return Cause.CUT_OFF, f"its worker was silent for {silent} ms"
        if self._was_being_sent(second):
            return Cause.CUT_OFF, "another worker had it in hand when it was stopped, and sent it when it went on"
        if killed is not None and killed <= second.started_ms + ANSWER_MS:
            spans = self._troubles[life.slot] + [span for span in self._waits if span[0] < killed]
            if _touches(spans, first.ended_ms, killed):
                return Cause.SINCE_LAST_COMMIT, "its worker was killed after it, and could not commit before"
            return Cause.UNEXPLAINED, f"its worker was killed {killed - first.ended_ms} ms after it"
        if _touches(self._troubles[life.slot], first.started_ms, second.started_ms):
            if second.started_ms < first.ended_ms:
                return Cause.HANDED_OVER, "the hand-over went unheard: brokers or links were in trouble"
            return Cause.SINCE_LAST_COMMIT, "not committed before the partition moved: brokers or links were in trouble"
        return Cause.UNEXPLAINED, "nothing happened to its worker"

    def _is_plain_kill(self, first: Execution, second: Execution, killed_ms: int) -> bool:
        """Whether both workers reached the brokers all the time: its partition did not move before the kill without a
        hand-over, and after it nothing kept its new owner from looking through the results."""
        return not self.is_cut_off(first.worker, first.started_ms, killed_ms) and not self.is_cut_off(
            second.worker, killed_ms, second.started_ms
        )

    def _was_being_sent(self, second: Execution) -> bool:
        """Whether its worker has just gone on after a stop beyond its session. Nothing new starts then, but requests
        are sent that were about to be sent at the stop."""
        slot = self._lives[second.worker].slot
        return any(
            window.trouble is Trouble.STOPPED
            and slot in window.slots
            and window.end_ms is not None
            and window.end_ms - window.start_ms >= SESSION_MS
            and -ANSWER_MS <= second.started_ms - window.end_ms <= GOING_ON_MS
            for window in self._windows
        )

    def _covered(self, places: list[RequestRecord], before_ms: int) -> bool:
        """Whether every record of it was seen committed as finished."""
        return bool(places) and all(
            any(
                commit.covers(place.offset)
                for commit in self._commits.get((place.topic, place.partition), [])
                if commit.at_ms < before_ms
            )
            for place in places
        )

    def _silent_ms(self, life: Life, start_ms: int, end_ms: int) -> int:
        """The longest time that touches the span and in which heartbeats may not have got through."""
        longest = 0
        merged: tuple[int, int] | None = None
        for window in self._windows:
            if window.trouble not in (Trouble.STOPPED, Trouble.LINK) or life.slot not in window.slots:
                continue
            start, end = window.start_ms, self._end_of(window)
            if start > end_ms or end + LEARNING_MS < start_ms:
                continue
            joined = merged is not None and start <= merged[1] + JOINED_MS
            merged = (merged[0], max(merged[1], end)) if merged is not None and joined else (start, end)
            longest = max(longest, merged[1] - merged[0])
        return longest

    def _spans_of(self, slot: int) -> list[tuple[int, int]]:
        """Times at which commits and hand-overs of this slot's workers may not have arrived."""
        spans = []
        for window in self._windows:
            end = self._end_of(window)
            if slot not in window.slots or window.trouble is Trouble.BACKEND:
                continue
            if window.trouble is Trouble.BROKER:
                # In between the other two carry on.
                spans += [(window.start_ms, min(end, window.start_ms + AFTERMATH_MS)), (end, end + AFTERMATH_MS)]
            else:
                spans.append((window.start_ms, end + AFTERMATH_MS))
        return spans

    def _waits_of_groups(self) -> list[tuple[int, int]]:
        """Times at which commits may have waited for a silent member of the group.

        A rebalance waits for it until its session ends, and the others' further requests to the coordinator wait behind
        their own wish to join: it is one connection, answered in order.
        """
        silenced = [life.signalled_ms for life in self._lives.values() if life.end is End.KILLED]
        silenced += [window.start_ms for window in self._windows if window.trouble is Trouble.STOPPED]
        return [(at, at + AFTERMATH_MS) for at in silenced if at is not None]

    def _end_of(self, window: Window) -> int:
        return self._end_ms if window.end_ms is None else window.end_ms


def _touches(spans: list[tuple[int, int]], start_ms: int, end_ms: int) -> bool:
    return any(start <= end_ms and end >= start_ms for start, end in spans)
