"""A partition that goes from owner to owner at random: nothing is lost, and no death is charged wrongly."""

from __future__ import annotations

import random

import msgspec
import pytest

from forebay_schemas.contract.coordination import LEASE_SECONDS, RENEW_SECONDS, Notice
from forebay_schemas.contract.offsets_metadata import decode_metadata
from forebay_worker.partition.assignment import CONVICTED_CRASHES, Verdict
from forebay_worker.partition.claims import SUSPECT_CRASHES
from forebay_worker.partition.notices import KEPT_SECONDS, RecentNotices
from simulated.owners import (
    BEGAN,
    FINISHED,
    LAST_COMMIT,
    OFFSETS,
    RELEASED,
    RUNNING,
    finish,
    finished_in,
    metadata_of,
    says,
)
from simulated.works import make_assignment


class Owners:
    """A partition goes from owner to owner, by deaths and by releases; former owners finish, give back, or die.

    ``deaths``: for each offset, the number of workers that died after they had started it. ``died_alone``: offsets that
    were running when a worker died that ran nothing else. ``durable``: the outcomes. ``known``: those of them that an
    owner can know of, by a commit or a notice that is not too old.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = BEGAN
        self.durable: set[int] = set()
        self.deaths = dict.fromkeys(range(OFFSETS), 0)
        self.died_alone: set[int] = set()
        self.convicted: set[int] = set()
        self.group: tuple[int | None, str] = (None, "")
        self.notices = RecentNotices()
        self.said: list[tuple[float, Notice]] = []
        self.formers: list[set[int]] = []
        self.take_over()

    def take_over(self) -> None:
        committed, text = self.group
        metadata = decode_metadata(committed or 0, text)
        assert metadata is not None
        self.owner = make_assignment(committed=committed, metadata=metadata, now=self.now)
        self.notices.apply_to(self.owner, self.now)
        self.known = finished_in((committed or 0, text))
        for at, notice in self.said:
            if notice.kind is FINISHED and at >= self.now - KEPT_SECONDS:
                self.known.update(notice.offsets)
            if notice.committed is not None and at >= self.now - LEASE_SECONDS:
                self.known |= finished_in((notice.committed, notice.metadata or ""))
        self.read_to = self.owner.offsets.next_offset or 0
        self.waiting: set[int] = set()
        self.withheld: set[int] = set()
        self.started: set[int] = set()
        self.lowest = committed or 0

    def say(self, notice: Notice) -> None:
        """On the coordination topic; the owner hears it at once."""
        notice = msgspec.structs.replace(notice, topic=self.owner.topic)
        self.notices.receive(notice, self.now)
        self.said.append((self.now, notice))
        self.owner.apply(notice, self.now)
        self.look_at_withheld()

    def look_at_withheld(self) -> None:
        released = {offset for offset in self.withheld if not self.owner.is_withheld(offset)}
        self.withheld -= released
        self.waiting.update(offset for offset in released if not self.owner.is_finished(offset))

    def receive(self) -> None:
        if self.read_to == OFFSETS:
            return
        offset, self.read_to = self.read_to, self.read_to + 1
        match self.owner.receive(offset):
            case Verdict.RUN:
                assert offset not in self.known
                self.waiting.add(offset)
            case Verdict.WITHHOLD:
                self.withheld.add(offset)
            case Verdict.SKIP:
                assert offset in self.durable, "lost"

    def claim(self) -> None:
        if not self.waiting:
            return
        offset = self.random.choice(sorted(self.waiting))
        assert not any(offset in former for former in self.formers), "a former owner runs it, and says so"
        claims, crashes = self.owner.claims, self.owner.crashes_of(offset)
        if claims.alone is not None or claims.may_say_alone or (crashes >= SUSPECT_CRASHES and claims.running()):
            return
        assert claims.claim(offset)
        self.waiting.remove(offset)
        if crashes >= CONVICTED_CRASHES:
            assert offset in self.died_alone, "an innocent is convicted"
            self.convicted.add(offset)
            self.durable.add(offset)
            finish(self.owner, offset)
            return
        self.started.add(offset)
        if crashes == SUSPECT_CRASHES:
            claims.try_alone(offset)

    def end(self) -> None:
        if not self.owner.claims.running():
            return
        offset = self.random.choice(self.owner.claims.running())
        if self.owner.claims.alone == offset:
            self.owner.claims.end_alone()
            self.owner.acquitted.append(offset)
        if self.random.random() < 0.5:
            self.durable.add(offset)
            finish(self.owner, offset)
        else:
            self.owner.claims.release(offset)
            self.waiting.add(offset)

    def commit(self) -> None:
        commit = self.owner.commit()
        if commit is not None:
            self.group = commit
            self.owner.acknowledge(commit, says_alone=self.owner.says_alone)

    def die(self) -> None:
        running = self.owner.claims.running()
        if len(running) == 1:
            self.died_alone.update(running)
        for offset in self.started:
            self.deaths[offset] += 1
        self.take_over()

    def let_go(self) -> None:
        running, commit = self.owner.close()
        if commit is not None:
            if self.random.random() < 0.5:
                self.group = commit
            else:
                last = Notice(
                    kind=LAST_COMMIT, worker="w", topic="", partition=0, committed=commit[0], metadata=commit[1]
                )
                self.say(last)
        if running:
            self.formers.append(set(running))
            self.say(says(RUNNING, *running))
        self.take_over()

    def former_owner_ends(self) -> None:
        if not self.formers:
            return
        former = self.random.choice(self.formers)
        offset = self.random.choice(sorted(former))
        match self.random.choice(["finished", "given back", "died"]):
            case "finished":
                former.remove(offset)
                self.durable.add(offset)
                self.known.add(offset)
                self.say(says(FINISHED, offset))
            case "given back":
                former.remove(offset)
                self.say(says(RELEASED, offset))
            case _:
                for each in former:
                    self.deaths[each] += 1
                former.clear()
        self.formers = [each for each in self.formers if each]

    def time_passes(self) -> None:
        self.now += RENEW_SECONDS
        for former in self.formers:
            self.say(says(RUNNING, *sorted(former)))
        self.owner.end_leases(self.now)
        self.look_at_withheld()

    def commits_at_the_lowest_without_an_outcome_and_never_lower(self) -> None:
        commit = self.owner.commit()
        if commit is None:
            return
        assert commit[0] <= min(set(range(OFFSETS + 1)) - self.durable)
        assert commit[0] >= self.lowest
        self.lowest = commit[0]
        assert finished_in(commit) <= self.durable
        metadata = metadata_of(commit)
        claims = self.owner.claims
        assert {offset for offset, _ in metadata.running} == set(claims.running())
        assert claims.alone is None or claims.running() == (claims.alone,)

    def charges_nobody_for_deaths_that_were_none_of_its_own(self) -> None:
        for offset, deaths in self.deaths.items():
            assert self.owner.crashes_of(offset) <= deaths

    def step(self) -> None:
        steps = [self.receive] * 3 + [self.claim] * 3 + [self.end, self.commit, self.let_go] * 2
        steps += [self.former_owner_ends] * 2 + [self.time_passes, self.die]
        self.random.choice(steps)()
        self.commits_at_the_lowest_without_an_outcome_and_never_lower()
        self.charges_nobody_for_deaths_that_were_none_of_its_own()

    def end_well(self) -> None:
        """Nobody dies any more."""
        for _ in range(200):
            if len(self.durable) == OFFSETS:
                break
            self.receive()
            self.claim()
            self.end()
            self.former_owner_ends()
            self.time_passes()


@pytest.mark.parametrize("seed", range(3))
def test_whoever_dies_and_whoever_lets_go_nothing_is_lost_and_nobody_is_charged_wrongly(seed: int) -> None:
    for number in range(80):
        owners = Owners(seed * 1_000 + number)
        for _ in range(60):
            owners.step()
        owners.end_well()
        assert len(owners.durable) == OFFSETS, "stuck"
