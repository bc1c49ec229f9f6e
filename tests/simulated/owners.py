"""Assignments drawn from commits, and the notices of their former owners. Pure."""

from __future__ import annotations

from forebay_schemas.contract.coordination import Notice, NoticeKind
from forebay_schemas.contract.offsets_metadata import CommitMetadata, decode_metadata, runs_of
from forebay_worker.partition.assignment import Assignment, Verdict
from simulated.works import make_assignment

RUNNING, FINISHED = NoticeKind.RUNNING, NoticeKind.FINISHED
RELEASED, LAST_COMMIT = NoticeKind.RELEASED, NoticeKind.LAST_COMMIT

RUN, SKIP, WITHHOLD = Verdict.RUN, Verdict.SKIP, Verdict.WITHHOLD

OFFSETS = 3
"""Length of the partition in the model."""

BEGAN = 100.0
"""Start of the assignments, in monotonic seconds."""


def says(kind: NoticeKind, *offsets: int) -> Notice:
    """A former owner's notice."""
    return Notice(kind=kind, worker="other", topic="t", partition=0, offsets=list(offsets))


def last_commit_of(assignment: Assignment) -> Notice:
    """The notice of a last commit that the broker refused."""
    _, commit = assignment.close()
    assert commit is not None
    return Notice(kind=LAST_COMMIT, worker="other", topic="t", partition=0, committed=commit[0], metadata=commit[1])


def drawn(partition: str, *, committed: int = 0) -> Assignment:
    """An assignment made of a commit: o finished, x running, 1 waiting after a crash, h handed over, . nothing said."""
    at = {state: [committed + place for place, each in enumerate(partition) if each == state] for state in "ox1h"}
    return make_assignment(
        committed=committed,
        now=BEGAN,
        metadata=CommitMetadata(
            finished=runs_of(at["o"]),
            running=tuple((offset, 0) for offset in at["x"]),
            waiting=tuple((offset, 1) for offset in at["1"]),
            handed_over=tuple((offset, 0) for offset in at["h"]),
        ),
    )


def receive_all(assignment: Assignment, count: int) -> list[Verdict]:
    return [assignment.receive(offset) for offset in range(count)]


def metadata_of(commit: tuple[int, str] | None) -> CommitMetadata:
    assert commit is not None
    metadata = decode_metadata(*commit)
    assert metadata is not None
    return metadata


def finished_in(commit: tuple[int, str]) -> set[int]:
    """All offsets that a commit calls finished."""
    beyond = metadata_of(commit).finished
    return set(range(commit[0])).union(*(range(first, first + length) for first, length in beyond))


def finish(assignment: Assignment, *offsets: int) -> None:
    """The outcomes of these are durable, and the consumer's thread has taken note."""
    assignment.done.extend(offsets)
    assignment.drain_done(0.0)
