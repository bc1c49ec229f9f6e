"""Records that are made to harm, at an intake: each is handed on, read or refused, in its order and at once."""

from __future__ import annotations

import time

from forebay_schemas.contract.control import decode_control, decode_controlled
from forebay_schemas.contract.coordination import decode_capacity
from harness.hostile_records import CONTROL, COORDINATION, HEADERS, REFUSED, RUN, Headers, text
from simulated.bay import P0, TOPIC, Bay
from simulated.ports import MemoryRecord

SECONDS_MAX = 3.0


def test_each_is_read_or_refused_and_none_holds_up_another() -> None:
    sent: list[tuple[str, bytes, Headers, str | None]] = []
    for name, value in RUN.items():
        sent.append((name, value, (), name))
    for number, (name, headers) in enumerate(HEADERS.items()):
        sent.append((name, text(f"header-{number}"), headers, f"header-{number}"))
    for name, value in REFUSED.items():
        sent += [(name, value, (), None), ("innocent", text(f"behind {name}"), (), f"behind {name}")]
    bay = Bay()
    for offset, (_, value, headers, _) in enumerate(sent):
        bay.consumer.append(
            MemoryRecord(
                topic_name=TOPIC,
                offset_number=offset,
                value_bytes=value,
                key_bytes=b"\xff" * 10_000,
                header_list=list(headers),
            )
        )
    bay.consumer.assign(P0)
    began = time.process_time()
    while len(bay.handed) < len(sent):
        bay.step()
        assert time.process_time() - began < SECONDS_MAX
    assert bay.offsets() == list(range(len(sent)))
    for work, (name, _, _, request_id) in zip(bay.handed, sent, strict=True):
        if request_id is None:
            assert work.request is None, name
            assert work.problem is not None, name
            assert len(str(work.problem)) < 1_000, name
        else:
            assert work.request is not None, (name, work.problem)
            assert work.request_id == request_id
        assert (work.attempt, work.history.replay_count) == (1, 0), name


def test_what_is_no_wish_and_no_notice_is_ignored() -> None:
    assert [decode_control(value) for value in CONTROL] == [None] * len(CONTROL)
    for value in COORDINATION:
        assert decode_capacity(value) is None
        assert decode_controlled(value) is None
