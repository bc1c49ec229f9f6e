"""The public names of `forebay_producer`, which imports this module on first use."""

from importlib.metadata import version

from forebay_producer.client.client import Handle, Producer
from forebay_producer.client.control_client import ControlAnswer
from forebay_producer.client.metrics import ProducerMetrics
from forebay_producer.client.sender import Submitted
from forebay_producer.errors import (
    NotDeliveredError,
    OutcomeTimeoutError,
    PastDeadlineError,
    ProducerClosedError,
    ProducerError,
    QueueFullError,
    RecordTooLargeError,
)
from forebay_producer.settings import ProducerSettings
from forebay_schemas.contract.control import ControlAction, ControlOutcome
from forebay_schemas.contract.envelope import Request
from forebay_schemas.contract.reasons import Reason, Status
from forebay_schemas.contract.results import Result
from forebay_schemas.errors import (
    BrokerUnreachableError,
    EnvelopeError,
    ForebayError,
    KafkaFailedError,
    TopicMissingError,
    UsageError,
)

__version__ = version("forebay-producer")

__all__ = [
    "BrokerUnreachableError",
    "ControlAction",
    "ControlAnswer",
    "ControlOutcome",
    "EnvelopeError",
    "ForebayError",
    "Handle",
    "KafkaFailedError",
    "NotDeliveredError",
    "OutcomeTimeoutError",
    "PastDeadlineError",
    "Producer",
    "ProducerClosedError",
    "ProducerError",
    "ProducerMetrics",
    "ProducerSettings",
    "QueueFullError",
    "Reason",
    "RecordTooLargeError",
    "Request",
    "Result",
    "Status",
    "Submitted",
    "TopicMissingError",
    "UsageError",
    "__version__",
]
