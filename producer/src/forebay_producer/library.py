"""The public names of `forebay_producer`, which imports this module on first use."""

from importlib.metadata import version

from forebay_producer.admission.admission import Admission
from forebay_producer.admission.decision import AdmissionPolicy, RefusalReason, WithoutWorkers
from forebay_producer.client.async_client import AsyncHandle, AsyncProducer
from forebay_producer.client.client import Producer
from forebay_producer.client.control_client import ControlAnswer
from forebay_producer.client.handle import Handle
from forebay_producer.client.metrics import ProducerMetrics
from forebay_producer.client.reply_stream import AnswerEvent, ReplyStream
from forebay_producer.client.sender import Submitted
from forebay_producer.errors import (
    AdmissionRefusedError,
    NotDeliveredError,
    OutcomeTimeoutError,
    PastDeadlineError,
    ProducerClosedError,
    ProducerError,
    QueueFullError,
    RecordTooLargeError,
    StreamDiffersError,
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
    "Admission",
    "AdmissionPolicy",
    "AdmissionRefusedError",
    "AnswerEvent",
    "AsyncHandle",
    "AsyncProducer",
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
    "RefusalReason",
    "ReplyStream",
    "Request",
    "Result",
    "Status",
    "StreamDiffersError",
    "Submitted",
    "TopicMissingError",
    "UsageError",
    "WithoutWorkers",
    "__version__",
]
