"""A handler that fails each time fills no log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping, Sequence
from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs

from forebay_worker.execution import handler_failures
from forebay_worker.execution.handler_failures import KINDS_MAX, HandlerFailures, kind_of

Lines = Sequence[MutableMapping[str, Any]]


def breaks(words: str = "SECRET") -> None:
    raise ValueError(words)


def breaks_elsewhere() -> None:
    raise ValueError("SECRET")


def raised(break_it: Callable[[], None] = breaks) -> BaseException:
    try:
        break_it()
    except Exception as error:  # noqa: BLE001 - that is what is wanted
        return error
    raise AssertionError


def said(*errors: BaseException, then_seconds: float = 0.0) -> Lines:
    async def run() -> None:
        failures = HandlerFailures()
        for number, error in enumerate(errors):
            failures.failed(f"r-{number}", error)
        await asyncio.sleep(then_seconds)
        failures.close()

    with capture_logs() as lines:
        asyncio.run(run())
    return lines


def test_the_first_failure_of_a_kind_is_said_in_full_and_the_others_as_a_number() -> None:
    errors = [raised(partial(breaks, f"SECRET {number}")) for number in range(200)]
    first, rest = said(*errors)
    assert (first["event"], first["request_id"], first["exc_info"]) == ("handler failed", "r-0", errors[0])
    assert (rest["event"], rest["times"], rest["kind"]) == ("handler failed again", 199, kind_of(errors[0]))
    assert rest["kind"].startswith("ValueError at ")
    assert "SECRET" not in str(rest)


def test_what_is_raised_elsewhere_is_another_kind() -> None:
    lines = said(raised(), raised(breaks_elsewhere), raised(lambda: breaks_elsewhere()))
    assert [line["event"] for line in lines] == ["handler failed", "handler failed", "handler failed again"]


def test_after_a_minute_the_sum_is_said_and_the_next_one_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler_failures, "TOGETHER_SECONDS", 0.01)

    async def run() -> None:
        failures = HandlerFailures()
        for _ in range(3):
            failures.failed("r", raised())
        await asyncio.sleep(0.2)
        failures.failed("r", raised())

    with capture_logs() as lines:
        asyncio.run(run())
    assert [line["event"] for line in lines] == ["handler failed", "handler failed again", "handler failed"]


def test_kinds_without_end_are_summed_up_together() -> None:
    errors = [raised(partial(exec, compile("1/0", f"made-up-{number}", "exec"))) for number in range(3 * KINDS_MAX)]
    lines = said(*errors)
    assert len(lines) == KINDS_MAX + 2, "those, the first of the others, and the others"
    assert (lines[-1]["kind"], lines[-1]["times"]) == (handler_failures.OTHERS, 2 * KINDS_MAX - 1)


def test_an_exception_that_was_never_raised_has_a_kind_too() -> None:
    assert kind_of(SystemExit(3)) == "SystemExit"
