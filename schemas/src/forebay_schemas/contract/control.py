"""Commands on the control topic (cancel, expedite), and the workers' answers on the coordination topic. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal, TypeVar

import msgspec

from forebay_schemas.contract.envelope_problems import is_request_id


class ControlAction(StrEnum):
    """The action of a command."""

    CANCEL = "cancel"
    EXPEDITE = "expedite"


class ControlOutcome(StrEnum):
    """The result of a command."""

    CANCELLED = "cancelled"
    """The request ended as `cancelled`; it no longer runs."""

    EXPEDITED = "expedited"
    """The request is in the high tier now."""

    ALREADY_HIGH = "already_high"
    """It already is in the high tier."""

    RUNNING = "running"
    """It already runs."""

    FINISHED = "finished"
    """It had ended before the command."""

    REFUSED = "refused"
    """Kafka refused it in the high tier (too large, or denied); it keeps its place."""


DONE: Final = frozenset({ControlOutcome.CANCELLED, ControlOutcome.EXPEDITED, ControlOutcome.ALREADY_HIGH})
"""Results after which the command has been carried out."""


# Valid positions. Any other number would fail the lookup of all other commands, too.
_Partition = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Control(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One record of the control topic.

    ``topic``, ``partition`` and ``offset`` are the position the request was submitted to, all three or none. With them
    the owner of that partition finds it before it is read; without, when it is read. ``at``: epoch milliseconds on the
    sender's clock, ``by``: user and host; both for people. The time of the command is the broker's timestamp of the
    record: requests enqueued later are not affected.
    """

    action: ControlAction
    request_id: str
    topic: str | None = None
    partition: _Partition | None = None
    offset: _Offset | None = None
    at: int
    by: str

    def __post_init__(self) -> None:
        if not is_request_id(self.request_id):
            raise ValueError("request_id is none")

    @property
    def place(self) -> tuple[str, int, int] | None:
        """The position it was submitted to; None if not given."""
        if self.topic is None or self.partition is None or self.offset is None:
            return None
        return self.topic, self.partition, self.offset


class Controlled(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A worker's answer, on the coordination topic under the worker's id.

    ``topic``, ``partition`` and ``offset``: the new position of an expedited request, else None.
    """

    worker: str
    action: ControlAction
    request_id: str
    outcome: ControlOutcome
    topic: str | None = None
    partition: _Partition | None = None
    offset: _Offset | None = None
    kind: Literal["controlled"] = "controlled"


_Record = TypeVar("_Record", Control, Controlled)

_encoder = msgspec.json.Encoder()
_control_decoder = msgspec.json.Decoder(Control)
_controlled_decoder = msgspec.json.Decoder(Controlled)


def control_key(action: ControlAction, request_id: str) -> bytes:
    """The record's key. It includes the action, so that compaction does not replace a cancel by an expedite."""
    return f"{action}:{request_id}".encode()


def encode_control(control: Control) -> bytes:
    """The record value."""
    return _encoder.encode(control)


def decode_control(value: bytes | None) -> Control | None:
    """Decodes a command; None for anything else."""
    return _decoded(_control_decoder, value)


def encode_controlled(answer: Controlled) -> bytes:
    """The record value."""
    return _encoder.encode(answer)


def decode_controlled(value: bytes | None) -> Controlled | None:
    """Decodes an answer on the coordination topic; None for other records."""
    if value is None or b'"controlled"' not in value:
        return None
    return _decoded(_controlled_decoder, value)


def _decoded(decoder: msgspec.json.Decoder[_Record], value: bytes | None) -> _Record | None:
    try:
        return None if value is None else decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
