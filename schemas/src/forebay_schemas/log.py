"""Logs: structlog on standard error, JSON unless it is a terminal. Payloads are never logged."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor


def configure_logging(*, level: str, service: str) -> None:
    """Sets up structlog and Python's logging (librdkafka and aiohttp use it) for the whole process, all its threads.

    ``level`` is debug, info, warning or error. Every line has ``event``, ``level``, ``logger``, ``service`` and
    ``timestamp`` (ISO 8601, UTC); an exception becomes the text ``exception``.
    """

    # A context variable would not do: a new thread starts without any.
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
        # Its default, where rich is installed, prints the local variables as well: payloads among them.
        tail.append(structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback))
    else:
        tail += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=tail))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
