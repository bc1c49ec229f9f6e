"""Unreadable records are kept as they came, and hold nothing up."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

import pytest

from forebay_schemas.contract import headers as h
from forebay_schemas.contract.tiers import Tier
from harness.live_pool import envelope

if TYPE_CHECKING:
    from confluent_kafka import Message

    from forebay_sandbox.engine.process import EngineProcess
    from harness.live_pool import LivePool, NewPool, Place
    from harness.served import Served
    from harness.workers import NewWorker

FOREIGN_HEADERS: list[tuple[str, bytes | None]] = [
    ("x-trace", b"\x00\xff not text"),
    ("x-none", None),
    ("x-twice", b"1"),
    ("x-twice", b"2"),
    ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
]


def headers_of(letter: Message) -> list[tuple[str, bytes | None]]:
    """Headers as they were read; the client's own type allows more."""
    return cast("list[tuple[str, bytes | None]]", letter.headers() or [])


def letter_of(pool: LivePool, tier: Tier, place: Place) -> Message:
    """The dead letter of the record at this place."""
    wanted = {
        h.DLT_ORIGINAL_TOPIC: pool.topics.requests(tier).encode(),
        h.DLT_ORIGINAL_PARTITION: str(place.partition).encode(),
        h.DLT_ORIGINAL_OFFSET: str(place.offset).encode(),
    }
    count = 1
    while True:
        letters = pool.dead_letters(count)
        for letter in letters:
            if wanted.items() <= dict(headers_of(letter)).items():
                return letter
        count = len(letters) + 1


@pytest.mark.parametrize(
    "value",
    [
        b"\xff\xfe\x00garbage",
        b"",
        None,
        b'{"request_id": "cut off", "payl',
        b"[1, 2, 3]",
        json.dumps({"biz_type": "chat_completion", "payload": {}}).encode(),
        b"x" * 1_000_000,
    ],
    ids=["binary", "empty", "null", "cut-off", "list", "no-id", "large"],
)
@pytest.mark.parametrize("key", [None, b"\x00\xffkey"], ids=["no-key", "binary-key"])
def test_undecodable_bytes_are_kept_as_they_came(served: Served, value: bytes | None, key: bytes | None) -> None:
    place = served.pool.send(Tier.MID, value, key=key, headers=FOREIGN_HEADERS)
    letter = letter_of(served.pool, Tier.MID, place)
    assert letter.value() == value
    assert letter.key() == key
    headers = headers_of(letter)
    assert headers[: len(FOREIGN_HEADERS)] == FOREIGN_HEADERS
    ours = dict(headers[len(FOREIGN_HEADERS) :])
    assert ours[h.REASON] == b"undecodable"
    assert ours[h.ATTEMPT] == b"1"
    assert ours[h.WORKER] == b"worker-1"
    assert int(ours[h.FIRST_ENQUEUED_AT] or b"") > 1_700_000_000_000
    assert ours[h.DLT_ORIGINAL_TIMESTAMP] == ours[h.FIRST_ENQUEUED_AT]
    assert ours[h.DLT_ORIGINAL_CONSUMER_GROUP] == served.pool.topics.group(Tier.MID).encode()
    assert ours[h.DLT_EXCEPTION_FQCN] == b"forebay.undecodable"
    message = (ours[h.DLT_EXCEPTION_MESSAGE] or b"").decode()
    assert message
    assert "Traceback" not in message


def test_a_bad_record_moves_the_partition_on(new_pool: NewPool, new_worker: NewWorker, engine: EngineProcess) -> None:
    pool = new_pool(partitions=1)
    worker = new_worker(pool, backend_url=engine.url)
    pool.send(Tier.LOW, b"garbage")
    pool.submit(Tier.LOW, envelope("behind"))
    assert pool.result("behind").status == "completed"
    pool.dead_letters(1)
    worker.terminate()
    assert pool.kafka.committed(pool.topics.group(Tier.LOW), pool.topics.requests(Tier.LOW)) == {0: 2}


def test_a_rejected_request_has_a_result_when_its_id_can_be_read(served: Served) -> None:
    served.pool.send(Tier.HIGH, b'{"request_id": "readable", "biz_type": 7, "payload": {}}', key=b"readable")
    result = served.pool.result("readable")
    assert (result.status, result.reason) == ("rejected", "undecodable")
    assert result.error is not None
    assert "biz_type" in result.error


def test_a_request_whose_id_cannot_be_used_is_answered_under_its_key(served: Served) -> None:
    """Its sender would wait for ever: it reads the results by the key that it gave."""
    value = json.dumps(envelope("x") | {"request_id": 12345}).encode()
    served.pool.send(Tier.MID, value, key=b"12345")
    result = served.pool.result("12345")
    assert (result.status, result.reason) == ("rejected", "undecodable")
    assert result.error is not None
    assert "request_id: is an integer" in result.error


def test_an_unknown_biz_type_is_rejected_and_says_which_are_known(served: Served) -> None:
    place = served.pool.accepted[served.pool.submit(Tier.HIGH, envelope("odd", biz_type="tea"))[0]]
    result = served.pool.result("odd")
    assert (result.status, result.reason) == ("rejected", "unknown_biz_type")
    assert result.error is not None
    assert "chat_completion" in result.error
    letter = letter_of(served.pool, Tier.HIGH, place)
    assert dict(headers_of(letter))[h.REASON] == b"unknown_biz_type"
    assert json.loads(letter.value() or b"") == envelope("odd", biz_type="tea")


def test_foreign_fields_and_headers_do_no_harm(served: Served) -> None:
    whole = envelope("with-extras", our_own_field={"deep": [1, 2]}, tenant="acme")
    served.pool.send(Tier.HIGH, json.dumps(whole).encode(), key=None, headers=FOREIGN_HEADERS)
    assert served.pool.result("with-extras").status == "completed"


def test_the_largest_record_that_is_accepted_can_still_be_a_dead_letter(served: Served) -> None:
    # Room for the batch around it, and for the headers.
    value = b"x" * (8 * 1024 * 1024 - 1024)
    place = served.pool.send(Tier.LOW, value, headers=[("x-filler", b"y" * 512)])
    letter = letter_of(served.pool, Tier.LOW, place)
    assert letter.value() == value
