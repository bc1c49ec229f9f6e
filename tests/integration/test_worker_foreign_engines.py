"""Engines that are not ours: xpyd-sim, and real llama.cpp."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay_schemas.contract.tiers import TIERS
from harness.live_pool import envelope

if TYPE_CHECKING:
    from forebay_sandbox.testing.foreign_engines import ForeignEngine
    from harness.live_pool import LivePool
    from harness.workers import NewWorker


def assert_serves(pool: LivePool, new_worker: NewWorker, foreign: ForeignEngine) -> None:
    """Twenty requests over all tiers, every third one streamed."""
    new_worker(pool, backend_url=foreign.url, limit_max=4)
    for number in range(20):
        body = {
            "model": foreign.model,
            "messages": [{"role": "user", "content": f"request {number}"}],
            "max_tokens": 8,
            "ignore_eos": True,
        }
        if number % 3 == 0:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        pool.submit(TIERS[number % len(TIERS)], envelope(f"request-{number}", payload=body))
    results = pool.results(pool.accepted)
    assert len(results) == 20
    for result in results.values():
        assert result.status == "completed", result.error
        assert result.prompt_tokens is not None
        assert result.output_tokens is not None
        assert result.prompt_tokens >= 1
        assert 1 <= result.output_tokens <= 8
        assert result.body["object"] == "chat.completion"
        assert isinstance(result.body["choices"][0]["message"]["content"], str)


def test_xpyd_sim_serves_a_worker(pool: LivePool, new_worker: NewWorker, xpyd_engine: ForeignEngine) -> None:
    assert_serves(pool, new_worker, xpyd_engine)


def test_llamacpp_serves_a_worker(pool: LivePool, new_worker: NewWorker, llamacpp_engine: ForeignEngine) -> None:
    assert_serves(pool, new_worker, llamacpp_engine)
