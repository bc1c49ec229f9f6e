"""Workers that share a backend, each with its own view, over one ordered log that each reads to the end. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from forebay_schemas.contract.coordination import Capacity
from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_worker.pacing.slots.sharing import Own, Sharing

HIGH, MID, LOW = TIERS
BACKEND = "127.0.0.1:8000"
TICK = 0.05


@dataclass(eq=False)
class Member:
    """A worker: what waits in it, what runs, and how far it has read."""

    name: str
    sharing: Sharing
    limit: float
    wanted: dict[Tier, int] = field(default_factory=dict)
    running: int = 0
    read: int = 0
    reads_again_at: float = 0.0
    draining: bool = False
    cut_off: bool = False
    cuts: int = 0
    dropped: int = 0
    cut_to: list[float] = field(default_factory=list)

    @property
    def waiting(self) -> int:
        return sum(self.wanted.values())


class SharingStage:
    """Moves time on in small ticks. Requests run until `end` or `ends_share` of them in each tick."""

    def __init__(
        self, *, limit: int = 20, seed: int = 1, delay_seconds: float = 0.03, ends_share: float = 0.05
    ) -> None:
        self.now = 1000.0
        self.limit = limit
        self.random = Random(seed)
        self.delay_seconds = delay_seconds
        self.ends_share = ends_share
        self.topic: list[tuple[float, Capacity]] = []
        self.members: list[Member] = []
        self.gone: list[Member] = []
        self.most = 0
        self.pending: list[tuple[float, Member, Capacity]] = []

    def add(self, name: str, *, limit: int | None = None, limit_max: int = 256, **wanted: int) -> Member:
        sharing = Sharing(
            worker=name,
            backend=BACKEND,
            minimum={MID: 0.05, LOW: 0.01},
            reserve_share=0.0,
            incarnation=int(1000 * self.now),
            limit_min=1,
            limit_max=limit_max,
        )
        member = Member(name, sharing, limit or self.limit, {Tier(tier): number for tier, number in wanted.items()})
        self.members.append(member)
        return member

    def kill(self, member: Member) -> None:
        """Its requests end with it."""
        self.members.remove(member)
        self.gone.append(member)

    def run(self, seconds: float, check: Callable[[], Any] = lambda: None) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += TICK
            self._write()
            for member in self.members:
                self._turn(member)
            self.most = max(self.most, self.in_flight - self.limit)
            check()

    @property
    def in_flight(self) -> int:
        return sum(member.running for member in self.members)

    def _write(self) -> None:
        for due in [each for each in self.pending if each[0] <= self.now and not each[1].cut_off]:
            self.pending.remove(due)
            self.topic.append((self.now, due[2]))
            due[1].sharing.delivered()

    def _turn(self, member: Member) -> None:
        if not member.cut_off and member.reads_again_at <= self.now:
            for at, capacity in self.topic[member.read :]:
                cut = member.sharing.receive(capacity, now=self.now, age_seconds=self.now - at)
                if cut is not None:
                    member.cut_to.append(cut)
            member.read = len(self.topic)
            member.reads_again_at = self.now + self.delay_seconds * self.random.random()
        member.running -= sum(self.random.random() < self.ends_share for _ in range(member.running))
        own = Own(
            limit_requests=member.limit,
            in_flight=member.running,
            wanted=self._wanted(member),
            cuts_total=member.cuts,
            dropped_total=member.dropped,
            draining=member.draining,
        )
        said = member.sharing.step(self.now, int(1000 * self.now), own)
        if said is not None:
            written = [at for at, other, _ in self.pending if other is member]
            at = max([self.now + self.delay_seconds * self.random.random(), *written])
            self.pending.append((at, member, said))
        if not member.draining:
            member.running += max(
                0, min(member.sharing.share_requests - member.running, member.waiting - member.running)
            )

    def _wanted(self, member: Member) -> dict[Tier, int]:
        """The test's demand, and what runs beyond it."""
        wanted, over = dict(member.wanted), member.running - member.waiting
        if over > 0:
            wanted[LOW] = wanted.get(LOW, 0) + over
        return wanted

    def shares(self) -> list[int]:
        return [member.sharing.share_requests for member in self.members]
