"""Checks that the backend answers a real request, and that its metrics can be used. HTTP, within a time limit; the
verdicts on answers are pure, in `answers`."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Final

import aiohttp
import msgspec
from yarl import URL

from forebay_schemas.doctor.findings import Finding, failed, ok, skipped, warning
from forebay_worker.answers.endpoints import shape_of
from forebay_worker.answers.judge import AnswerReader
from forebay_worker.answers.verdict import Failed, Verdict
from forebay_worker.doctor.answers import BACKEND, Answered, Call, answer_finding, calls_for, next_is_worth_it
from forebay_worker.execution.answer_body import ANSWER_LIMITS, read_answer, read_at_most
from forebay_worker.execution.http_failure import location_shown
from forebay_worker.settings import WorkerSettings
from forebay_worker.signals.connection_errors import connection_words
from forebay_worker.signals.engine_metrics import engine_name, read_engine_metrics
from forebay_worker.signals.fetch import fetch
from forebay_worker.signals.readings import SignalError
from forebay_worker.wiring.signals import metrics_url

METRICS: Final = "backend.metrics"
ALL_SECONDS: Final = 12.0
CONNECT_SECONDS: Final = 4.0
MODELS_SECONDS: Final = 3.0
BODY_BYTES_MAX: Final = 1024 * 1024


async def backend_findings(settings: WorkerSettings, *, model: str | None) -> list[Finding]:
    """A request for one token, as a worker would send it, and the metrics page. ``model``: the model to name; None: the
    first that the backend lists."""
    backend, is_reached = await _check_backend(settings, model=model)
    if not is_reached and settings.metrics_url is None:
        return [backend, skipped(METRICS, f"needs {BACKEND}")]
    return [backend, await check_metrics(settings)]


async def _check_backend(settings: WorkerSettings, *, model: str | None) -> tuple[Finding, bool]:
    """Checks the backend. The second value: whether it answered at all."""
    assert settings.backend_url is not None
    end = time.monotonic() + ALL_SECONDS
    base = URL(settings.backend_url.rstrip("/"))
    secret = settings.read_backend_key() or ""
    headers = {"authorization": f"Bearer {secret}"} if secret else {}
    connect_seconds = min(CONNECT_SECONDS, settings.backend_connect_seconds)
    timeout = aiohttp.ClientTimeout(total=ALL_SECONDS, sock_connect=connect_seconds)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
        try:
            models = await _models(session, base)
            wanted = model or (models[0] if models else None)
            return (await _ask(session, base, settings, model=wanted, models=models, secret=secret, end=end), True)
        except (aiohttp.ClientError, aiohttp.http_exceptions.HttpProcessingError, OSError, ValueError) as error:
            finding = connection_finding(error, url=_shown(base), connect_seconds=connect_seconds, secret=secret)
            return finding, False


def connection_finding(error: Exception, *, url: str, connect_seconds: float, secret: str) -> Finding:
    """The reason for a missing answer. Pure."""
    said = _hidden(connection_words(error), secret)
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        fix = "trust its authority (SSL_CERT_FILE), or use the name that its certificate is for"
        return failed(BACKEND, f"{url}: {said}", fix=fix)
    if isinstance(error, aiohttp.ClientSSLError):
        fix = "is that port one for https? else write http:// in FOREBAY_BACKEND_URL"
        return failed(BACKEND, f"{url}: {said}", fix=fix)
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        fix = "check the host in FOREBAY_BACKEND_URL and this machine's DNS"
        return failed(BACKEND, f"{url}: {said}", fix=fix)
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        fix = "check FOREBAY_BACKEND_URL, firewalls and network policies"
        return failed(BACKEND, f"{url}: no connection within {connect_seconds:g} s", fix=fix)
    if isinstance(error, TimeoutError):
        fix = "it hangs, is overloaded or still loads its model; look at its log"
        return failed(BACKEND, f"{url}: connected, but no answer within {ALL_SECONDS:g} s", fix=fix)
    if isinstance(error, aiohttp.ClientConnectorError):
        fix = "start the backend, or correct host and port in FOREBAY_BACKEND_URL"
        return failed(BACKEND, f"{url}: {said}", fix=fix)
    fix = "is it an HTTP server? if it speaks TLS, write https:// in FOREBAY_BACKEND_URL"
    return failed(BACKEND, f"{url}: what answers is no HTTP ({said})", fix=fix)


async def check_metrics(settings: WorkerSettings) -> Finding:
    """Checks that the engine's own metrics can be read, and names the engine."""
    url = metrics_url(settings)
    if url is None:
        return skipped(METRICS, "a handler has none, unless FOREBAY_METRICS_URL says where")
    fix = "set FOREBAY_METRICS_URL to the engine's own /metrics; without it pacing goes by latencies alone"
    try:
        async with aiohttp.ClientSession() as session:
            page = (await fetch(session, URL(url))).body.decode(errors="replace")
        reading = read_engine_metrics(page, at=0.0, prefix=settings.metrics_prefix)
    except SignalError as error:
        return warning(METRICS, _hidden(str(error), settings.read_backend_key() or ""), fix=fix)
    told = ", ".join(
        f"{field.removesuffix('_requests')} {value:g}"
        for field, value in (
            ("running_requests", reading.running_requests),
            ("waiting_requests", reading.waiting_requests),
            ("KV cache used", reading.kv_used_share),
        )
        if value is not None
    )
    return ok(METRICS, f"{engine_name(page, prefix=settings.metrics_prefix)}: {told or 'counters only'}")


async def _models(session: aiohttp.ClientSession, base: URL) -> list[str]:
    """The models that the backend lists, if any."""
    try:
        timeout = aiohttp.ClientTimeout(total=MODELS_SECONDS, sock_connect=session.timeout.sock_connect)
        async with session.get(base / "v1/models", timeout=timeout, allow_redirects=False) as response:
            said: Any = msgspec.json.decode(await read_at_most(response, BODY_BYTES_MAX))
            return [str(one["id"]) for one in said["data"]]
    except aiohttp.ConnectionTimeoutError:
        raise
    except (TimeoutError, msgspec.MsgspecError, LookupError, TypeError, UnicodeDecodeError):
        return []


async def _ask(
    session: aiohttp.ClientSession,
    base: URL,
    settings: WorkerSettings,
    *,
    model: str | None,
    models: list[str],
    secret: str,
    end: float,
) -> Finding:
    """The finding of the first call after which no other path is worth a try; without one that of the first call."""
    first: Finding | None = None
    for call in calls_for(settings.all_biz_paths, model):
        answered = await _post(session, base, call, secret=secret, end=end)
        finding = answer_finding(answered, call, url=_shown(base), models=models, has_key=bool(secret))
        if first is None:
            first = finding
        if not next_is_worth_it(answered):
            return finding
    assert first is not None
    return first


async def _post(session: aiohttp.ClientSession, base: URL, call: Call, *, secret: str, end: float) -> Answered:
    timeout = aiohttp.ClientTimeout(total=max(0.1, end - time.monotonic()), sock_connect=session.timeout.sock_connect)
    started = time.monotonic()
    url = base.with_path(base.path.rstrip("/") + call.path)
    async with session.post(url, json=call.payload, timeout=timeout, allow_redirects=False) as response:
        reader = AnswerReader(
            shape=shape_of(call.path),
            status=response.status,
            content_type=response.content_type,
            limits=ANSWER_LIMITS,
        )
        verdict = await read_answer(response, reader)
        location = response.headers.get("location")
        return Answered(
            status=response.status,
            verdict=_without(secret, verdict),
            seconds=time.monotonic() - started,
            location=None if location is None else location_shown(location),
        )


def _without(secret: str, verdict: Verdict) -> Verdict:
    """Removes the key, which a server may repeat when it refuses it."""
    return replace(verdict, message=_hidden(verdict.message, secret)) if isinstance(verdict, Failed) else verdict


def _shown(url: URL) -> str:
    """The URL without any password in it."""
    return str(url.with_user(None))


def _hidden(text: str, secret: str) -> str:
    return text.replace(secret, "[hidden]") if secret else text
