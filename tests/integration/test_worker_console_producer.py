"""The contract for everyone: the JSON envelope, written with no headers by Kafka's own console producer."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from forebay_sandbox.kafka.tools import console_producer
from forebay_schemas.contract.tiers import Tier

if TYPE_CHECKING:
    from harness.served import Served


def printed(request_id: str, *, expire_at: int) -> str:
    """The envelope as the documentation prints it."""
    return json.dumps(
        {
            "request_id": request_id,
            "biz_type": "chat_completion",
            "priority": 10,
            "expire_at": expire_at,
            "payload": {"model": "qwen2.5-72b", "messages": []},
        }
    )


def test_what_kafkas_console_producer_writes_comes_out_as_a_result(served: Served) -> None:
    in_a_minute = time.time_ns() // 1_000_000 + 60_000
    console_producer(
        served.pool.topics.requests(Tier.HIGH),
        [
            printed("8c2f6b1e-0f3b-4d58-9d4e-8d2b8f0c7a11", expire_at=in_a_minute),
            printed("0d8e51e3-64a5-4a0e-b7a9-5f7a4b0f2a95", expire_at=1735689600000),
        ],
        bootstrap_servers=served.pool.kafka.bootstrap_servers,
    )
    completed = served.pool.result("8c2f6b1e-0f3b-4d58-9d4e-8d2b8f0c7a11")
    expired = served.pool.result("0d8e51e3-64a5-4a0e-b7a9-5f7a4b0f2a95")
    assert (completed.status, completed.reason) == ("completed", "completed")
    assert completed.body["choices"][0]["message"]["content"]
    assert (expired.status, expired.reason) == ("expired", "deadline_passed_waiting")
