"""An incident to practise on: thousands of dead letters of three causes, in the pool of the stack that `up` started.

Orders faults from the engine, sends requests, and waits for their dead letters. One thread.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from forebay_sandbox.engine.process import call
from forebay_sandbox.errors import SandboxError
from forebay_sandbox.kafka.access import ANSWER_SECONDS_MAX, KafkaAccess
from forebay_sandbox.stack.stack import MODEL
from forebay_schemas.contract.envelope import JsonCodec
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.contract.topics import REQUEST_BYTES_MAX, Pool
from forebay_schemas.kafka.clients import create_client
from forebay_schemas.kafka.configs import producer_config, reader_config

LETTERS: Final = 4_000

BROKEN_TEXT: Final = "summarise the ticket"
"""The engine fails prompts with this text while the incident lasts."""

# Not 500: nothing else is answered meanwhile, and a backend that answers nothing but 500 makes no dead letters.
_FAULTS: Final = {"faults": [{"kind": "status", "status": 408, "match": BROKEN_TEXT}]}
_TTL_MS: Final = 600_000
_STALLED_SECONDS_MAX: Final = 60.0
_LOOK_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Requests that fail for one reason. ``share``: their part of all."""

    share: float
    tenant: str
    biz_type: str
    model: str
    prompt: str


CAUSES: Final = (
    # The engine times out on them. Only these are worth a replay, once the engine works again.
    Cause(share=0.3, tenant="helpdesk", biz_type="chat_completion", model=MODEL, prompt=BROKEN_TEXT),
    # A client that was rolled out with the name of a model that is not served here.
    Cause(share=0.4, tenant="search", biz_type="chat_completion", model="qwen3-235b", prompt="rewrite the query"),
    # Another client, which uses the wrong pool.
    Cause(share=0.3, tenant="shop", biz_type="product_image", model=MODEL, prompt="a blue vase"),
)


def break_out(engine_url: str, kafka: KafkaAccess, *, pool_name: str, letters: int = LETTERS) -> dict[str, int]:
    """Makes ``letters`` dead letters in the pool; returns their number by tenant. The engine stays broken until `mend`.

    Raises ``SandboxError`` when they do not come, or the brokers do not take the requests. Then, and when it is
    interrupted, the engine is mended: there is no incident without its letters.
    """
    _faults(engine_url, "PUT", _FAULTS)
    try:
        pool = Pool(pool_name)
        before = _dead_letters(kafka, pool)
        counts = _send(kafka, pool, letters)
        _wait_for(kafka, pool, before + letters)
    except BaseException:
        mend(engine_url)
        raise
    return dict(counts)


def mend(engine_url: str) -> None:
    """Removes the engine's faults."""
    _faults(engine_url, "DELETE", None)


def _faults(engine_url: str, method: str, document: dict[str, Any] | None) -> None:
    code, answer = call(engine_url, method, "/sandbox/faults", document)
    if code >= 300:
        raise SandboxError(f"the engine at {engine_url} answered {code}: {answer!r}")


def _requests(letters: int) -> Iterator[tuple[Cause, str, dict[str, Any]]]:
    """The requests of all causes, mixed."""
    counts = [round(letters * cause.share) for cause in CAUSES[:-1]]
    counts.append(letters - sum(counts))
    for number in range(max(counts)):
        for cause, count in zip(CAUSES, counts, strict=True):
            if number >= count:
                continue
            request_id = str(uuid.uuid4())
            yield (
                cause,
                request_id,
                {
                    "request_id": request_id,
                    "biz_type": cause.biz_type,
                    "tenant": cause.tenant,
                    "priority": Tier.MID,
                    "ttl_ms": _TTL_MS,
                    "max_attempts": 1,
                    "payload": {
                        "model": cause.model,
                        "messages": [{"role": "user", "content": f"{cause.prompt} {number}"}],
                        "max_tokens": 16,
                    },
                },
            )


def _send(kafka: KafkaAccess, pool: Pool, letters: int) -> Counter[str]:
    config = producer_config(kafka.connection, client_id="forebay-incident", record_bytes_max=REQUEST_BYTES_MAX)
    producer = create_client(Producer, config)
    codec = JsonCodec()
    refused: list[KafkaError] = []
    counts: Counter[str] = Counter()

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            refused.append(error)

    for cause, request_id, fields in _requests(letters):
        producer.produce(pool.requests(Tier.MID), key=request_id, value=codec.encode(fields), on_delivery=delivered)
        counts[cause.tenant] += 1
        producer.poll(0)
    if producer.flush(ANSWER_SECONDS_MAX) or refused:
        raise SandboxError(f"the broker did not accept all requests: {refused[0].str() if refused else 'no answer'}")
    return counts


def _dead_letters(kafka: KafkaAccess, pool: Pool) -> int:
    """The number of dead letters ever written."""
    consumer = create_client(Consumer, reader_config(kafka.connection, client_id="forebay-incident"))
    try:
        partitions = consumer.list_topics(pool.dead_letter, timeout=ANSWER_SECONDS_MAX).topics[pool.dead_letter]
        return sum(
            consumer.get_watermark_offsets(TopicPartition(pool.dead_letter, one), timeout=ANSWER_SECONDS_MAX)[1]
            for one in partitions.partitions
        )
    finally:
        consumer.close()


def _wait_for(kafka: KafkaAccess, pool: Pool, count: int) -> None:
    last, moved_at = -1, time.monotonic()
    while (now := _dead_letters(kafka, pool)) < count:
        if now != last:
            last, moved_at = now, time.monotonic()
        elif time.monotonic() - moved_at > _STALLED_SECONDS_MAX:
            raise SandboxError(f"{count - now} dead letters are missing; run: forebay backlog")
        time.sleep(_LOOK_SECONDS)
