"""Whose turn it is and what is in doubt, by the table; and runs that are killed, stopped and started at any moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_producer.dead_letters.audit import (
    LEASE_SECONDS,
    Action,
    AuditIndex,
    AuditRecord,
    Ending,
    IntendedReplay,
    Intent,
    ReplayAudit,
    RunAlive,
    RunEnded,
    RunStarted,
)
from forebay_producer.dead_letters.runs.journal import Journal
from forebay_producer.dead_letters.runs.lease import ACT_SECONDS, HOLD_SECONDS

TOPIC = "forebay.p.requests.low"


def started(run_id: str) -> RunStarted:
    return RunStarted(
        at=1, run_id=run_id, by="me@here", does=Action.REPLAY, dead_letter_topic_id="t", selection="--reason x"
    )


def intent(run_id: str, *letters: int) -> Intent:
    return Intent(
        at=1,
        run_id=run_id,
        by="me@here",
        dead_letter_topic_id="t",
        ttl_ms=None,
        ends={TOPIC: [0]},
        letters=[IntendedReplay(0, letter, f"r-{letter}", 1, None, TOPIC) for letter in letters],
    )


def replayed(run_id: str | None, letter: int) -> ReplayAudit:
    return ReplayAudit(
        at=1,
        by="me@here",
        dead_letter_topic_id="t",
        partition=0,
        offset=letter,
        request_id=f"r-{letter}",
        replay_count=1,
        reason=None,
        topic=TOPIC,
        to_partition=0,
        to_offset=0,
        ttl_ms=None,
        run_id=run_id,
    )


def ended(run_id: str, ending: Ending = Ending.DONE) -> RunEnded:
    return RunEnded(at=1, run_id=run_id, by="me@here", ending=ending, tally={})


def journal_of(*records: AuditRecord, now: float = 0.0) -> Journal:
    journal = Journal()
    for offset, record in enumerate(records):
        journal.add(record, offset=offset, now=now)
    return journal


def doubts(journal: Journal) -> dict[str, list[int]]:
    return {run.run_id: [offset for _, offset in run.doubts] for run in journal.ahead_of("nobody")}


def test_what_was_announced_and_not_recorded_is_in_doubt() -> None:
    journal = journal_of(started("a"), intent("a", 1, 2, 3), replayed("a", 2), replayed(None, 3))
    assert doubts(journal) == {"a": [1, 3]}
    assert journal.in_doubt == 2


def test_what_a_run_said_in_a_topic_that_is_gone_is_in_doubt_ahead_of_all_and_holds_it_not_up() -> None:
    """It was made anew under the run, which remembers its own words with an offset before all others."""
    journal = Journal()
    for record in (started("old"), intent("old", 1, 2), replayed("old", 2)):
        journal.add(record, offset=-1, now=0.0)
    for offset, record in enumerate((started("other"), started("new"))):
        journal.add(record, offset=offset, now=0.0)
    assert [run.run_id for run in journal.ahead_of("new")] == ["old", "other"]
    assert doubts(journal)["old"] == [1]
    held_up_by = journal.holding_up("new", own={"old"}, now=0.0)
    assert held_up_by is not None
    assert held_up_by.run_id == "other"


def test_a_next_intent_says_that_all_of_the_last_one_is_known() -> None:
    assert doubts(journal_of(started("a"), intent("a", 1, 2), replayed("a", 2), intent("a", 3))) == {"a": [3]}


def test_of_a_run_that_has_ended_nothing_is_in_doubt() -> None:
    assert doubts(journal_of(started("a"), intent("a", 1), ended("a"), RunAlive(at=1, run_id="a"))) == {}


def test_an_intent_that_comes_after_its_runs_end_is_in_doubt() -> None:
    journal = journal_of(started("a"), ended("a", Ending.ABANDONED), intent("a", 1))
    assert doubts(journal) == {"a": [1]}


def test_runs_take_turns_in_the_order_of_their_starts_and_the_silent_are_passed() -> None:
    journal = journal_of(started("a"), started("b"), started("c"))

    def holding_up(run_id: str, now: float, own: set[str] | None = None) -> str | None:
        run = journal.holding_up(run_id, own=own or set(), now=now)
        return None if run is None else run.run_id

    assert [holding_up(run_id, 5) for run_id in "abc"] == [None, "a", "a"]
    journal.add(RunAlive(at=1, run_id="b"), offset=3, now=5)
    assert holding_up("c", LEASE_SECONDS - 0.1) == "a"
    assert holding_up("c", LEASE_SECONDS) == "b"
    assert holding_up("b", LEASE_SECONDS) is None
    assert holding_up("b", 1, own={"a"}) is None
    journal.add(ended("a"), offset=4, now=6)
    journal.add(ended("b"), offset=5, now=6)
    assert holding_up("c", 6) is None
    assert [run.run_id for run in journal.ahead_of("c")] == []


# Runs as they are, on a log and a clock of the test's own: each yields where the world may do something to it.

LETTERS = 6
BATCH = 3


@dataclass
class World:
    """The audit topic, the requests, the time."""

    now: float = 0.0
    log: list[AuditRecord] = field(default_factory=list)
    requests: Counter[int] = field(default_factory=Counter)
    names: int = 0


@dataclass
class View:
    """A run's knowledge of the audit topic."""

    journal: Journal = field(default_factory=Journal)
    handled: AuditIndex = field(default_factory=lambda: AuditIndex(topic_id="t"))
    read: int = 0

    def catch_up(self, world: World) -> None:
        for record in world.log[self.read :]:
            self.journal.add(record, offset=self.read, now=world.now)
            self.handled.add(record)
            self.read += 1


class LostError(Exception):
    """The run must enter anew."""


@dataclass
class ReplayProcess:
    """Replays all letters, in the order of `lease` and `replayer`."""

    world: World
    view: View = field(default_factory=View)
    own: set[str] = field(default_factory=set)
    run_id: str = ""
    said_at: float = 0.0

    def run(self) -> Iterator[None]:
        while True:
            try:
                yield from self.enter()
                while letters := [one for one in range(LETTERS) if not self.view.handled.was_replayed_from(0, one)]:
                    yield from self.send(letters[:BATCH])
                self.say(ended(self.run_id))
            except LostError:
                continue
            return

    def say(self, record: AuditRecord) -> None:
        self.require_turn()
        if record.run_id == self.run_id:
            self.said_at = self.world.now
        self.world.log.append(record)

    def require_turn(self) -> None:
        if self.world.now - self.said_at > HOLD_SECONDS:
            raise LostError

    def enter(self) -> Iterator[None]:
        self.own |= {self.run_id}
        self.view.catch_up(self.world)
        self.world.names += 1
        self.run_id = f"run-{self.world.names}"
        self.said_at = self.world.now
        self.say(started(self.run_id))
        yield
        while True:
            looked_at = self.world.now
            self.view.catch_up(self.world)
            yield
            self.require_turn()
            if self.view.journal.holding_up(self.run_id, own=self.own, now=looked_at) is None:
                break
            self.say(RunAlive(at=1, run_id=self.run_id))
        for run in self.view.journal.ahead_of(self.run_id):
            found = [offset for _, offset in run.doubts if self.world.requests[offset]]
            yield
            for offset in found:
                self.say(replayed(run.run_id, offset))
                yield
            self.say(ended(run.run_id, Ending.ABANDONED))
            yield
            self.say(RunAlive(at=1, run_id=self.run_id))
        self.view.catch_up(self.world)

    def send(self, batch: list[int]) -> Iterator[None]:
        self.say(intent(self.run_id, *batch))
        announced_at = self.world.now
        yield
        delivered = []
        for letter in batch:
            if self.world.now - announced_at > ACT_SECONDS:
                break
            self.world.requests[letter] += 1
            delivered.append(letter)
            yield
        for letter in delivered:
            self.say(replayed(self.run_id, letter))
            self.view.handled.add(replayed(self.run_id, letter))
            yield


HAPPENINGS = st.tuples(
    st.integers(0, 2), st.sampled_from([0.1, 0.5, 3.0]), st.integers(1, 20), st.sampled_from(["go on"] * 4 + ["kill"])
)
"""A process, its number of steps and their seconds, while the others stand still; whether it is killed then. A dead one
is started anew."""


@settings(max_examples=300, deadline=None)
@given(st.lists(HAPPENINGS, max_size=12))
def test_each_letter_is_replayed_and_recorded_once_whatever_happens_to_its_runs(
    happenings: list[tuple[int, float, int, str]],
) -> None:
    world = World()
    runs: list[Iterator[None] | None] = [None, None, None]

    def step(number: int, seconds: float) -> None:
        world.now += seconds
        run = runs[number]
        if run is not None and next(run, "over") == "over":
            runs[number] = None
        assert max(world.requests.values(), default=0) <= 1

    for number, seconds, steps, then in happenings:
        runs[number] = runs[number] or ReplayProcess(world).run()
        for _ in range(steps):
            step(number, seconds)
        if then == "kill":
            runs[number] = None
    runs[0] = runs[0] or ReplayProcess(world).run()
    while runs != [None, None, None]:
        for number in range(3):
            step(number, 0.2)
    assert world.requests == Counter(range(LETTERS))
    recorded = Counter(record.offset for record in world.log if isinstance(record, ReplayAudit))
    assert recorded == Counter(range(LETTERS))
