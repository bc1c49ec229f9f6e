"""The sources of signals that the settings ask for. Pure: nothing is looked at before the poller starts."""

from __future__ import annotations

from forebay_schemas.clock import Clock
from forebay_worker.settings import WorkerSettings
from forebay_worker.signals.gpu_check import device_names
from forebay_worker.signals.gpu_process import Driver, GpuProcess
from forebay_worker.signals.gpu_prometheus import PrometheusGpu
from forebay_worker.signals.poller import EngineMetrics, SignalPoller, Source
from forebay_worker.signals.readings import EngineReading, GpuReading


def make_signals(settings: WorkerSettings, clock: Clock) -> SignalPoller:
    """The poller of what the engine and the GPUs say."""
    return SignalPoller(engine=_engine(settings, clock), gpu=_gpu(settings, clock), clock=clock)


def metrics_url(settings: WorkerSettings) -> str | None:
    """Where the engine tells its metrics; None for a handler of which nothing else is said."""
    if settings.metrics_url is not None:
        return settings.metrics_url
    return None if settings.backend_url is None else settings.backend_url.rstrip("/") + "/metrics"


def _engine(settings: WorkerSettings, clock: Clock) -> Source[EngineReading] | None:
    url = metrics_url(settings)
    return None if url is None else EngineMetrics(url=url, prefix=settings.metrics_prefix, clock=clock)


def _gpu(settings: WorkerSettings, clock: Clock) -> Source[GpuReading] | None:
    match settings.gpu:
        case "none":
            return None
        case "prometheus":
            assert settings.gpu_prometheus_url is not None
            return PrometheusGpu(url=settings.gpu_prometheus_url, query=settings.gpu_prometheus_query, clock=clock)
        case "auto" | "nvml":
            driver = Driver.EXPECTED if settings.gpu == "nvml" else Driver.PERHAPS
            return GpuProcess(devices=device_names(settings.gpu_devices or ""), clock=clock, driver=driver)
