"""What is said on the control topic, cancels and expedites, and what workers answer on the coordination topic. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal, TypeVar

import msgspec

from forebay_schemas.contract.envelope_problems import is_request_id


class ControlAction(StrEnum):
    """What is wanted of a request."""

    CANCEL = "cancel"
    EXPEDITE = "expedite"


class ControlOutcome(StrEnum):
    """What a worker did."""

    CANCELLED = "cancelled"
    """The request ends as `cancelled`; nothing of it runs any more."""

    EXPEDITED = "expedited"
    """The request lies in the high tier now."""

    ALREADY_HIGH = "already_high"
    """It is in the high tier: there is nothing more urgent."""

    RUNNING = "running"
    """It runs already: there is nothing to expedite."""

    FINISHED = "finished"
    """It has ended, or ended before it could be cancelled."""

    REFUSED = "refused"
    """Kafka does not take it into the high tier (too large, or denied): it stays where it is."""


DONE: Final = frozenset({ControlOutcome.CANCELLED, ControlOutcome.EXPEDITED, ControlOutcome.ALREADY_HIGH})
"""After these the request is what was asked for."""


# What a place can be: another number would fail the look for all that are wanted beside it.
_Partition = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Control(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One record of the control topic: ``action`` is wanted of a request.

    ``topic``, ``partition`` and ``offset`` say where it was submitted to, all three or none: with them the owner of
    that partition finds it before it has been read; without, it is found as soon as it is. ``at``: epoch milliseconds
    on the sender's clock, ``by``: user and host, both for people. What counts as the time is the broker's stamp on the
    record: requests that were enqueued after it are not meant.
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
        """Where it was submitted to; None when that is not said."""
        if self.topic is None or self.partition is None or self.offset is None:
            return None
        return self.topic, self.partition, self.offset


class Controlled(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A worker's answer, on the coordination topic under the worker's id.

    ``topic``, ``partition`` and ``offset`` are where an expedited request lies now, else None.
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
    """The record's key. The action is part of it: compaction must not let an expedite take a cancel's place."""
    return f"{action}:{request_id}".encode()


def encode_control(control: Control) -> bytes:
    """The record value."""
    return _encoder.encode(control)


def decode_control(value: bytes | None) -> Control | None:
    """What a record asks for; None for what is no control record."""
    return _decoded(_control_decoder, value)


def encode_controlled(answer: Controlled) -> bytes:
    """The record value."""
    return _encoder.encode(answer)


def decode_controlled(value: bytes | None) -> Controlled | None:
    """The answer in a record of the coordination topic; None for the other records there."""
    if value is None or b'"controlled"' not in value:
        return None
    return _decoded(_controlled_decoder, value)


def _decoded(decoder: msgspec.json.Decoder[_Record], value: bytes | None) -> _Record | None:
    try:
        return None if value is None else decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
