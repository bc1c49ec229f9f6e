"""Dead letters counted by kind: what is open, what it died of, in bounded memory."""

from __future__ import annotations

import pytest

from forebay_producer.dead_letters import SAMPLES_MAX, State
from forebay_producer.dead_letters_groups import ERRORS_MAX, GROUPS_MAX, OTHERS, By, Groups
from forebay_producer.dead_letters_groups_view import group_record, groups_text
from unit.test_producer_dead_letters import ENVELOPE, NOW_MS, letter


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
