"""The list of all metrics of the client library and of `forebay exporter`.

Each also has the label ``pool``. Labels have few values: tiers and reasons, never a tenant, a model or a request.
"""

from __future__ import annotations

from typing import Final

from forebay_producer.errors import (
    AdmissionRefusedError,
    NotDeliveredError,
    PastDeadlineError,
    ProducerClosedError,
    QueueFullError,
    RecordTooLargeError,
)
from forebay_schemas.errors import (
    AuthenticationFailedError,
    BrokerUnreachableError,
    DeniedError,
    EnvelopeError,
    KafkaFailedError,
    TlsFailedError,
    TopicMissingError,
    UsageError,
)
from forebay_schemas.formats.schema_registry import SchemaRegistryRefusedError, SchemaRegistryUnreachableError
from forebay_schemas.kafka.certificates import LABEL as CERTIFICATE_LABEL
from forebay_schemas.kafka.certificates import MEANING as CERTIFICATE_ENDS_MEANING
from forebay_schemas.kafka.certificates import METRIC as CERTIFICATE_ENDS
from forebay_schemas.runtime.metrics import counter, gauge, histogram

EXPORTER_METRICS: Final = (
    gauge("forebay_backlog_records", "Requests that are not finished: waiting or being worked on", "tier"),
    gauge("forebay_retry_backlog_records", "Failed requests that wait to be tried again", "tier"),
    gauge("forebay_oldest_age_seconds", "Age of the oldest request that is not finished; 0 without any", "tier"),
    gauge("forebay_oldest_age_ratio", "Age of the oldest by the time its own deadline gave it, 100 at most", "tier"),
    counter("forebay_enqueued_total", "Requests that were written, since the topics were made", "tier"),
    counter("forebay_dequeued_total", "Requests that the workers have done with", "tier"),
    gauge("forebay_partitions", "Partitions of the tier's topic: as many workers can share it at most", "tier"),
    gauge("forebay_backlog_wait_seconds", "Until a new request would start; +Inf without a worker", "tier"),
    gauge("forebay_allowed_wait_seconds", "How long one may wait, as its workers say", "tier"),
    gauge("forebay_tier_deadline_seconds", "The deadline of requests that name none, as its workers say", "tier"),
    gauge("forebay_deadline_risk_ratio", "The wait of a new request by the allowed one, 100 at most", "tier"),
    counter("forebay_dead_lettered_total", "Dead letters that were written, since the topic was made"),
    gauge("forebay_workers", "Workers that were heard within 15 s"),
    gauge("forebay_differing_workers", "Those of them with other tier deadlines or waits than the one started last"),
    gauge("forebay_pool_limit_requests", "How many requests they may have in flight, all together"),
    gauge("forebay_pool_rate", "Requests a second that they can serve at their limits; none before the first answer"),
    gauge(CERTIFICATE_ENDS, CERTIFICATE_ENDS_MEANING, CERTIFICATE_LABEL),
    gauge("forebay_exporter_up", "1 while the pool can be read, and was within 30 s"),
    gauge("forebay_exporter_age_seconds", "Age of the last reading; none before the first"),
)

LIBRARY_METRICS: Final = (
    counter("forebay_submitted_total", "Requests that the brokers acknowledged", "tier"),
    counter("forebay_submit_failures_total", "Requests that were refused or not acknowledged", "reason"),
    counter("forebay_admitted_total", "Requests that admission let pass; 0 without it", "tier"),
    counter("forebay_admission_refusals_total", "Requests that admission refused; they were not sent", "reason"),
    histogram("forebay_submit_seconds", "From handing it to the Kafka client to the brokers' acknowledgement", "tier"),
    counter("forebay_outcomes_received_total", "Outcomes that callers were given", "status"),
    counter("forebay_outcome_timeouts_total", "Waits for outcomes that ended without"),
    gauge("forebay_outcome_waits", "Callers that wait for outcomes now"),
)

SUBMIT_FAILURE_REASONS: Final = tuple(
    each.reason
    for each in (
        AdmissionRefusedError,
        UsageError,
        EnvelopeError,
        PastDeadlineError,
        RecordTooLargeError,
        TopicMissingError,
        QueueFullError,
        BrokerUnreachableError,
        KafkaFailedError,
        AuthenticationFailedError,
        TlsFailedError,
        DeniedError,
        NotDeliveredError,
        ProducerClosedError,
        SchemaRegistryUnreachableError,
        SchemaRegistryRefusedError,
    )
)
"""The reason codes of the errors that a submit can raise."""
