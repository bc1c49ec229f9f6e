"""The audit records of dead letters: what is written can be read, what older versions wrote too, what is remembered."""

from __future__ import annotations

import msgspec
import pytest

from forebay_producer.dead_letters.audit import (
    Action,
    AuditIndex,
    AuditRecord,
    DiscardAudit,
    Ending,
    IntendedReplay,
    Intent,
    ReplayAudit,
    RunAlive,
    RunEnded,
    RunStarted,
    decode_audit,
    encode_audit,
)

NOW_MS = 1_900_000_000_000
REPLAY = ReplayAudit(
    at=NOW_MS,
    by="me@here",
    dead_letter_topic_id="topic-1",
    partition=1,
    offset=70_000,
    request_id="r",
    replay_count=1,
    reason=None,
    topic="forebay.p.requests.high",
    to_partition=0,
    to_offset=3,
    ttl_ms=None,
    run_id="run-1",
)
DISCARD = DiscardAudit(
    at=NOW_MS, run_id="run-1", by="me@here", dead_letter_topic_id="topic-1", places=[(0, 1), (1, 70_000)]
)
INTENT = Intent(
    at=NOW_MS,
    run_id="run-1",
    by="me@here",
    dead_letter_topic_id="topic-1",
    ttl_ms=5_000,
    ends={"forebay.p.requests.high": [0, 17]},
    letters=[IntendedReplay(0, 1, "r", 1, "backend_error", "forebay.p.requests.high")],
)
STARTED = RunStarted(
    at=NOW_MS,
    run_id="run-1",
    by="me@here",
    does=Action.REPLAY,
    dead_letter_topic_id="topic-1",
    selection="--reason backend_error",
    canary=5,
)
ENDED = RunEnded(at=NOW_MS, run_id="run-1", by="me@here", ending=Ending.DONE, tally={"replayed": 2})


@pytest.mark.parametrize("record", [STARTED, INTENT, REPLAY, DISCARD, RunAlive(at=NOW_MS, run_id="run-1"), ENDED])
def test_what_is_written_is_read(record: AuditRecord) -> None:
    assert decode_audit(encode_audit(record)) == record


def test_replays_written_before_there_were_runs_are_read() -> None:
    value = (
        b'{"action":"replay","at":1900000000000,"by":"me@here","dead_letter_topic_id":"topic-1","partition":1,'
        b'"offset":70000,"request_id":"r","replay_count":1,"reason":null,"topic":"forebay.p.requests.high",'
        b'"to_partition":0,"to_offset":3,"ttl_ms":null}'
    )
    assert decode_audit(value) == msgspec.structs.replace(REPLAY, run_id=None)


@pytest.mark.parametrize("value", [None, b"", b"{}", b'{"action":"cancel","at":1}', b"\xff", encode_audit(REPLAY)[:-9]])
def test_other_records_of_the_audit_topic_say_nothing(value: bytes | None) -> None:
    assert decode_audit(value) is None


def test_a_replay_is_remembered_by_its_place_and_by_its_request() -> None:
    handled = AuditIndex(topic_id="topic-1")
    handled.add(REPLAY)
    assert handled.was_replayed_from(1, 70_000)
    assert not any(handled.was_replayed_from(*place) for place in ((0, 70_000), (1, 70_001), (1, 69_999), (1, 4_464)))
    assert handled.has_request("r", 1)
    assert not handled.has_request("r", 2)
    assert not handled.has_request(None, 1)
    assert not handled.was_discarded(1, 70_000)


def test_discarded_letters_are_remembered_and_are_not_replayed() -> None:
    handled = AuditIndex(topic_id="topic-1")
    for record in (STARTED, INTENT, DISCARD, ENDED):
        handled.add(record)
    assert [handled.was_discarded(*place) for place in ((0, 1), (1, 70_000), (0, 2))] == [True, True, False]
    assert not handled.was_replayed_from(0, 1)


def test_what_was_done_to_a_topic_that_was_made_anew_does_not_count() -> None:
    handled = AuditIndex(topic_id="topic-2")
    handled.add(REPLAY)
    handled.add(DISCARD)
    assert not handled.was_replayed_from(1, 70_000)
    assert not handled.has_request("r", 1)
    assert not handled.was_discarded(0, 1)
