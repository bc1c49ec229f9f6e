"""`forebay-worker doctor`: checks whether a worker with these settings would work here, and if not, why. All checks run
within 20 s: those of Kafka and of the registry on threads, the others beside them."""

from __future__ import annotations

import asyncio

from forebay_schemas.doctor.findings import Finding
from forebay_schemas.doctor.kafka import KafkaDoctor
from forebay_schemas.doctor.needs import Role
from forebay_schemas.doctor.registry import check_registry
from forebay_worker.doctor.backend import backend_findings, check_metrics
from forebay_worker.doctor.gpu import check_gpu
from forebay_worker.doctor.handler import check_handler
from forebay_worker.doctor.host import host_findings, read_host_limits
from forebay_worker.doctor.settings import settings_findings
from forebay_worker.settings import WorkerSettings


async def examine(settings: WorkerSettings, *, model: str | None) -> list[Finding]:
    """All findings. ``model``: the model to ask the backend for; None: the first that it lists.

    Raises ``UsageError`` for a properties file that cannot be used.
    """
    kafka = KafkaDoctor(
        settings.connection(), pool=settings.pool_topics(), role=Role.WORKER, tier_times=settings.tier_times()
    )
    of_kafka, of_registry, of_backend, of_gpu = await asyncio.gather(
        asyncio.to_thread(kafka.run),
        asyncio.to_thread(check_registry, settings.schema_registry()),
        _of_backend(settings, model=model),
        check_gpu(settings),
    )
    return [
        *settings_findings(settings),
        *of_kafka,
        of_registry,
        *of_backend,
        of_gpu,
        *host_findings(read_host_limits(), settings),
    ]


async def _of_backend(settings: WorkerSettings, *, model: str | None) -> list[Finding]:
    if settings.handler is None:
        return await backend_findings(settings, model=model)
    return [await check_handler(settings.handler), await check_metrics(settings)]
