"""Groups of dead letters as JSON objects and as text. Pure."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from forebay_producer.dead_letters.groups import OTHERS, By, Group
from forebay_producer.dead_letters.selection import NONE, Selection
from forebay_schemas.contract.reasons import REASONS_BY_CODE, Reason
from forebay_schemas.runtime.terminal import printable

EXPLAINED_GROUPS_MAX: Final = 10
SHOWN_ERRORS_MAX: Final = 3


def kind_text(group: Group) -> str:
    """The group's name as shown, which can also be typed as a filter."""
    return NONE if group.name is None else printable(group.name)


def group_record(group: Group, by: By) -> dict[str, Any]:
    """The group as a JSON object; times in epoch milliseconds."""
    record: dict[str, Any] = {
        by.value: group.name,
        "open": group.open,
        "replayed": group.replayed,
        "discarded": group.discarded,
        "first_seen": group.first_seen,
        "last_seen": group.last_seen,
        "sample_ids": list(group.sample_ids),
        "errors": [{"error": each.error, "count": each.count} for each in group.errors],
    }
    if by is By.REASON:
        reason = _reason_of(group)
        record |= {"meaning": None, "action": None}
        if reason is not None:
            record |= {"meaning": reason.meaning, "action": reason.action}
    return record


def groups_text(groups: list[Group], by: By) -> str:
    """The causes of the open letters in the largest groups, and what to do about them."""
    return "".join(_explained(group, by) for group in groups[:EXPLAINED_GROUPS_MAX] if group.open)


def _explained(group: Group, by: By) -> str:
    lines = [f"\n{kind_text(group)}, {group.open:,} open"]
    if by is By.REASON and (reason := _reason_of(group)) is not None:
        lines[0] += f": {reason.meaning} {reason.action}"
    shown = group.errors[:SHOWN_ERRORS_MAX]
    rest = group.open - sum(each.count for each in shown)
    lines += [f"{each.count:>10,} x {printable(each.error) or '(no error text)'}" for each in shown]
    if rest:
        lines.append(f"{rest:>10,} with other errors")
    return "\n".join(lines) + "\n"


def next_steps(selection: Selection, groups: list[Group], by: By) -> list[tuple[list[str], str]]:
    """Suggested next commands: the words behind ``forebay dead-letters``, and their purpose. ``groups``: the largest
    first.

    Suggests to show a letter of the largest group, to replay the largest group that a retry can help, and to export the
    largest group that it cannot.
    """
    to_do = [group for group in groups if group.open and group.name != OTHERS]
    if not to_do:
        return []
    sample = to_do[0].sample_ids[-1]
    finer = By.MODEL if by is By.REASON else By.REASON
    steps = [
        (["show", *(["--", sample] if sample.startswith("-") else [sample])], "the last one in full"),
        (["list", *_only(selection, to_do[0], by).options, "--by", finer.value], "who else has it in common"),
    ]
    for retryable, command, why in (
        (True, "replay", "what a replay would do; sends nothing without --yes"),
        (False, "export", "these would die again: for whoever can correct them; or discard them"),
    ):
        of_it = [group for group in to_do if _retryable(group, selection, by) is retryable]
        if of_it:
            steps.append(([command, *_only(selection, of_it[0], by).options], why))
    return steps


def _only(selection: Selection, group: Group, by: By) -> Selection:
    return msgspec.structs.replace(selection, **{by.value: (group.name or NONE,)})


def _retryable(group: Group, selection: Selection, by: By) -> bool | None:
    """Whether a retry can help all, or none, of the group; None if mixed or unknown."""
    codes = (group.name or NONE,) if by is By.REASON else selection.reason
    known = {reason.retryable if (reason := REASONS_BY_CODE.get(code)) is not None else None for code in codes}
    return known.pop() if len(known) == 1 else None


def _reason_of(group: Group) -> Reason | None:
    return REASONS_BY_CODE.get(group.name or "")
