"""What a handler of the user's is given, and what it may return and raise; `forebay_worker` exports it. Pure."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import msgspec

from forebay_schemas.contract.tiers import Tier


class HandlerRequest(msgspec.Struct, kw_only=True):
    """What a handler is given. ``payload_json`` is the payload as it came; ``deadline_ms`` is epoch milliseconds."""

    request_id: str
    biz_type: str
    payload_json: msgspec.Raw
    tier: Tier
    priority: int
    tenant: str | None
    attempt: int
    deadline_ms: int
    _payload: dict[str, Any] | None = None

    @property
    def payload(self) -> dict[str, Any]:
        """The request's JSON object, decoded when it is first asked for."""
        if self._payload is None:
            self._payload = msgspec.json.decode(self.payload_json)
        return self._payload


class HandlerAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a handler returns to tell more than the result's ``body``: how many tokens it read and made.

    The result has them, and pacing learns from ``output_tokens``. None: not known.
    """

    body: Any
    prompt_tokens: int | None = None
    output_tokens: int | None = None


class NotRetryableError(Exception):
    """Raised by a handler for a request that trying again cannot help: it fails at once, and is a dead letter."""


Handler = Callable[[HandlerRequest], Awaitable[Any]] | Callable[[HandlerRequest], AsyncGenerator[Any, None]]
"""Returns the result's body, or a `HandlerAnswer`. What it raises is tried again, but for `NotRetryableError`.

An async generator yields the answer in events. A `HandlerAnswer`, yielded last, is the answer itself; without one,
chunks of a chat or a completion are merged into their body, and any other values are the body's list."""
