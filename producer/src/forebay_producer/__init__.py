"""Submit inference requests to Forebay and wait for their outcomes.

with Producer(bootstrap_servers="127.0.0.1:9092", pool="default") as producer:
    accepted = producer.submit({"biz_type": "chat_completion", "priority": "high", "payload": {...}})
    result = producer.outcome(accepted.request_id, timeout_seconds=30)
"""

from forebay_producer.client import Producer
from forebay_producer.errors import (
    NotDeliveredError,
    OutcomeTimeoutError,
    PastDeadlineError,
    ProducerClosedError,
    ProducerError,
    QueueFullError,
    RecordTooLargeError,
)
from forebay_producer.sender import Submitted
from forebay_producer.settings import ProducerSettings

__all__ = [
    "NotDeliveredError",
    "OutcomeTimeoutError",
    "PastDeadlineError",
    "Producer",
    "ProducerClosedError",
    "ProducerError",
    "ProducerSettings",
    "QueueFullError",
    "RecordTooLargeError",
    "Submitted",
]
