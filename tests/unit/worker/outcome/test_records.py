"""Dead letters: what came is kept as bytes, what is added does not grow, and other tools can read it."""

from __future__ import annotations

from typing import Any

import pytest

from forebay_schemas.contract.headers import HEADERS_BYTES_MAX, headers_size_bytes, read_history
from forebay_schemas.contract.reasons import Reason
from forebay_schemas.contract.tiers import Tier
from forebay_worker.outcome.records import OutRecord, dead_letter, without_content
from simulated.ports import NOW_MS
from simulated.works import POOL, make_assignment, make_work

GROUP = POOL.group(Tier.MID)


def letter_of(*, error: str = "HTTP 500: no", **fields: Any) -> OutRecord:
    work = make_work(make_assignment(partition=3), **{"offset": 17, **fields})
    return dead_letter(
        work, topic=POOL.dead_letter, group=GROUP, worker_id="worker-1", reason=Reason.BACKEND_ERROR, error=error
    )


def test_key_value_and_foreign_headers_are_kept_as_bytes() -> None:
    foreign: list[tuple[str, bytes | None]] = [("x", b"\x00\xff"), ("x", None), ("y", b"")]
    letter = letter_of(value=b"\xffgarbage", key=b"\xfekey", headers=foreign)
    assert (letter.topic, letter.key, letter.value) == (POOL.dead_letter, b"\xfekey", b"\xffgarbage")
    assert letter.headers[:3] == foreign
    assert letter_of(key=None).key is None


def test_springs_names_and_ours_say_why_and_where_it_died() -> None:
    letter = letter_of(headers=[("forebay-attempt", b"2"), ("forebay-first-enqueued-at", str(NOW_MS).encode())])
    assert {name: (value or b"").decode() for name, value in letter.headers} == {
        "forebay-reason": "backend_error",
        "forebay-attempt": "2",
        "forebay-first-enqueued-at": str(NOW_MS),
        "forebay-worker": "worker-1",
        "kafka_dlt-original-topic": "forebay.test.requests.mid",
        "kafka_dlt-original-partition": "3",
        "kafka_dlt-original-offset": "17",
        "kafka_dlt-original-timestamp": str(NOW_MS),
        "kafka_dlt-original-consumer-group": "forebay.test.mid",
        "kafka_dlt-exception-fqcn": "forebay.backend_error",
        "kafka_dlt-exception-message": "HTTP 500: no",
    }


def test_the_twentieth_failure_is_no_bigger_than_the_first() -> None:
    foreign: list[tuple[str, bytes | None]] = [("x", b"1"), ("x", b"2")]
    first = letter_of(headers=foreign)
    letter = first
    for _ in range(19):
        letter = letter_of(headers=letter.headers, value=letter.value)
    assert letter == first


def test_the_first_enqueue_survives_hops() -> None:
    first = letter_of(enqueued_at=NOW_MS)
    second = letter_of(enqueued_at=NOW_MS + 5_000, headers=first.headers)
    # make_work takes the record's own time; what the header says is what counts.
    assert read_history(first.headers).first_enqueued_at == NOW_MS
    assert headers_size_bytes(second.headers) == headers_size_bytes(first.headers)


@pytest.mark.parametrize("error", ["x" * 100_000, "€" * 100_000, "half a pair \ud800"])
def test_an_error_of_any_length_and_kind_fits(error: str) -> None:
    letter = letter_of(error=error)
    message = dict(letter.headers)["kafka_dlt-exception-message"]
    assert message is not None
    assert len(message.decode()) <= 1_000
    assert headers_size_bytes(letter.headers) <= HEADERS_BYTES_MAX


def test_the_errors_text_yields_when_the_headers_are_nearly_full() -> None:
    nearly: list[tuple[str, bytes | None]] = [("x", b"y" * (HEADERS_BYTES_MAX - 1_000))]
    letter = letter_of(headers=nearly, error="z" * 1_000)
    assert headers_size_bytes(letter.headers) <= HEADERS_BYTES_MAX
    assert dict(letter.headers)["kafka_dlt-exception-message"] == b""
    assert letter.headers[0] == nearly[0]


def test_what_does_not_fit_at_all_still_says_where_the_record_lies() -> None:
    letter = letter_of(value=b"x" * 9_000_000, key=b"id", headers=[("x", b"y" * 10_000)])
    left = without_content(letter)
    assert (left.key, left.value) == (b"id", None)
    assert left.size_bytes < 4_000
    headers = dict(left.headers)
    assert headers["forebay-reason"] == b"backend_error"
    message = headers["kafka_dlt-exception-message"]
    assert message is not None
    assert b"only at forebay.test.requests.mid:3:17" in message
    assert message.endswith(b"HTTP 500: no")
    assert without_content(letter_of(key=b"k" * 5_000_000)).key is None
