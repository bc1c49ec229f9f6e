"""Errors and waits of an intake, as shown by /readyz and /status. Reads only; any thread."""

from __future__ import annotations

from forebay_worker.intake.client_errors import ClientErrors
from forebay_worker.intake.partitions import Ownership


def troubles_of(name: str, ownership: Ownership, client_errors: ClientErrors) -> list[str]:
    """Errors of intake ``name`` that have lasted longer than a moment."""
    assigned_at: dict[str, float] = {}
    assignments = ownership.assignments.copy()
    for (topic, _), assignment in assignments.items():
        assigned_at[topic] = max(assignment.assigned_at, assigned_at.get(topic, 0.0))
    found = [f"{name}: {trouble}" for trouble in client_errors.texts(assigned_at)]
    if ownership.unknown_count:
        found.append(
            f"{name}: committed offsets unknown of {ownership.unknown_count} partitions ({ownership.unknown_because})"
        )
    if ownership.commits.denied is not None:
        found.append(f"{name}: commits are refused: {ownership.commits.denied}")
    found += [
        f"{topic}/{partition}: outcomes are refused: {assignment.refused}"
        for (topic, partition), assignment in assignments.items()
        if assignment.refused is not None
    ]
    return found


def looked_for(ownership: Ownership) -> list[str]:
    """Partitions, as ``topic/number``, whose requests wait for a scan of the results topic."""
    return [
        f"{topic}/{partition}"
        for (topic, partition), assignment in sorted(ownership.assignments.copy().items())
        if assignment.doubt is not None and assignment.doubt.is_looking
    ]
