"""Logs: structlog on standard error, JSON unless it is a terminal. Payloads are never logged."""

from __future__ import annotations

import logging
import sys
from contextvars import ContextVar
from io import StringIO
from typing import TYPE_CHECKING, Final, Protocol, TextIO

import structlog

from forebay_schemas.contract.trace_context import parse_traceparent
from forebay_schemas.runtime.terminal import printable, printable_lines

if TYPE_CHECKING:
    from structlog.typing import EventDict, ExcInfo, Processor


class BelongsToTrace(Protocol):
    """The subject of log lines."""

    @property
    def traceparent(self) -> str | None:
        """Its trace, as in the header."""
        ...


spoken_of: Final[ContextVar[BelongsToTrace | None]] = ContextVar("forebay_spoken_of", default=None)
"""The subject of the present task: its log lines, and those of a user's handler, get the ids of that trace."""


def configure_logging(*, level: str, service: str) -> None:
    """Sets up structlog and Python's logging (librdkafka and aiohttp use it) for the whole process, all its threads.

    ``level`` is debug, info, warning or error. Every line has ``event``, ``level``, ``logger``, ``service`` and
    ``timestamp`` (ISO 8601, UTC); an exception becomes the text ``exception``. A line about a request that belongs to a
    trace (``traceparent=`` of the line, or `spoken_of`) also has ``trace_id`` and ``span_id``.
    """

    # A context variable does not work: a new thread starts without any.
    def name_service(_logger: object, _method: str, event: EventDict) -> EventDict:
        event.setdefault("service", service)
        return event

    terminal = sys.stderr.isatty()
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        name_service,
        _add_trace_ids,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    tail: list[Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if terminal:
        # Where rich is installed, the default also prints local variables, payloads among them.
        tail += [_make_printable, structlog.dev.ConsoleRenderer(exception_formatter=_printable_traceback)]
    else:
        tail += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=tail))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def _make_printable(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Texts of brokers, engines and clients appear in some lines, and must not control the terminal."""
    for name, value in event.items():
        if name != "exc_info" and not isinstance(value, bool | int | float | None):
            event[name] = printable(str(value))
    return event


def _printable_traceback(out: TextIO, exc_info: ExcInfo) -> None:
    text = StringIO()
    structlog.dev.plain_traceback(text, exc_info)
    out.write(printable_lines(text.getvalue()))


def _add_trace_ids(_logger: object, _method: str, event: EventDict) -> EventDict:
    text = event.pop("traceparent", None)
    if text is None and (subject := spoken_of.get()) is not None:
        text = subject.traceparent
    found = parse_traceparent(text)
    if found is not None:
        event["trace_id"], event["span_id"] = found.trace_id, found.span_id
    return event
