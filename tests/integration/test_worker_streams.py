"""Streamed answers followed piece by piece, by any Kafka client, on a real broker: a simulated and a real engine."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, TopicPartition

from forebay_sandbox.engine.process import running_engine
from forebay_schemas.contract.pieces import Piece, decode_piece
from forebay_schemas.contract.tiers import Tier
from harness.live_pool import LOG, chat, envelope
from harness.waiting import wait_until
from simulated.streams import Reader

if TYPE_CHECKING:
    from forebay_sandbox.testing.foreign_engines import ForeignEngine
    from harness.live_pool import LivePool
    from harness.workers import NewWorker

PARTITIONS = 2


class Follower:
    """Follows the streams topic of a pool, as a front end would."""

    def __init__(self, pool: LivePool) -> None:
        client = {**pool.kafka.connection.properties, "bootstrap.servers": pool.kafka.bootstrap_servers}
        self._consumer = Consumer(
            {**client, "group.id": "tests", "enable.auto.commit": False, "fetch.wait.max.ms": 20, "logger": LOG}
        )
        self._consumer.assign([TopicPartition(pool.topics.streams, number, 0) for number in range(PARTITIONS)])
        self.pieces: dict[str, list[Piece]] = {}
        self.partitions: dict[str, set[int]] = {}
        self.readers: dict[str, Reader] = {}
        self.first_at: dict[str, float] = {}

    def close(self) -> None:
        self._consumer.close()

    def read(self) -> None:
        """Takes in what has come."""
        for message in self._consumer.consume(1000, 0.05):
            if message.error() is not None:
                continue
            piece = decode_piece(message.value())
            request_id = piece.request_id
            assert message.key() == request_id.encode()
            partition = message.partition()
            assert partition is not None
            self.first_at.setdefault(request_id, time.monotonic())
            self.partitions.setdefault(request_id, set()).add(partition)
            self.pieces.setdefault(request_id, []).append(piece)
            self.readers.setdefault(request_id, Reader()).take(piece)

    def wait_for(self, *request_ids: str, text: bool = False) -> None:
        """Until each of them is whole; with ``text``, until each has shown some."""

        def done() -> bool:
            self.read()
            readers = [self.readers.get(request_id, Reader()) for request_id in request_ids]
            return all(reader.text() if text else reader.is_whole for reader in readers)

        wait_until("the pieces of the answers", done)


def streamed(request_id: str, *, output_tokens: int, partition: int | None = None, **fields: Any) -> dict[str, Any]:
    reply: dict[str, Any] = {"stream": True} if partition is None else {"stream": True, "partition": partition}
    payload = chat(output_tokens=output_tokens, stream=True)
    return envelope(request_id, **{"payload": payload, "reply": reply, **fields})


def test_pieces_come_in_order_while_the_answer_is_made_and_amount_to_it(pool: LivePool, new_worker: NewWorker) -> None:
    with running_engine() as engine, closing(Follower(pool)) as follower:
        new_worker(pool, backend_url=engine.url, limit_max=16)
        ids = [f"r-{number}" for number in range(12)]
        pool.submit(
            Tier.HIGH,
            *(streamed(request_id, output_tokens=60, partition=int(request_id[2:]) % 2) for request_id in ids),
            envelope("unfollowed", payload=chat(output_tokens=5, stream=True)),
        )
        follower.wait_for(*ids, text=True)
        assert not pool.ended() & set(ids), "the first text comes before the result"
        follower.wait_for(*ids)
        results = pool.results([*ids, "unfollowed"])
    for request_id in ids:
        result, pieces = results[request_id], follower.pieces[request_id]
        assert result.status == "completed", result.error
        assert [piece.number for piece in pieces] == list(range(len(pieces)))
        assert {(piece.run, piece.attempt) for piece in pieces} == {(pieces[0].run, 1)}
        assert follower.partitions[request_id] == {int(request_id[2:]) % 2}
        assert follower.readers[request_id].text() == result.body["choices"][0]["message"]["content"]
        assert all(value.get("usage") is None for value in follower.readers[request_id].values())
        assert (result.usage_added, result.output_tokens) == (True, 60)
        assert result.first_token_seconds is not None
        assert result.service_seconds is not None
        assert 0 < result.first_token_seconds < result.service_seconds
        # Some 15 events come within the 100 ms that they are joined for.
        assert len(pieces) < 30
    assert "unfollowed" not in follower.pieces


def test_what_readers_show_agrees_with_the_result_though_workers_are_killed(
    pool: LivePool, new_worker: NewWorker, tmp_path: Path
) -> None:
    properties = tmp_path / "kafka.properties"
    properties.write_text("session.timeout.ms=6000\n")
    with running_engine() as engine, closing(Follower(pool)) as follower:
        settings: dict[str, Any] = {"backend_url": engine.url, "limit_max": 8, "kafka_properties": properties}
        ids = [f"r-{number}" for number in range(24)]
        pool.submit(Tier.MID, *(streamed(request_id, output_tokens=100) for request_id in ids))
        first = new_worker(pool, **settings)

        def some_text() -> bool:
            follower.read()
            return sum(bool(reader.text()) for reader in follower.readers.values()) >= 4

        wait_until("some text", some_text)
        first.kill()
        follower.read()
        broken = {request_id for request_id, reader in follower.readers.items() if not reader.is_whole}
        new_worker(pool, **settings)
        results = pool.results(ids)
        follower.wait_for(*(set(ids) - set(follower.pieces)))
        follower.read()
    assert {result.status for result in results.values()} == {"completed"}
    assert broken
    for request_id in ids:
        reader, text = follower.readers[request_id], results[request_id].body["choices"][0]["message"]["content"]
        if reader.is_whole:
            assert reader.text() == text
        else:
            assert text.startswith(reader.text())
    ran_again = {request_id for request_id in broken if len({piece.run for piece in follower.pieces[request_id]}) > 1}
    assert ran_again, "the second worker streams what the first one had begun"
    for request_id in ran_again:
        assert not follower.readers[request_id].is_whole, "another worker's run does not continue it"


def test_a_retry_in_the_same_worker_goes_on_where_the_first_attempt_broke_off(
    pool: LivePool, new_worker: NewWorker
) -> None:
    with running_engine() as engine, closing(Follower(pool)) as follower:
        engine.faults({"kind": "cut", "where": "middle", "match": "cut-me", "count": 1})
        new_worker(pool, backend_url=engine.url, limit_max=4)
        pool.submit(
            Tier.HIGH,
            *(streamed(request_id, output_tokens=40) for request_id in ("cut-me", "fine-1", "fine-2")),
        )
        follower.wait_for("cut-me", "fine-1", "fine-2")
        result = pool.result("cut-me")
    assert result.status == "completed"
    pieces = follower.pieces["cut-me"]
    assert len({piece.run for piece in pieces}) == 2
    errors = [piece for piece in pieces if piece.error]
    assert [piece.error for piece in errors] == ["stream_broken"]
    following = next(piece for piece in pieces if piece.run != errors[0].run)
    assert (following.number, following.continues) == (0, (errors[0].run, errors[0].number))
    assert follower.readers["cut-me"].text() == result.body["choices"][0]["message"]["content"]


def test_without_the_topic_answers_come_whole_and_the_log_says_so_once(pool: LivePool, new_worker: NewWorker) -> None:
    admin = pool.kafka.admin()
    for deleted in admin.delete_topics([pool.topics.streams]).values():
        deleted.result(30)
    wait_until("a topic that is gone", lambda: pool.topics.streams not in admin.list_topics(timeout=10).topics)
    with running_engine() as engine:
        worker = new_worker(pool, backend_url=engine.url, limit_max=4)
        ids = [f"r-{number}" for number in range(8)]
        pool.submit(Tier.HIGH, *(streamed(request_id, output_tokens=5) for request_id in ids))
        results = pool.results(ids)
        said = worker.log_path.read_text().count("answers are not streamed piece by piece")
    assert {result.status for result in results.values()} == {"completed"}
    assert said == 1


def test_a_handler_that_yields_is_followed_as_an_engine_is(pool: LivePool, new_worker: NewWorker) -> None:
    with closing(Follower(pool)) as follower:
        new_worker(pool, handler="harness.handlers:count_up", limit_max=4)
        pool.submit(Tier.HIGH, streamed("r-1", output_tokens=1, biz_type="count", payload={"to": 5}))
        follower.wait_for("r-1")
        result = pool.result("r-1")
    assert result.body == [{"number": number} for number in range(5)] == follower.readers["r-1"].values()


def test_llamacpps_stream_is_followed(pool: LivePool, new_worker: NewWorker, llamacpp_engine: ForeignEngine) -> None:
    with closing(Follower(pool)) as follower:
        new_worker(pool, backend_url=llamacpp_engine.url, limit_max=4)
        ids = [f"r-{number}" for number in range(4)]
        for request_id in ids:
            payload = {
                "model": llamacpp_engine.model,
                "messages": [{"role": "user", "content": f"request {request_id}"}],
                "max_tokens": 12,
                "ignore_eos": True,
                "stream": True,
            }
            pool.submit(Tier.HIGH, streamed(request_id, output_tokens=1, payload=payload))
        results = pool.results(ids)
        follower.wait_for(*ids)
    for request_id in ids:
        result = results[request_id]
        assert result.status == "completed", result.error
        assert (result.usage_added, result.output_tokens) == (True, 12)
        shown = follower.readers[request_id]
        assert shown.text() == (result.body["choices"][0]["message"]["content"] or "")
        assert all(value["choices"] and not value.get("usage") for value in shown.values())
