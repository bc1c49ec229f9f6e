"""Dead letters counted by kind: what is open, what it died of, in bounded memory."""

from __future__ import annotations

import pytest

from forebay_producer.dead_letters.groups import ERRORS_MAX, GROUPS_MAX, OTHERS, By, Groups
from forebay_producer.dead_letters.groups_view import group_record, groups_text, next_steps
from forebay_producer.dead_letters.letter import SAMPLES_MAX
from forebay_producer.dead_letters.selection import Selection
from forebay_producer.dead_letters.state import State
from unit.producer.dead_letters.test_letter import ENVELOPE, NOW_MS, letter


@pytest.mark.parametrize(
    ("by", "name"),
    [
        (By.REASON, "backend_error"),
        (By.TIER, "high"),
        (By.TENANT, "acme"),
        (By.BIZ_TYPE, "chat_completion"),
        (By.MODEL, "m"),
        (By.ERROR_CLASS, "forebay.backend_error"),
    ],
)
def test_dead_letters_are_counted_by_kind_and_those_done_with_apart(by: By, name: str) -> None:
    groups = Groups(by)
    states = [State.OPEN] * 4 + [State.REPLAYED, State.DISCARDED]
    for number, state in enumerate(states):
        one = {**ENVELOPE, "request_id": f"r-{number}", "tenant": "acme"}
        groups.add(letter(one, timestamp_ms=NOW_MS - number), state)
    groups.add(letter(value=None, topic="?", reason="other"), State.REPLAYED)
    groups.add(letter({**ENVELOPE, "tenant": "x" * 9}, reason="gone", topic="gone"), State.DISCARDED)
    first = groups.ranked()[0]
    assert (first.name, first.open) == (name, 4)
    assert (first.first_seen, first.last_seen) == (NOW_MS - 4, NOW_MS)
    assert list(first.sample_ids) == ["r-1", "r-2", "r-3"]
    assert len(first.sample_ids) == SAMPLES_MAX
    assert sum(group.replayed for group in groups.ranked()) == 2
    assert sum(group.discarded for group in groups.ranked()) == 2


def test_groups_without_end_are_counted_together() -> None:
    groups = Groups(By.REASON)
    for number in range(GROUPS_MAX + 50):
        groups.add(letter(reason=f"reason-{number}"), State.OPEN)
    ranked = groups.ranked()
    assert len(ranked) == GROUPS_MAX + 1
    assert (ranked[0].name, ranked[0].open) == (OTHERS, 50)


def test_errors_that_differ_in_numbers_and_ids_are_one_and_a_status_is_not() -> None:
    groups = Groups(By.REASON)
    errors = ["HTTP 500: CUDA error on GPU %d", "HTTP 503: CUDA error on GPU %d", "HTTP 500: out of memory: %x"]
    for number in range(400):
        groups.add(letter(error=errors[number % 4 % 3] % number), State.OPEN)
    [group] = groups.ranked()
    assert [(each.error, each.count) for each in group.errors] == [
        ("HTTP 500: CUDA error on GPU 0", 200),
        ("HTTP 503: CUDA error on GPU 1", 100),
        ("HTTP 500: out of memory: 2", 100),
    ]
    text = groups_text([group], By.REASON)
    assert "backend_error, 400 open: The backend answered with an error of its own (5xx). Look at" in text
    assert "       200 x HTTP 500: CUDA error on GPU 0\n" in text
    assert group_record(group, By.REASON)["errors"][0] == {"error": "HTTP 500: CUDA error on GPU 0", "count": 200}


def test_errors_without_end_are_counted_together_and_steer_no_terminal() -> None:
    groups = Groups(By.TENANT)
    for number in range(1_000):
        groups.add(letter(error="\x1b[2J" + chr(0x4E00 + number) * 400), State.OPEN)
    [group] = groups.ranked()
    assert len(group.errors) == ERRORS_MAX + 1
    assert (group.errors[0].error, group.errors[0].count) == (OTHERS, 1_000 - ERRORS_MAX)
    text = groups_text([group], By.TENANT)
    assert "\x1b" not in text
    assert "with other errors" in text


def grouped(by: By, *kinds: tuple[str, int]) -> Groups:
    groups = Groups(by)
    for reason, count in kinds:
        for _ in range(count):
            groups.add(letter(reason=reason), State.OPEN)
    return groups


@pytest.mark.parametrize(
    ("kinds", "suggested"),
    [
        (
            (("backend_rejected", 9), ("worker_crashed", 8), ("backend_error", 7), ("backend_timeout", 6)),
            ["replay --reason backend_error", "export --reason backend_rejected"],
        ),
        ((("backend_error", 2),), ["replay --reason backend_error"]),
        ((("undecodable", 2),), ["export --reason undecodable"]),
        ((("of another system", 2),), []),
    ],
)
def test_a_replay_is_suggested_of_what_trying_again_can_help(
    kinds: tuple[tuple[str, int], ...], suggested: list[str]
) -> None:
    steps = next_steps(Selection(), grouped(By.REASON, *kinds).ranked(), By.REASON)
    assert [words[0] for words, _ in steps[:2]] == ["show", "list"]
    assert [" ".join(words) for words, _ in steps[2:]] == suggested


@pytest.mark.parametrize(
    ("reasons", "suggested"),
    [
        ((), []),
        (("backend_error", "backend_timeout"), ["replay"]),
        (("backend_rejected",), ["export"]),
        (("backend_error", "backend_rejected"), []),
    ],
)
def test_by_another_kind_a_replay_is_suggested_only_of_reasons_that_were_asked_for(
    reasons: tuple[str, ...], suggested: list[str]
) -> None:
    groups = grouped(By.MODEL, ("backend_error", 2), ("backend_rejected", 2)).ranked()
    steps = next_steps(Selection(reason=reasons), groups, By.MODEL)
    assert [words[0] for words, _ in steps] == ["show", "list", *suggested]


def test_nothing_is_suggested_when_nothing_is_open() -> None:
    assert next_steps(Selection(), [], By.REASON) == []
