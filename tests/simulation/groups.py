"""Group coordinators of the simulated cluster: the classic protocol with cooperative-sticky assignment, and the
`consumer` protocol (KIP-848). Pure, in virtual time."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError

from simulation.broker import METADATA_BYTES_MAX, Broker, Key

if TYPE_CHECKING:
    from simulation.consumer import GroupConsumer

Commit = dict[Key, tuple[int, str]]
Errors = dict[Key, int | None]


@dataclass(slots=True, eq=False)
class Member:
    """``held``: what the coordinator takes it to own. ``target``: what it should own."""

    id: int
    consumer: GroupConsumer
    epoch: int
    held: set[Key] = field(default_factory=set)
    target: set[Key] = field(default_factory=set)
    joined: bool = False
    join_number: int = 0


class Group:
    """Members, their sessions, and the committed offsets."""

    session_seconds = 10.0
    heartbeat_seconds = 1.0

    def __init__(self, broker: Broker, name: str, topics: list[str]) -> None:
        self.broker = broker
        self.name = name
        self.topics = topics
        self.members: dict[int, Member] = {}
        self.committed: Commit = {}
        self.epoch = 0
        self._ids = count(1)

    def partitions(self) -> list[Key]:
        """All partitions of the group's topics."""
        return [(topic, number) for topic in self.topics for number in range(len(self.broker.topics[topic]))]

    def commit(self, member_id: int | None, epoch: int, offsets: Commit, process_name: str) -> Errors:
        """Checks and stores a commit; the error of each partition."""
        refusal = self._refusal(self.members.get(member_id or 0), epoch)
        rates, random = self.broker.rates, self.broker.random
        if refusal is None and rates.commit_failed and random.random() < rates.commit_failed:
            refusal = random.choice(
                (KafkaError.NOT_COORDINATOR, KafkaError.REBALANCE_IN_PROGRESS, KafkaError.REQUEST_TIMED_OUT)
            )
        if refusal is not None:
            return dict.fromkeys(offsets, refusal)
        partly = rates.commit_partly_failed and random.random() < rates.commit_partly_failed
        written = not rates.commit_failed_but_written or random.random() >= rates.commit_failed_but_written
        errors: Errors = {}
        for key, (offset, metadata) in offsets.items():
            if len(metadata.encode()) > METADATA_BYTES_MAX:
                errors[key] = KafkaError.OFFSET_METADATA_TOO_LARGE
            elif partly and random.random() < 0.5:
                errors[key] = KafkaError.UNKNOWN_TOPIC_OR_PART
            else:
                self.committed[key] = (offset, metadata)
                self.broker.oracle.commits.committed(key, offset, metadata, process_name)
                errors[key] = None if written else KafkaError.REQUEST_TIMED_OUT
        return errors

    def watch(self, member: Member) -> None:
        """Its process may be stopped, cut off or dead from now on: the session may end."""
        since = self.broker.scheduler.now
        last_heartbeat = since - self.broker.random.random() * self.heartbeat_seconds
        self.broker.scheduler.at(last_heartbeat + self.session_seconds, None, self._end_session, member, since)

    def _end_session(self, member: Member, since: float) -> None:
        process = member.consumer.process
        if self.broker.down_until > self.broker.scheduler.now:
            self.broker.scheduler.at(
                self.broker.down_until + self.session_seconds, None, self._end_session, member, since
            )
        elif member.id in self.members and process.unreachable_since is not None and process.unreachable_since <= since:
            self.broker.oracle.ledger.note(f"{self.name}: session of {process.name} ended")
            self.broker.oracle.executions.session_ended(process.name, self.topics)
            self.remove(member.id)

    def expect_no_heartbeat(self, member_id: int) -> None:
        """A client has forgotten that it is this member: its session ends by itself."""
        at = max(self.broker.scheduler.now, self.broker.down_until) + self.session_seconds
        self.broker.scheduler.at(at, None, self._forget, member_id)

    def _forget(self, member_id: int) -> None:
        if member_id in self.members:
            self.broker.oracle.executions.session_ended(self.members[member_id].consumer.process.name, self.topics)
            self.remove(member_id)

    def is_member(self, member_id: int | None) -> bool:
        return member_id in self.members

    def _refusal(self, member: Member | None, epoch: int) -> int | None:
        raise NotImplementedError

    def join(self, consumer: GroupConsumer, number: int, member_id: int | None, held: set[Key]) -> None:
        raise NotImplementedError

    def remove(self, member_id: int) -> None:
        raise NotImplementedError

    def heartbeat(self, member_id: int, held: set[Key] | None) -> None:
        raise NotImplementedError

    def topic_grew(self) -> None:
        """A topic has more partitions."""
        raise NotImplementedError

    def _balanced(self, held: dict[int, set[Key]]) -> dict[int, set[Key]]:
        """Sticky and balanced: who should own what."""
        everything = self.partitions()
        members = sorted(held)
        wanted: dict[int, set[Key]] = {member: set() for member in members}
        if not members:
            return wanted
        least, extra = divmod(len(everything), len(members))
        taken: set[Key] = set()
        most = dict.fromkeys(members, least)
        for member in sorted(members, key=lambda each: (-len(held[each]), each))[:extra]:
            most[member] += 1
        for member in members:
            for key in sorted(held[member]):
                if key not in taken and len(wanted[member]) < most[member]:
                    wanted[member].add(key)
                    taken.add(key)
        for key in everything:
            if key not in taken:
                member = min(members, key=lambda each: (len(wanted[each]) - most[each], each))
                wanted[member].add(key)
        return wanted


class ClassicGroup(Group):
    """Everyone joins anew at each rebalance; what moves is revoked in one round and given in the next."""

    def __init__(self, broker: Broker, name: str, topics: list[str]) -> None:
        super().__init__(broker, name, topics)
        self._state = "stable"

    def _refusal(self, member: Member | None, epoch: int) -> int | None:
        if member is None:
            return KafkaError.UNKNOWN_MEMBER_ID
        if epoch != self.epoch:
            return KafkaError.ILLEGAL_GENERATION
        return KafkaError.REBALANCE_IN_PROGRESS if self._state == "completing" else None

    def join(self, consumer: GroupConsumer, number: int, member_id: int | None, held: set[Key]) -> None:
        if member_id is None:
            member = Member(next(self._ids), consumer, self.epoch)
            self.members[member.id] = member
            if not self.broker.is_reachable(consumer.process):
                self.watch(member)
        elif member_id in self.members:
            member = self.members[member_id]
        else:
            consumer.connection.reply(consumer.fenced, member_id)
            return
        member.held, member.join_number = set(held), number
        if self._state != "preparing":
            self._prepare()
        member.joined = True
        self._complete_when_all_joined()

    def remove(self, member_id: int) -> None:
        member = self.members.pop(member_id)
        if member.joined:
            member.consumer.connection.reply(member.consumer.join_failed, member.join_number, member_id)
        if self._state == "preparing":
            self._complete_when_all_joined()
        else:
            self._prepare()

    def topic_grew(self) -> None:
        if self._state != "preparing":
            self._prepare()

    def heartbeat(self, member_id: int, held: set[Key] | None) -> None:
        """``held``: the member's partitions now; None while it still carries out the last order."""

    def _prepare(self) -> None:
        self._state = "preparing"
        random = self.broker.random
        for member in self.members.values():
            member.joined = False
            member.consumer.connection.reply(
                member.consumer.rebalance_begins,
                member.id,
                self.epoch,
                slow_seconds=random.random() * self.heartbeat_seconds,
            )

    def _complete_when_all_joined(self) -> None:
        if not self.members or not all(member.joined for member in self.members.values()):
            return
        self.epoch += 1
        self._state = "completing"
        wanted = self._balanced({member.id: member.held for member in self.members.values()})
        owner = {key: member.id for member in self.members.values() for key in member.held}
        for member in self.members.values():
            member.joined = False
            member.target = {key for key in wanted[member.id] if owner.get(key, member.id) == member.id}
            member.consumer.connection.reply(member.consumer.joined, member.join_number, member.id, self.epoch)
        self.broker.scheduler.later(0.002 + 0.05 * self.broker.random.random(), None, self._sync, self.epoch)

    def _sync(self, epoch: int) -> None:
        if epoch != self.epoch:
            return
        if self._state == "completing":
            self._state = "stable"
        for member in self.members.values():
            if not member.joined:
                member.consumer.connection.reply(member.consumer.assigned_target, member.id, epoch, set(member.target))


class ConsumerGroup(Group):
    """The coordinator decides. Each member gets its partitions in its own heartbeats, and a partition moves once it was
    released."""

    session_seconds = 45.0
    heartbeat_seconds = 5.0

    def _refusal(self, member: Member | None, epoch: int) -> int | None:
        if member is None:
            return KafkaError.UNKNOWN_MEMBER_ID
        return KafkaError.STALE_MEMBER_EPOCH if epoch != member.epoch else None

    def join(self, consumer: GroupConsumer, number: int, member_id: int | None, held: set[Key]) -> None:
        assert member_id is None, "members of this protocol join once"
        assert not held
        member = Member(next(self._ids), consumer, 0)
        self.members[member.id] = member
        if not self.broker.is_reachable(consumer.process):
            self.watch(member)
        self._retarget()
        consumer.connection.reply(consumer.joined, number, member.id, 0)
        self.heartbeat(member.id, set())

    def remove(self, member_id: int) -> None:
        del self.members[member_id]
        self._retarget()

    def topic_grew(self) -> None:
        self._retarget()

    def heartbeat(self, member_id: int, held: set[Key] | None) -> None:
        """``held``: the member's partitions now; None while it still carries out the last order."""
        member = self.members.get(member_id)
        if member is None:
            return
        if held is not None:
            # What it was told to let go of, and no longer names, is free.
            member.held = {key for key in member.held if key in member.target or key in held}
            if member.held <= member.target:
                taken = {key for other in self.members.values() if other is not member for key in other.held}
                member.epoch = self.epoch
                member.held |= {key for key in member.target if key not in taken}
        member.consumer.connection.reply(
            member.consumer.assigned_target, member.id, member.epoch, member.held & member.target
        )

    def _retarget(self) -> None:
        self.epoch += 1
        for member_id, target in self._balanced({each.id: each.held for each in self.members.values()}).items():
            self.members[member_id].target = target
