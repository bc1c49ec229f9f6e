"""Owners of a partition, and faults that held it, in hand-drawn runs and in a log as workers write it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chaos.facts import End, Facts, Life, OwnerChange, Trouble, Window
from chaos.owners import FaultsOnPartitions, Span, Tenure, covered_ms, merged, tenures_of
from chaos.reading import read_owner_changes

_KEY = ("requests.high", 0)
_EVERY_SLOT = frozenset({1, 2, 3, 4})


def _gained(worker: str, at_ms: int) -> OwnerChange:
    return OwnerChange(at_ms=at_ms, worker=worker, key=_KEY, is_gain=True)


def _gave_up(worker: str, at_ms: int) -> OwnerChange:
    return OwnerChange(at_ms=at_ms, worker=worker, key=_KEY, is_gain=False)


def _tenure(worker: str | None, start_ms: int, end_ms: int) -> Tenure:
    return Tenure(worker=worker, start_ms=start_ms, end_ms=end_ms)


@pytest.mark.parametrize(
    ("changes", "tenures"),
    [
        ([_gained("w1", 5)], [_tenure(None, 0, 5), _tenure("w1", 5, 100)]),
        (
            [_gained("w1", 5), _gave_up("w1", 20), _gained("w2", 30)],
            [_tenure(None, 0, 5), _tenure("w1", 5, 20), _tenure(None, 20, 30), _tenure("w2", 30, 100)],
        ),
        # w1 was stopped, and says that it lost it when it goes on.
        (
            [_gained("w1", 0), _gained("w2", 30), _gave_up("w1", 40)],
            [_tenure("w1", 0, 30), _tenure("w2", 30, 100)],
        ),
        # Logs are read one worker after another.
        ([_gained("w2", 30), _gained("w1", 0)], [_tenure("w1", 0, 30), _tenure("w2", 30, 100)]),
    ],
)
def test_a_partition_is_of_who_was_given_it_last(changes: list[OwnerChange], tenures: list[Tenure]) -> None:
    assert tenures_of(changes, start_ms=0, end_ms=100) == {_KEY: tenures}


def _life(worker: str, slot: int, *, end: End = End.RUNNING, signalled_ms: int | None = None) -> Life:
    return Life(worker=worker, slot=slot, started_ms=0, end=end, signalled_ms=signalled_ms)


def _window(trouble: Trouble, start_ms: int, end_ms: int | None, *slots: int, **more: Any) -> Window:
    return Window(trouble=trouble, slots=frozenset(slots) or _EVERY_SLOT, start_ms=start_ms, end_ms=end_ms, **more)


_W1_DIES = (_life("w1", 1, end=End.KILLED, signalled_ms=50_000), _life("w2", 2))
_BOTH_LIVE = (_life("w1", 1), _life("w2", 2))


@pytest.mark.parametrize(
    ("lives", "windows", "changes", "spans"),
    [
        # Killed: until its session has ended, or until somebody has the partition.
        (_W1_DIES, [], [_gained("w1", 0)], [(50_000, 60_000)]),
        (_W1_DIES, [], [_gained("w1", 0), _gained("w2", 58_000)], [(50_000, 58_000)]),
        (_W1_DIES, [], [_gained("w2", 0)], []),
        # Nobody has it: the group waits for the one that died.
        (_W1_DIES, [], [_gained("w2", 0), _gave_up("w2", 49_000), _gained("w2", 70_000)], [(50_000, 60_000)]),
        # Stopped: likewise, and only while it is.
        (_BOTH_LIVE, [_window(Trouble.STOPPED, 20_000, 25_000, 1)], [_gained("w1", 0)], [(20_000, 25_000)]),
        (_BOTH_LIVE, [_window(Trouble.STOPPED, 20_000, 35_000, 1)], [_gained("w1", 0)], [(20_000, 30_000)]),
        (_BOTH_LIVE, [_window(Trouble.STOPPED, 20_000, 25_000, 2)], [_gained("w1", 0)], []),
        # The slot of a worker that is gone has another one.
        (_W1_DIES, [_window(Trouble.STOPPED, 70_000, 75_000, 1)], [_gained("w1", 0)], [(50_000, 60_000)]),
        # A link that is cut or slow: the owner's, for as long as it is; one that nobody mends until the end.
        (_BOTH_LIVE, [_window(Trouble.LINK, 20_000, 35_000, 1)], [_gained("w1", 0)], [(20_000, 35_000)]),
        (_BOTH_LIVE, [_window(Trouble.LINK, 20_000, None)], [_gained("w1", 0)], [(20_000, 100_000)]),
        (_BOTH_LIVE, [_window(Trouble.LINK, 20_000, 35_000, 2)], [_gained("w1", 0)], []),
        # The backend: only one that serves nobody.
        (_BOTH_LIVE, [_window(Trouble.BACKEND, 20_000, 25_000)], [_gained("w1", 0)], []),
        (
            _BOTH_LIVE,
            [_window(Trouble.BACKEND, 20_000, 25_000, serves_nobody=True)],
            [_gained("w1", 0)],
            [(20_000, 25_000)],
        ),
        # One after another on three owners.
        (
            (*_W1_DIES, _life("w3", 3)),
            [_window(Trouble.LINK, 58_000, 64_000, 2), _window(Trouble.STOPPED, 66_000, 70_000, 3)],
            [_gained("w1", 0), _gained("w2", 61_000), _gained("w3", 65_000)],
            [(50_000, 60_000), (61_000, 64_000), (66_000, 70_000)],
        ),
    ],
)
def test_a_partition_is_held_by_the_faults_of_its_owner(
    lives: tuple[Life, ...], windows: list[Window], changes: list[OwnerChange], spans: list[Span]
) -> None:
    facts = Facts(
        accepted=frozenset(),
        undecodable=frozenset(),
        records=(),
        outcomes=(),
        letters=(),
        executions=(),
        lives=lives,
        windows=tuple(windows),
        commits={},
        end_ms=100_000,
        owner_changes=tuple(changes),
    )
    assert FaultsOnPartitions(facts, session_ms=10_000).spans(_KEY) == spans


def test_spans_that_overlap_count_once() -> None:
    assert merged([(5, 9), (1, 3), (2, 4), (9, 10), (7, 7)]) == [(1, 4), (5, 10)]
    assert covered_ms((2, 8), [(0, 4), (3, 5), (7, 20), (9, 10)]) == 4


def test_the_log_of_a_worker_tells_what_it_owned(tmp_path: Path) -> None:
    said: list[object] = [
        {"event": "working", "timestamp": "2026-01-01T00:00:00.000000Z"},
        {
            "event": "partitions assigned",
            "partitions": ["requests.high/0", "retry.high.1s/1"],
            "timestamp": "1970-01-01T00:00:01.500000Z",
        },
        {
            "event": "partitions released",
            "partitions": [["requests.high", 0]],
            "lost": False,
            "timestamp": "1970-01-01T00:00:02.000000Z",
        },
        {"event": "partitions lost", "partitions": ["retry.high.1s/1"], "timestamp": "1970-01-01T00:00:03.000000Z"},
    ]
    log = tmp_path / "worker-1.log"
    log.write_text("".join(f"{json.dumps(each)}\n" for each in said) + "%3|no JSON\n[1]\n" + '{"event": "partitions as')
    changes = read_owner_changes("worker-1", log)
    assert [(change.at_ms, change.key, change.is_gain) for change in changes] == [
        (1_500, ("requests.high", 0), True),
        (1_500, ("retry.high.1s", 1), True),
        (2_000, ("requests.high", 0), False),
        (3_000, ("retry.high.1s", 1), False),
    ]
