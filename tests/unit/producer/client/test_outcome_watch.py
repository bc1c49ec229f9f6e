"""Waiting for outcomes over a topic in memory: what is kept, what is looked up again, and what others cost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest

from forebay_producer import ProducerClosedError
from forebay_producer.client import outcome_watch
from forebay_producer.client.outcome_watch import RECENT_MS, OutcomeWatch
from forebay_producer.client.results_reader import ReadResult
from forebay_schemas.contract.results import Result, decode_result, encode_result
from forebay_schemas.errors import BrokerUnreachableError, ForebayError, KafkaFailedError
from harness.waiting import wait_until
from harness.written_results import result_of
from simulated.ports import ManualClock

NOW_MS = 1_900_000_000_000
HOUR_MS = 3_600_000
PATIENCE_SECONDS = 20


class Written(NamedTuple):
    key: bytes
    value: bytes
    at_ms: int


class Topic:
    """A results topic. ``opened``: where each of its readers began."""

    def __init__(self) -> None:
        self.records: list[Written] = []
        self.opened: list[int | None] = []
        self.decoded = 0
        self.failing: list[ForebayError] = []
        self.read_failing: list[Exception] = []
        self.unreachable = False
        self.holding = threading.Event()
        self.holding.set()
        self.came = threading.Condition()

    def write(self, result: Result, *, at_ms: int = NOW_MS) -> None:
        with self.came:
            self.records.append(Written(result.request_id.encode(), encode_result(result), at_ms))
            self.came.notify_all()

    def reader(self, since_ms: int | None, open_seconds: float) -> MemoryReader:
        assert open_seconds > 0
        if self.unreachable:
            raise BrokerUnreachableError("no broker answered")
        if self.failing:
            raise self.failing.pop()
        self.opened.append(since_ms)
        return MemoryReader(self, since_ms)


class MemoryReader:
    """While ``holding`` is cleared, one that looks into the past reads nothing."""

    def __init__(self, topic: Topic, since_ms: int | None) -> None:
        self._topic = topic
        self._end = len(topic.records)
        self._looks_back = bool(topic.opened[1:])
        self._position = self._end
        if since_ms is not None:
            late = [number for number, one in enumerate(topic.records) if one.at_ms >= since_ms]
            self._position = late[0] if late else self._end

    def read(self, *, timeout_seconds: float, wanted: Callable[[bytes | None], bool] | None) -> list[ReadResult]:
        assert wanted is not None
        if self._looks_back:
            self._topic.holding.wait()
        with self._topic.came:
            if self._topic.read_failing:
                raise self._topic.read_failing.pop()
            if self._position >= len(self._topic.records):
                self._topic.came.wait(timeout_seconds)
            batch = self._topic.records[self._position : self._position + 1_000]
            self._position += len(batch)
        found = [ReadResult(decode_result(one.value), one.value) for one in batch if wanted(one.key)]
        self._topic.decoded += len(found)
        return found

    def caught_up(self) -> bool:
        return self._position >= self._end

    def close(self) -> None:
        pass


@pytest.fixture
def topic() -> Topic:
    return Topic()


@pytest.fixture
def watch(topic: Topic) -> Iterator[OutcomeWatch]:
    made = OutcomeWatch(topic.reader, clock=ManualClock())
    yield made
    topic.holding.set()
    made.close()


def submit(watch: OutcomeWatch, *request_ids: str, at_ms: int = NOW_MS) -> None:
    for request_id in request_ids:
        watch.submitting(request_id)
        watch.acknowledged(request_id, at_ms)


def outcome(
    watch: OutcomeWatch,
    request_id: str,
    *,
    since_ms: int = NOW_MS,
    replay_count: int = 0,
    seconds: float = PATIENCE_SECONDS,
    look_back: bool = False,
) -> Result | None:
    asked = (request_id, replay_count)
    value = watch.wait(asked, since_ms=since_ms, timeout_seconds=seconds, look_back=look_back)
    return None if value is None else decode_result(value)


def attempt(found: Result | None) -> int | None:
    return None if found is None else found.attempt


def test_an_outcome_is_found_whether_it_was_written_before_anyone_asks_or_later(
    topic: Topic, watch: OutcomeWatch
) -> None:
    submit(watch, "early", "late")
    topic.write(result_of("early"))
    assert outcome(watch, "early") is not None
    assert outcome(watch, "late", seconds=0.05) is None
    timer = threading.Timer(0.05, topic.write, [result_of("late")])
    timer.start()
    assert outcome(watch, "late") is not None
    timer.join()
    assert len(topic.opened) == 1, "one reader has seen both"


def test_results_of_others_are_neither_decoded_nor_kept_and_nobody_waits_longer_for_them(
    topic: Topic, watch: OutcomeWatch
) -> None:
    submit(watch, "mine")
    assert outcome(watch, "mine", seconds=0.05) is None
    for number in range(20_000):
        topic.write(result_of(f"theirs-{number}"))
    topic.write(result_of("mine"))
    assert outcome(watch, "mine") is not None
    for number in range(30):
        submit(watch, f"mine-{number}")
        topic.write(result_of(f"mine-{number}"))
        assert outcome(watch, f"mine-{number}") is not None
    assert topic.decoded == 31
    assert len(watch._kept) == 31
    assert len(topic.opened) == 1, "nothing was read a second time"


def test_a_batch_that_was_submitted_before_the_first_question_is_read_once(topic: Topic, watch: OutcomeWatch) -> None:
    ids = [f"r{number}" for number in range(500)]
    submit(watch, *ids)
    for request_id in ids:
        topic.write(result_of(request_id))
    for request_id in reversed(ids):
        assert outcome(watch, request_id) is not None
    assert len(topic.opened) == 1


def test_an_old_request_is_looked_up_from_its_submit_on_and_all_who_ask_share_a_reader(
    topic: Topic, watch: OutcomeWatch
) -> None:
    topic.write(result_of("older"), at_ms=NOW_MS - 9 * HOUR_MS)
    ids = [f"old-{number}" for number in range(30)]
    for request_id in ids:
        topic.write(result_of(request_id), at_ms=NOW_MS - 3 * HOUR_MS)
    submit(watch, "new")
    topic.holding.clear()
    with ThreadPoolExecutor(30) as threads:
        asked = [threads.submit(outcome, watch, one, since_ms=NOW_MS - 3 * HOUR_MS) for one in ids]
        wait_until("all of them waiting", lambda: len(watch._waiting) == 30)
        topic.holding.set()
        assert all(one.result() is not None for one in asked)
    assert 1 <= len(topic.opened[1:]) <= 3
    assert all(since is not None and since >= NOW_MS - 3 * HOUR_MS - RECENT_MS for since in topic.opened)
    assert outcome(watch, ids[0], since_ms=NOW_MS) is not None, "what was asked for is kept"


def test_who_submitted_many_long_ago_and_asks_for_one_after_the_other_has_them_read_once(
    topic: Topic, watch: OutcomeWatch
) -> None:
    ids = [f"r{number}" for number in range(200)]
    submit(watch, *ids, at_ms=NOW_MS - 3 * HOUR_MS)
    submit(watch, "new")
    for request_id in ids:
        topic.write(result_of(request_id), at_ms=NOW_MS - 3 * HOUR_MS)
    topic.write(result_of("other"), at_ms=NOW_MS)
    for request_id in ids:
        assert outcome(watch, request_id, since_ms=NOW_MS - 3 * HOUR_MS - 5_000) is not None
    assert len(topic.opened) <= 3


def test_the_first_outcome_wins_although_a_later_one_comes_while_it_is_looked_up(
    topic: Topic, watch: OutcomeWatch
) -> None:
    topic.write(result_of("r", attempt=1), at_ms=NOW_MS - HOUR_MS)
    topic.holding.clear()
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(outcome, watch, "r", since_ms=NOW_MS - HOUR_MS)
        wait_until("a look into the past", lambda: len(topic.opened) == 2)
        topic.write(result_of("r", attempt=2))
        wait_until("the second read", lambda: topic.decoded == 1)
        topic.holding.set()
        assert attempt(asked.result()) == 1


def test_an_outcome_that_comes_while_nothing_is_found_in_the_past_is_the_first(
    topic: Topic, watch: OutcomeWatch
) -> None:
    topic.write(result_of("other"), at_ms=NOW_MS - HOUR_MS)
    topic.holding.clear()
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(outcome, watch, "r", since_ms=NOW_MS - HOUR_MS)
        wait_until("a look into the past", lambda: len(topic.opened) == 2)
        topic.write(result_of("r", attempt=2))
        wait_until("it read", lambda: topic.decoded == 1)
        topic.holding.set()
        assert attempt(asked.result()) == 2


def test_an_own_outcome_that_was_written_before_results_were_followed_is_not_replaced_by_a_repetition(
    topic: Topic, watch: OutcomeWatch
) -> None:
    submit(watch, "r", at_ms=NOW_MS - HOUR_MS)
    submit(watch, "new")
    topic.write(result_of("r", attempt=1), at_ms=NOW_MS - HOUR_MS)
    assert outcome(watch, "new", seconds=0.05) is None
    topic.write(result_of("r", attempt=2))
    topic.write(result_of("new"))
    assert outcome(watch, "new") is not None
    assert attempt(outcome(watch, "r", since_ms=NOW_MS - HOUR_MS - 5_000)) == 1


def test_what_memory_had_no_room_for_is_looked_up_again(
    topic: Topic, watch: OutcomeWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcome_watch, "KEPT_COUNT_MAX", 10)
    ids = [f"r{number}" for number in range(200)]
    submit(watch, *ids)
    for number, request_id in enumerate(ids):
        topic.write(result_of(request_id, attempt=number + 1))
    for number in (199, 0, 100):
        assert attempt(outcome(watch, ids[number])) == number + 1
    assert len(watch._kept) == 10


def test_own_requests_beyond_those_that_are_remembered_are_looked_up(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcome_watch, "OWN_IDS_MAX", 10)
    watch = OutcomeWatch(topic.reader, clock=ManualClock())
    ids = [f"r{number}" for number in range(100)]
    submit(watch, *ids)
    for request_id in ids:
        topic.write(result_of(request_id))
    assert all(outcome(watch, request_id) is not None for request_id in ids)
    watch.close()


def test_a_request_that_is_sent_again_has_its_first_outcome_and_an_earlier_one_is_found_by_its_time(
    topic: Topic, watch: OutcomeWatch
) -> None:
    topic.write(result_of("r", attempt=1), at_ms=NOW_MS - HOUR_MS)
    submit(watch, "r")
    topic.write(result_of("r", attempt=2))
    assert attempt(outcome(watch, "r", since_ms=0, look_back=True)) == 1
    submit(watch, "r")
    assert attempt(outcome(watch, "r")) == 1


def test_the_outcome_of_a_replay_is_another_one(topic: Topic, watch: OutcomeWatch) -> None:
    submit(watch, "r")
    topic.write(result_of("r", attempt=4))
    topic.write(result_of("r", attempt=1, replay_count=1))
    assert attempt(outcome(watch, "r", replay_count=1)) == 1
    assert attempt(outcome(watch, "r")) == 4


def test_who_asks_again_after_giving_up_is_not_forgotten(topic: Topic, watch: OutcomeWatch) -> None:
    topic.write(result_of("r"), at_ms=NOW_MS - HOUR_MS)
    topic.holding.clear()
    assert outcome(watch, "r", since_ms=NOW_MS - HOUR_MS, seconds=0.1) is None
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(outcome, watch, "r", since_ms=NOW_MS - HOUR_MS)
        wait_until("somebody waiting", lambda: watch._waiting)
        topic.holding.set()
        assert asked.result() is not None


def test_while_no_broker_answers_a_wait_ends_in_its_time_with_the_reason_and_the_next_finds_it(
    topic: Topic, watch: OutcomeWatch
) -> None:
    submit(watch, "r")
    topic.unreachable = True
    with pytest.raises(BrokerUnreachableError):
        outcome(watch, "r", seconds=0.3)
    topic.unreachable = False
    topic.write(result_of("r"))
    assert outcome(watch, "r") is not None


def test_what_does_not_mend_by_itself_is_said_to_all_who_wait_and_the_next_begins_anew(
    topic: Topic, watch: OutcomeWatch
) -> None:
    submit(watch, "r")
    topic.failing.append(KafkaFailedError("denied"))
    with pytest.raises(KafkaFailedError, match="denied"):
        outcome(watch, "r")
    assert outcome(watch, "r", seconds=0.05) is None
    topic.read_failing.append(RuntimeError("odd"))
    with pytest.raises(KafkaFailedError, match="odd"):
        outcome(watch, "r")
    topic.write(result_of("r"))
    submit(watch, "s")
    topic.write(result_of("s"))
    assert outcome(watch, "r") is not None
    assert outcome(watch, "s") is not None


def test_closing_ends_everybodys_waiting(watch: OutcomeWatch) -> None:
    submit(watch, "r")
    with ThreadPoolExecutor(3) as threads:
        asked = [threads.submit(outcome, watch, "r") for _ in range(3)]
        wait_until("all three waiting", lambda: [wait.callers for wait in watch._waiting.values()] == [3])
        watch.close()
        for one in asked:
            with pytest.raises(ProducerClosedError):
                one.result()
    with pytest.raises(ProducerClosedError):
        outcome(watch, "r")
    assert not watch._waiting
    assert not watch._waiting_keys
