"""Records for the benchmarks: valid envelopes of one size, with text that compresses like text. Pure."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

ENVELOPE_BYTES = 800
FAR_EXPIRE_AT = 4_102_444_800_000
"""1 January 2100: nothing expires during a measurement."""

_VARIANTS = 64
_ID_LENGTH = 32


def envelopes(count: int, *, seed: int = 7) -> Iterator[tuple[str, bytes]]:
    """``count`` request ids with their envelopes, each of ``ENVELOPE_BYTES``; no two ids are the same."""
    rng = random.Random(seed)
    prefix = rng.randrange(16**8)
    tails = [_tail(rng) for _ in range(_VARIANTS)]
    for number in range(count):
        request_id = f"{prefix:08x}{number:024x}"
        yield request_id, b'{"request_id":"' + request_id.encode() + tails[number % _VARIANTS]


def _tail(rng: random.Random) -> bytes:
    """Everything after the request id. Random words: one repeated letter would compress to nothing."""
    words = ["".join(rng.choices("etaoinshrdlucmfw", k=rng.randint(2, 9))) for _ in range(400)]
    payload = {"model": "bench", "max_tokens": 64, "messages": [{"role": "user", "content": ""}]}
    fields = {"biz_type": "chat_completion", "priority": 5, "expire_at": FAR_EXPIRE_AT, "payload": payload}
    empty = b'",' + json.dumps(fields, separators=(",", ":")).encode()[1:]
    room = ENVELOPE_BYTES - len(b'{"request_id":"') - _ID_LENGTH - len(empty)
    text = " ".join(words)[:room].encode()
    assert len(text) == room
    return empty.replace(b'"content":""', b'"content":"' + text + b'"')
