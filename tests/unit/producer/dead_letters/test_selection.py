"""Selections of dead letters: their letters, their words, and the options that make them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from forebay_producer.cli.dead_letters.selection import SelectionOptions
from forebay_producer.dead_letters.letter import Letter, LetterDecoder
from forebay_producer.dead_letters.selection import Selection
from forebay_schemas.contract.topics import Pool
from forebay_schemas.errors import UsageError
from unit.producer.dead_letters.test_letter import ENVELOPE, NOW_MS, StoredRecord, letter

BARE = LetterDecoder(Pool("p")).decode(StoredRecord(stored_value=b"\xff", stored_headers=[], stored_key=None))
ACME = letter({**ENVELOPE, "tenant": "acme"}, timestamp_ms=NOW_MS)


@pytest.mark.parametrize(
    ("given", "meant", "bare_too"),
    [
        ({}, True, True),
        ({"reason": ("backend_error",)}, True, False),
        ({"reason": ("handler_failed", "backend_error")}, True, False),
        ({"reason": ("handler_failed",)}, False, False),
        ({"reason": ("-",)}, False, True),
        ({"model": ("m",)}, True, False),
        ({"model": ("-",)}, False, True),
        ({"tenant": ("acme", "-")}, True, True),
        ({"tier": ("high",)}, True, False),
        ({"tier": ("-",)}, False, True),
        ({"biz_type": ("chat_completion",)}, True, False),
        ({"error_class": ("forebay.backend_error",)}, True, False),
        ({"id": ("r",)}, True, False),
        ({"id": ("0:7",)}, True, True),
        ({"id": ("r", "other"), "tier": ("low",)}, False, False),
        ({"since": NOW_MS}, True, True),
        ({"since": NOW_MS + 1}, False, False),
        ({"until": NOW_MS}, False, False),
        ({"since": NOW_MS - 1, "until": NOW_MS + 1, "tenant": ("acme",)}, True, False),
    ],
)
def test_a_letter_must_pass_every_filter_by_any_of_its_values(
    given: dict[str, Any], meant: bool, bare_too: bool
) -> None:
    selection = Selection(**given)
    assert (selection.matches(ACME), selection.matches(BARE)) == (meant, bare_too)
    assert selection.is_everything is (not given)
    assert msgspec.json.decode(msgspec.json.encode(selection), type=Selection) == selection


def test_a_selection_reads_as_the_options_that_make_it() -> None:
    options = SelectionOptions(
        reason=["b", "a b", "b"], tenant=["-x", "-"], ids=["0:17"], since="2h", until="2030-03-17T17:46:40.5Z"
    )
    selection = options.selection(now_ms=NOW_MS)
    assert selection.since == NOW_MS - 7_200_000
    assert str(selection) == (
        "--reason 'a b' --reason b --tenant - --tenant=-x --id 0:17 "
        "--since 2030-03-17T15:46:40Z --until 2030-03-17T17:46:40.500Z"
    )
    assert msgspec.json.encode(selection) == (
        b'{"reason":["a b","b"],"tenant":["-","-x"],"id":["0:17"],"since":1899992800000,"until":1900000000500}'
    )
    assert str(Selection()) == "(all)"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (SelectionOptions(tier=["urgent"]), "--tier"),
        (SelectionOptions(since="yesterday"), "--since"),
        (SelectionOptions(since="1h", until="2h"), "--until"),
    ],
)
def test_a_wrong_option_is_named(options: SelectionOptions, field: str) -> None:
    with pytest.raises(UsageError) as raised:
        options.selection(now_ms=NOW_MS)
    assert raised.value.field == field


@pytest.mark.parametrize("one", [ACME, BARE, letter(value=None), letter([1]), letter({"payload": 5, "tenant": {}})])
def test_no_letter_makes_a_filter_fail(one: Letter) -> None:
    for name in ("reason", "model", "tenant", "tier", "biz_type", "error_class", "id"):
        given: dict[str, Any] = {name: ("x",)}
        assert Selection(**given).matches(one) is False
