"""Text of others is shown at a terminal and does not steer it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from forebay_schemas.runtime.terminal import printable, printable_document, printable_json, printable_lines

HOSTILE = "a\x1b]0;title\x07 \x1b[8m\x9b31m \u202eevil \u200b\x7f\r\n \U000e0001 é 😀 \ud800"


@pytest.mark.parametrize("make", [printable, printable_lines])
def test_whatever_it_holds_it_is_printable(make: Any) -> None:
    shown = make(HOSTILE)
    assert shown.replace("\n", "").isprintable()
    assert "é 😀" in shown
    assert ("\n" in shown) is (make is printable_lines)


def test_json_means_the_same_and_is_printable() -> None:
    document = {HOSTILE[:-1]: [HOSTILE[:-1], 1, None, {"x": '\\ " \x00'}]}
    text = "\n".join(json.dumps(document, ensure_ascii=False) for _ in range(2))
    shown = printable_json(text)
    assert [json.loads(line) for line in shown.split("\n")] == [document, document]
    assert shown.replace("\n", "").isprintable()
    assert "é 😀" in shown
    assert printable_json('{"a":"b"}') == '{"a":"b"}'


def test_a_document_is_printable_in_keys_and_depth() -> None:
    shown = printable_document({HOSTILE: [{"a": HOSTILE}, 1]})
    assert json.dumps(shown, ensure_ascii=False).isprintable()
