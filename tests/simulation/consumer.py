"""Simulated consumers: a group's member and a follower of one topic, with the interfaces of confluent-kafka's Consumer.

Blocking calls block the calling thread in virtual time; callbacks are called inside `poll` and `close` alone.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from confluent_kafka import OFFSET_STORED, KafkaError, KafkaException, TopicPartition

from simulated.ports import PartitionAnswer
from simulation.broker import Broker, Connection, Key
from simulation.groups import ConsumerGroup, Errors, Group
from simulation.readings import Readings
from simulation.scheduler import Process, Thread

SOCKET_TIMEOUT_SECONDS = 60.0
_NO_MEMBER = frozenset({KafkaError.UNKNOWN_MEMBER_ID, KafkaError.FENCED_MEMBER_EPOCH})


class GroupConsumer:
    """A member of a group."""

    def __init__(self, *, broker: Broker, process: Process, group: Group, on_commit: Any) -> None:
        self.process = process
        self.connection = Connection(broker, process)
        self._broker = broker
        self._scheduler = broker.scheduler
        self._random = broker.random
        self._group = group
        self._on_commit = on_commit
        self._on_assign: Any = None
        self._on_revoke: Any = None
        self._on_lost: Any = None
        self._member_id: int | None = None
        self._epoch = 0
        self._old_epoch = -1
        self._owned: set[Key] = set()
        self._being_given: set[Key] = set()
        self._readings = Readings(broker=broker, process=process, group=group, data_came=self._data_came)
        self._callbacks: deque[tuple[str, Any]] = deque()
        self._rejoin_wanted = False
        self._joining = False
        self._joins = 0
        self._closed = False
        self._heartbeat_in_flight = False
        self._thread: Thread | None = None

    # What the intake calls.

    def subscribe(self, _topics: list[str], *, on_assign: Any, on_revoke: Any, on_lost: Any) -> None:
        self._on_assign, self._on_revoke, self._on_lost = on_assign, on_revoke, on_lost
        self._join()
        if isinstance(self._group, ConsumerGroup):
            self._scheduler.later(self._random.random(), self.process, self._beat)

    def poll(self, timeout: float) -> Any:
        self._check()
        end = self._scheduler.now + (timeout * self.process.poll_stretch if timeout >= 0.2 else timeout)
        while True:
            self._serve_callbacks()
            read = self._readings.read(1)
            if read:
                return read[0]
            now = self._scheduler.now
            if now >= end:
                return None
            self._wait(min([end, *self._readings.ready_after(now)]) - now)

    def consume(self, num_messages: int, timeout: float) -> list[Any]:
        self._check()
        self._scheduler.require(timeout == 0, "consume with a timeout waits for all of it")
        return self._readings.read(num_messages)

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> Any:
        self._check()
        assert offsets
        asked = {(each.topic, each.partition): (each.offset, each.metadata or "") for each in offsets}
        rates, random = self._broker.rates, self._random
        slow = (
            random.random() * rates.commit_slow_seconds
            if rates.commit_slow and random.random() < rates.commit_slow
            else 0.0
        )
        is_lost = bool(rates.commit_answer_lost) and random.random() < rates.commit_answer_lost
        answers: list[Errors] = []
        if not asynchronous:
            # The intake gives partitions up by itself before it closes its client.
            self._broker.oracle.executions.causes.letting_go(self.process.name, asked)
        thread = self._scheduler.current_thread

        def at_broker(member_id: int | None, epoch: int) -> None:
            if not asynchronous and self._broker.fetch_random.random() < rates.last_commit_failed:
                errors: Errors = dict.fromkeys(asked, KafkaError.NOT_COORDINATOR)
            else:
                errors = self._group.commit(member_id, epoch, asked, self.process.name)
            if not is_lost:
                self.connection.reply(at_client, errors)

        def at_client(errors: Errors) -> None:
            answers.append(errors)
            if asynchronous:
                self._enqueue("commit", (asked, errors))
            elif thread is not None:
                thread.wake()

        self.connection.send(at_broker, self._member_id, self._epoch, slow_seconds=slow)
        if asynchronous:
            return None
        end = self._scheduler.now + (SOCKET_TIMEOUT_SECONDS if not is_lost else 5.0)
        while not answers and self._scheduler.now < end:
            self._wait(end - self._scheduler.now)
        causes, name = self._broker.oracle.executions.causes, self.process.name
        if not answers:
            causes.last_commit_answered(name, dict.fromkeys(asked, True))
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        causes.last_commit_answered(name, {key: code is not None for key, code in answers[0].items()})
        if any(code in _NO_MEMBER for code in answers[0].values()):
            causes.no_member(name, asked)
        failed, answered = _commit_answer(asked, answers[0])
        if failed is not None:
            raise KafkaException(failed)
        return answered

    def get_watermark_offsets(
        self,
        partition: TopicPartition,
        timeout: float = 0.0,  # noqa: ARG002
        *,
        cached: bool = False,  # noqa: ARG002
    ) -> tuple[int, int]:
        log = self._broker.log((partition.topic, partition.partition))
        return log.start, log.end

    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[Any]:
        self._check()
        rates, random = self._broker.rates, self._random
        if rates.committed_failed and random.random() < rates.committed_failed:
            if random.random() < 0.5:
                self._wait_all(timeout)
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            error = KafkaError(KafkaError.NOT_COORDINATOR)
            return [PartitionAnswer(each.topic, each.partition, OFFSET_STORED, "", error) for each in partitions]
        now = self._scheduler.now
        wait = max(self.process.cut_until, self._broker.down_until, now) - now + 0.002 + 0.01 * random.random()
        if wait > timeout:
            self._wait_all(timeout)
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        self._wait_all(wait)
        answer = []
        causes = self._broker.oracle.executions.causes
        for each in partitions:
            stored = self._group.committed.get((each.topic, each.partition), (OFFSET_STORED, ""))
            answer.append(PartitionAnswer(each.topic, each.partition, *stored))
            causes.told_committed(self.process.name, (each.topic, each.partition), *stored)
        return answer

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        self._check()
        self._readings.assign(partitions)

    def pause(self, partitions: list[TopicPartition]) -> None:
        self._check()
        self._readings.pause(partitions)

    def resume(self, partitions: list[TopicPartition]) -> None:
        self._check()
        self._readings.resume(partitions)

    def seek(self, partition: TopicPartition) -> None:
        self._check()
        self._readings.seek(partition)

    def close(self) -> None:
        self._check()
        if self._owned:
            keys, self._owned = sorted(self._owned), set()
            self._callbacks.clear()
            causes = self._broker.oracle.executions.causes
            causes.letting_go(self.process.name, keys)
            causes.let_go(self.process.name, keys)
            self._on_revoke(self, [TopicPartition(*key) for key in keys])
            self._readings.forget(keys)
        self._wait_all(0.002)  # it waits for the coordinator's answer
        self._closed = True
        if self._member_id is not None:
            self.connection.send(self._leave, self._member_id)

    # What the coordinator says; handled by the client's own threads, whatever the intake does.

    def joined(self, number: int, member_id: int, epoch: int) -> None:
        """A join was answered; ``number`` says which."""
        if self._closed or number != self._joins:
            self.connection.send(self._leave, member_id)
            return
        self._member_id, self._epoch = member_id, epoch
        # It may have taken so long to get here that the session is over.
        self.connection.send(self._session_asked, member_id)

    def rebalance_begins(self, member_id: int, epoch: int) -> None:
        """A heartbeat was answered with: the group of this epoch rebalances."""
        if self._member_id not in (None, member_id):
            return
        self._old_epoch = max(self._old_epoch, epoch)
        if not self._closed and not self._joining and self._epoch <= epoch:
            self._rejoin_wanted = True
            self._rejoin_when_idle()

    def assigned_target(self, member_id: int, epoch: int, target: set[Key]) -> None:
        """The partitions that this member is to own from now on."""
        if self._closed or self._member_id != member_id:
            return  # meant for the member that this client was before its session ended
        self._joining = self._heartbeat_in_flight = False
        self._epoch = epoch
        if self._callbacks_of_rebalance():
            return  # still busy with what it was told before; it is told again
        revoked, added = sorted(self._owned - target), sorted(target - self._owned)
        if revoked:
            self._enqueue("revoke", revoked)
        if added or (not revoked and not isinstance(self._group, ConsumerGroup)):
            self._enqueue("assign", added)
        if revoked or (epoch <= self._old_epoch and not isinstance(self._group, ConsumerGroup)):
            self._rejoin_wanted = True
            self._rejoin_when_idle()

    def fenced(self, member_id: int) -> None:
        """The coordinator no longer knows this member."""
        if not self._closed and self._member_id == member_id:
            self._start_anew()

    def join_failed(self, number: int, member_id: int) -> None:
        """The session of this member ended while it waited to be let in."""
        if not self._closed and number == self._joins and self._member_id in (None, member_id):
            self._start_anew()

    def _start_anew(self) -> None:
        self._joining = self._heartbeat_in_flight = False
        self._member_id = None
        kept = [callback for callback in self._callbacks if callback[0] == "commit"]
        self._callbacks.clear()
        self._callbacks.extend(kept)
        # What a callback is being given just now is lost as well, once that has ended.
        if lost := self._owned | self._being_given:
            self._enqueue("lose", sorted(lost))
        self._rejoin_wanted = True
        self._rejoin_when_idle()

    def session_timed_out(self) -> None:
        """The client has not reached the coordinator for a whole session: it gives up by itself."""
        if self._member_id is not None and not self.process.stopped:
            self._group.expect_no_heartbeat(self._member_id)
            self.fenced(self._member_id)

    def heartbeat_due(self) -> None:
        """The process is reachable again: the next heartbeat learns whether the session is over."""
        self._scheduler.later(self._random.random() * self._group.heartbeat_seconds, self.process, self._ask_session)

    def _ask_session(self) -> None:
        if not self._closed and self._member_id is not None:
            self.connection.send(self._session_asked, self._member_id)

    def _session_asked(self, member_id: int) -> None:
        if not self._group.is_member(member_id):
            self.connection.reply(self.fenced, member_id)

    def _leave(self, member_id: int) -> None:
        if self._group.is_member(member_id):
            self._group.remove(member_id)

    # Joining and heartbeats.

    def _join(self) -> None:
        self._joining = True
        self._rejoin_wanted = False
        self._joins += 1
        self.connection.send(self._group.join, self, self._joins, self._member_id, set(self._owned))

    def _rejoin_when_idle(self) -> None:
        if self._rejoin_wanted and not self._callbacks_of_rebalance() and not self._closed:
            if isinstance(self._group, ConsumerGroup) and self._member_id is not None:
                self._rejoin_wanted = False
                self._heartbeat()
            else:
                self._join()

    def _beat(self) -> None:
        if not self._closed:
            self._heartbeat()
            self._scheduler.later(self._group.heartbeat_seconds, self.process, self._beat)

    def _heartbeat(self) -> None:
        if self._member_id is None or self._heartbeat_in_flight:
            return
        self._heartbeat_in_flight = True
        held = None if self._callbacks_of_rebalance() else set(self._owned)
        self.connection.send(self._heartbeat_arrives, self._member_id, held)

    def _heartbeat_arrives(self, member_id: int, held: set[Key] | None) -> None:
        if self._group.is_member(member_id):
            self._group.heartbeat(member_id, held)
        else:
            self.connection.reply(self.fenced, member_id)

    def _callbacks_of_rebalance(self) -> bool:
        return any(kind != "commit" for kind, _ in self._callbacks)

    # Inside the calls.

    def _check(self) -> None:
        self._scheduler.require(not self._closed, "a closed consumer is used")
        self._scheduler.require(self.process.alive, "a dead process calls Kafka")

    def _enqueue(self, kind: str, what: Any) -> None:
        self._callbacks.append((kind, what))
        if self._thread is not None:
            self._thread.wake()

    def _serve_callbacks(self) -> None:
        while self._callbacks:
            kind, what = self._callbacks[0]
            if kind == "commit":
                self._callbacks.popleft()
                failed, answered = _commit_answer(*what)
                self._on_commit(failed, answered)
                self._broker.commit_answered(self.process)
                continue
            partitions = [TopicPartition(*key) for key in what]
            self._broker.oracle.executions.rebalancing(self.process.name, self._group.name, kind, what)
            if kind == "assign":
                self._being_given = set(what)
                self._on_assign(self, partitions)
                self._being_given = set()
                for key in what:
                    if key not in self._readings:
                        self.incremental_assign([TopicPartition(key[0], key[1], OFFSET_STORED)])
                self._owned.update(what)
            elif kind == "lose":
                self._on_lost(self, partitions)
            else:
                causes = self._broker.oracle.executions.causes
                causes.letting_go(self.process.name, what)
                self._on_revoke(self, partitions)
                causes.let_go(self.process.name, what)
            if kind != "assign":
                self._owned.difference_update(what)
                self._readings.forget(what)
            if self._callbacks and self._callbacks[0][1] is what:
                self._callbacks.popleft()
            if isinstance(self._group, ConsumerGroup) and self._member_id is not None:
                self._rejoin_wanted = True
            self._rejoin_when_idle()

    def _data_came(self) -> None:
        if self._thread is not None:
            self._thread.wake(0.002)

    def _wait(self, seconds: float) -> None:
        thread = self._scheduler.current_thread
        assert thread is not None
        self._thread = thread
        thread.wait(seconds)
        self._thread = None

    def _wait_all(self, seconds: float) -> None:
        self._scheduler.sleep(seconds)


def _commit_answer(asked: dict[Key, Any], errors: Errors) -> tuple[KafkaError | None, list[Any]]:
    """The client's answer made of the broker's: an error of the whole only when every partition failed."""
    answered = [
        PartitionAnswer(*key, asked[key][0], asked[key][1], None if code is None else KafkaError(code))
        for key, code in errors.items()
    ]
    codes = [code for code in errors.values() if code is not None]
    whole = KafkaError(codes[-1]) if codes and len(codes) == len(errors) else None
    return whole, answered
