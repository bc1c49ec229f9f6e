"""Time that the request in a record has left, by its own fields and headers."""

from __future__ import annotations

from typing import Any

import pytest

from forebay_producer.cluster.lifetimes import Lifetime, lifetime_of
from forebay_schemas.contract.headers import EXPEDITED_TIER, FIRST_ENQUEUED_AT
from forebay_schemas.contract.tiers import TTL_MS_MAX, Tier

WRITTEN_MS = 1_735_689_600_000


class Message:
    """A record with confluent-kafka's accessors."""

    def __init__(self, value: bytes | None, headers: list[tuple[str, bytes]] | None = None) -> None:
        self._value, self._headers = value, headers

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> Any:
        return self._headers

    def set_headers(self, value: Any) -> None:
        self._headers = value

    def timestamp(self) -> tuple[int, int]:
        return 2, WRITTEN_MS


def envelope(fields: str) -> bytes:
    return f'{{"request_id": "r", "biz_type": "chat_completion", "payload": {{}}{fields}}}'.encode()


@pytest.mark.parametrize(
    ("value", "ttl_ms"),
    [
        (envelope(""), None),
        (envelope(', "ttl_ms": 60000'), 60_000),
        (envelope(f', "expire_at": {WRITTEN_MS + 9_000}'), 9_000),
        (envelope(f', "expire_at": {WRITTEN_MS + 9_000}, "sent_at": {WRITTEN_MS + 1_000}'), 8_000),
        (envelope(f', "expire_at": {WRITTEN_MS - 1}'), 0),
        (envelope(f', "expire_at": {WRITTEN_MS + 2 * TTL_MS_MAX}'), TTL_MS_MAX),
        (envelope(', "ttl_ms": -1'), None),
        (b"nonsense", None),
        (b"\x00\x00\x00\x00\x07framed", None),
        (b"", None),
        (None, None),
    ],
)
def test_a_requests_own_deadline_counts_and_what_cannot_be_read_has_none(value: bytes | None, ttl_ms: int) -> None:
    assert lifetime_of(Message(value)) == Lifetime(since_ms=WRITTEN_MS, ttl_ms=ttl_ms)


def test_an_expedited_copy_goes_on_from_its_first_enqueue() -> None:
    headers = [(FIRST_ENQUEUED_AT, str(WRITTEN_MS - 5_000).encode()), (EXPEDITED_TIER, b"low")]
    found = lifetime_of(Message(envelope(""), headers))
    assert found == Lifetime(since_ms=WRITTEN_MS - 5_000, ttl_ms=None, expedited_tier=Tier.LOW)


def test_a_header_makes_no_request_younger_than_its_record() -> None:
    headers = [(FIRST_ENQUEUED_AT, str(WRITTEN_MS + 3_600_000).encode())]
    assert lifetime_of(Message(envelope(', "ttl_ms": 2000'), headers)) == Lifetime(since_ms=WRITTEN_MS, ttl_ms=2_000)
