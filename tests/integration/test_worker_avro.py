"""Avro without a registry, from a producer to an answer: in the same topic as JSON, record by record."""

from __future__ import annotations

from typing import Any

from forebay_producer import Producer, ProducerSettings
from forebay_schemas.contract.headers import record_headers
from forebay_schemas.contract.reasons import Status
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.formats.avro import AvroCodec
from harness.forebay_command import ForebayCommand
from harness.live_pool import LivePool, envelope
from harness.workers import NewWorker

HANDLER = "harness.handlers:obey"


def answer(request_id: str, **fields: Any) -> dict[str, Any]:
    return envelope(request_id, payload={"do": "answer"}, **fields)


def test_a_worker_runs_avro_and_json_side_by_side(pool: LivePool, new_worker: NewWorker) -> None:
    settings = ProducerSettings(bootstrap_servers=pool.kafka.bootstrap_servers, pool=pool.name, codec="avro")
    pool.submit(Tier.HIGH, answer("json", priority=9))
    with Producer(settings=settings) as producer:
        producer.submit(answer("single", priority=9, tenant="acme", later={"x": 1}))
        producer.submit_batch([answer(f"avro-{number}", priority=number % 11) for number in range(50)])
    new_worker(pool, handler=HANDLER)
    ids = ["json", "single", *(f"avro-{number}" for number in range(50))]
    results = pool.results(ids)
    assert {result.status for result in results.values()} == {Status.COMPLETED}
    said = results["single"].body
    assert (said["tier"], said["priority"], said["tenant"]) == ("high", 9, "acme")


def test_what_is_no_avro_of_ours_becomes_a_dead_letter_as_it_came_and_stops_nothing(
    pool: LivePool, new_worker: NewWorker
) -> None:
    good = AvroCodec(schema_id=None).encode(answer("good"))
    bad = [
        good[:-1],
        good + b"x",
        b"\xc3\x01" + b"unknown!" + good[10:],
        b"\x00\x00\x00\x00\x07" + good[10:],
        good[10:],
    ]
    headers = [("content-type", b"application/avro"), ("theirs", b"\xff")]
    for value in bad:
        pool.send(Tier.MID, value, key=b"k", headers=headers)
    pool.send(Tier.MID, good, headers=headers)
    new_worker(pool, handler=HANDLER)
    assert pool.result("good").status is Status.COMPLETED
    letters = pool.dead_letters(len(bad))
    assert sorted(letter.value() or b"" for letter in letters) == sorted(bad)
    for letter in letters:
        found = dict(record_headers(letter))
        assert found["forebay-reason"] == b"undecodable"
        assert (found["content-type"], found["theirs"]) == (b"application/avro", b"\xff")


def test_a_request_in_avro_survives_retries_as_the_bytes_it_was_and_is_shown_decoded(
    pool: LivePool, new_worker: NewWorker
) -> None:
    value = AvroCodec(schema_id=None).encode(
        envelope("fails", payload={"do": "raise"}, later={"kept": [1, 2]}, priority=5)
    )
    pool.send(Tier.MID, value, key=b"fails", headers=[("content-type", b"application/avro")])
    new_worker(pool, handler=HANDLER, max_retries=1)
    assert pool.result("fails").status is Status.FAILED
    [letter] = pool.dead_letters(1)
    assert letter.value() == value
    forebay = ForebayCommand(bootstrap_servers=pool.kafka.bootstrap_servers, pool=pool.name)
    shown = forebay.run("dead-letters", "show", "fails", "--payload", "--output", "json")
    assert shown.code == 0, shown.err
    assert shown.records[0]["envelope"]["later"] == {"kept": [1, 2]}
    assert shown.records[0]["envelope"]["payload"] == {"do": "raise"}
