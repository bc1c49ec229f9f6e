"""The findings of a doctor: their status, how they are printed, and the exit code. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from forebay_schemas.errors import ExitCode
from forebay_schemas.runtime.terminal import printable, printable_json

CONNECTION_CHECK: Final = "kafka.connection"
"""The check whose failure means that no broker is reachable: exit code 3."""


class Status(StrEnum):
    """The status of a check."""

    OK = "ok"
    WARNING = "warning"
    """It works, but should be changed; or it could not be checked."""
    FAILED = "failed"
    """Something will not work."""
    SKIPPED = "skipped"
    """Not checked; the detail says why."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a doctor's answer.

    ``check`` and ``status`` are stable names; the texts are for people. ``detail``: what was checked and found.
    ``fix``: what to do; None if nothing is wrong.
    """

    check: str
    status: Status
    detail: str
    fix: str | None = None


def ok(check: str, detail: str) -> Finding:
    """A check that passed."""
    return Finding(check=check, status=Status.OK, detail=detail)


def warning(check: str, detail: str, *, fix: str) -> Finding:
    """A check that found something to improve."""
    return Finding(check=check, status=Status.WARNING, detail=detail, fix=fix)


def failed(check: str, detail: str, *, fix: str) -> Finding:
    """A check that failed."""
    return Finding(check=check, status=Status.FAILED, detail=detail, fix=fix)


def skipped(check: str, why: str) -> Finding:
    """A check that was skipped."""
    return Finding(check=check, status=Status.SKIPPED, detail=why)


def exit_code(findings: Iterable[Finding]) -> ExitCode:
    """0 when nothing failed, 3 when no broker was reached, else 1."""
    checks_failed = {finding.check for finding in findings if finding.status is Status.FAILED}
    if CONNECTION_CHECK in checks_failed:
        return ExitCode.UNREACHABLE
    return ExitCode.FAILED if checks_failed else ExitCode.OK


def findings_text(findings: Sequence[Finding]) -> str:
    """A line for each finding, followed by a line with its fix."""
    wide = max((len(finding.check) for finding in findings), default=0)
    status_wide = max(len(status) for status in Status)
    lines: list[str] = []
    for finding in findings:
        lines.append(f"{finding.status:<{status_wide}}  {finding.check:<{wide}}  {_one_line(finding.detail)}")
        if finding.fix is not None:
            lines.append(f"{'':<{status_wide}}  {'':<{wide}}  -> {_one_line(finding.fix)}")
    return "\n".join(lines)


def findings_json(findings: Iterable[Finding]) -> str:
    """A JSON object per line."""
    return printable_json("\n".join(msgspec.json.encode(finding).decode() for finding in findings))


def summary(findings: Iterable[Finding]) -> str:
    """The number of findings by status."""
    statuses = [finding.status for finding in findings]
    return "doctor: " + ", ".join(f"{statuses.count(status)} {status}" for status in Status)


def named(names: Sequence[str], *, shown: int = 4) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {more} more" if more > 0 else "")


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))
