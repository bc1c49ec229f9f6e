"""Which pieces a reader shows, in which order, and when it stops."""

from __future__ import annotations

import itertools
from random import Random

import msgspec
import pytest

from forebay_producer.replies.piece_order import EARLY_PIECES_MAX, PieceOrder, StreamState
from forebay_schemas.contract.pieces import Piece, StreamEvent, StreamFault


def event(text: str) -> StreamEvent:
    return StreamEvent(msgspec.Raw(msgspec.json.encode(text)))


def piece(run: str, number: int, text: str = "", **more: object) -> Piece:
    fields = {"request_id": "r", "attempt": 1, "run": run, "number": number, "events": [event(text)] if text else []}
    return Piece(**{**fields, **more})  # type: ignore[arg-type]


def shown(order: PieceOrder, *pieces: Piece) -> str:
    return "".join(msgspec.json.decode(each.data) for one in pieces for each in order.take(one))


WHOLE = [piece("a", 0, "x"), piece("a", 1, "y"), piece("a", 2, "z", last=True)]


def test_any_order_and_repetition_shows_each_event_once_in_order() -> None:
    for pieces in itertools.permutations([*WHOLE, WHOLE[1]]):
        order = PieceOrder()
        assert shown(order, *pieces) in ("xyz", "xy", "x", "")
        if pieces[0] is WHOLE[0]:
            assert order.state is StreamState.COMPLETE


def test_a_run_is_not_joined_in_its_middle() -> None:
    order = PieceOrder()
    assert shown(order, WHOLE[1], WHOLE[2]) == ""
    assert order.state is StreamState.RUNNING


@pytest.mark.parametrize(
    ("pieces", "text", "state"),
    [
        pytest.param(WHOLE, "xyz", StreamState.COMPLETE, id="whole"),
        pytest.param([WHOLE[0], piece("b", 0, "other")], "x", StreamState.BROKEN, id="another run"),
        pytest.param(
            [WHOLE[0], piece("a", 1, error=StreamFault.BROKEN), piece("b", 0, "y", continues=("a", 1), last=True)],
            "xy",
            StreamState.COMPLETE,
            id="a retry that goes on",
        ),
        pytest.param(
            [WHOLE[0], piece("a", 1, error=StreamFault.BROKEN), piece("b", 0, "y", continues=("a", 0))],
            "x",
            StreamState.BROKEN,
            id="a retry that goes on from elsewhere",
        ),
        pytest.param(
            [WHOLE[0], piece("a", 1, "y", error=StreamFault.BROKEN), piece("b", 0, error=StreamFault.DIFFERS)],
            "xy",
            StreamState.BROKEN,
            id="a retry that differs",
        ),
        pytest.param([WHOLE[0], piece("a", 1, error=StreamFault.TOO_LARGE)], "x", StreamState.BROKEN, id="too large"),
        pytest.param([WHOLE[0], piece("a", 1, "y", replay_count=1)], "x", StreamState.RUNNING, id="of a replay"),
        pytest.param(
            [
                WHOLE[0],
                piece("a", 1, error=StreamFault.BROKEN),
                piece("b", 0, "y", continues=("a", 1)),
                WHOLE[1],
                piece("b", 1, "z"),
            ],
            "xyz",
            StreamState.RUNNING,
            id="a late repetition of the run before",
        ),
    ],
)
def test_what_is_shown(pieces: list[Piece], text: str, state: StreamState) -> None:
    order = PieceOrder()
    assert (shown(order, *pieces), order.state) == (text, state)


def test_a_gap_that_does_not_close_ends_in_the_result() -> None:
    order = PieceOrder()
    late = [piece("a", number, "x") for number in range(2, EARLY_PIECES_MAX + 4)]
    assert shown(order, WHOLE[0], *late) == "x"
    assert order.state is StreamState.BROKEN


def test_what_is_shown_is_always_a_beginning_of_one_chain_of_runs() -> None:
    chain = [
        piece("a", 0, "1"),
        piece("a", 1, "2"),
        piece("a", 2, error=StreamFault.BROKEN),
        piece("b", 0, "3", continues=("a", 2)),
        piece("b", 1, "4", last=True),
    ]
    for seed in range(300):
        random = Random(seed)
        pieces = [*chain, *random.choices(chain, k=3), piece("c", 0, "other")]
        random.shuffle(pieces)
        found = shown(PieceOrder(), *pieces)
        assert "1234".startswith(found) or found == "other", seed
