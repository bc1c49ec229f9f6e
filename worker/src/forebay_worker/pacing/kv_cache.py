"""Size of the backend's KV cache in tokens, learnt from its reported fill. Pure."""

from __future__ import annotations

KV_SHARE_TELLING = 0.1
"""Below this fill the cache size cannot be estimated."""

KV_ALPHA = 0.1
"""Estimates of the tokens in the cache are off by half, either way; ten seconds make a mean."""


class KvCache:
    """``tokens``: the estimate; None until the backend has reported."""

    def __init__(self) -> None:
        self.tokens: float | None = None

    def learn(self, used_share: float | None, *, tokens_in_flight: float, own_part: float) -> None:
        """``used_share``: as the engine reports it. ``tokens_in_flight``: this worker's tokens in the cache.
        ``own_part``: their part of all tokens in the cache, 0 to 1."""
        if used_share is None or used_share < KV_SHARE_TELLING or tokens_in_flight <= 0 or not own_part:
            return
        seen = tokens_in_flight / own_part / used_share
        self.tokens = seen if self.tokens is None else self.tokens + KV_ALPHA * (seen - self.tokens)
