"""Shared by all commands of `forebay`: common options, settings, output and errors.

Answers go to stdout, everything else to stderr.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Concatenate, Final, ParamSpec, get_type_hints

import msgspec
import typer
from confluent_kafka import KafkaException
from rich.console import Console
from rich.table import Table

from forebay_producer.client.codecs import make_envelope_reader
from forebay_producer.settings import ProducerSettings
from forebay_schemas.clock import SystemClock
from forebay_schemas.contract.topics import Pool
from forebay_schemas.errors import ForebayError
from forebay_schemas.formats.envelope_reader import EnvelopeReader
from forebay_schemas.kafka.connection import KafkaConnection
from forebay_schemas.kafka.errors import as_forebay_error
from forebay_schemas.kafka.permissions import Operation, on_topic
from forebay_schemas.runtime.log import configure_logging
from forebay_schemas.runtime.output import Output
from forebay_schemas.runtime.settings import load_settings
from forebay_schemas.runtime.terminal import printable_json, printable_lines

# Wider than any table: output to a file or pipe is not cut.
_PLAIN_WIDTH: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The common options, resolved. ``typed``: the options as typed, for commands that are suggested to the user."""

    settings: ProducerSettings
    connection: KafkaConnection
    pool: Pool
    envelopes: EnvelopeReader
    output: Output
    typed: tuple[str, ...] = ()


_CommandOptions = ParamSpec("_CommandOptions")

_COMMON: Final[Mapping[str, Any]] = {
    "bootstrap_servers": Annotated[
        str | None, typer.Option(help="Kafka brokers, host:port, comma-separated. [FOREBAY_BOOTSTRAP_SERVERS]")
    ],
    "pool": Annotated[str | None, typer.Option(help="The pool of workers. [FOREBAY_POOL]")],
    "kafka_properties": Annotated[
        Path | None,
        typer.Option(help="A file of librdkafka properties: TLS, SASL, anything. [FOREBAY_KAFKA_PROPERTIES]"),
    ],
    "config": Annotated[
        Path | None, typer.Option(help="A TOML file of settings. Options override variables, which override the file.")
    ],
    "log_level": Annotated[
        str | None, typer.Option(help="debug, info, warning or error. [default: warning] [FOREBAY_LOG_LEVEL]")
    ],
}


def command(
    app: typer.Typer, name: str, *, output: Output | None = Output.TABLE
) -> Callable[[Callable[Concatenate[Session, _CommandOptions], None]], Callable[..., None]]:
    """Registers a command with its own options and the common ones. Its own options override common ones by name.

    ``output``: the default of --output; None for a command without that option. A parameter whose type is a dataclass
    adds one option per field, so that commands can share options. A ``ForebayError`` is printed as ``error: message``
    and sets the exit code.
    """

    def register(function: Callable[Concatenate[Session, _CommandOptions], None]) -> Callable[..., None]:
        hints = get_type_hints(function, include_extras=True)
        own = list(inspect.signature(function).parameters.values())[1:]
        common = {name: option for name, option in _COMMON.items() if all(name != each.name for each in own)}
        blocks = {each.name: hints[each.name] for each in own if dataclasses.is_dataclass(hints[each.name])}

        @functools.wraps(function)
        def run(*arguments: Any, **options: Any) -> None:
            flags = {option: options.pop(option) for option in common}
            chosen = options.pop("output", Output.JSON)
            for option, block in blocks.items():
                options[option] = block(**{field.name: options.pop(field.name) for field in dataclasses.fields(block)})
            try:
                session = _open_session(flags, output=chosen)
                try:
                    function(session, *arguments, **options)
                except KafkaException as error:
                    # poll() raises when a client can never send: without write permission it gets no producer id.
                    needs = on_topic(Operation.WRITE, f"forebay.{session.pool.name}.*")
                    raise as_forebay_error(
                        error.args[0], connection=session.connection, doing=name, needs=needs
                    ) from None
                sys.stdout.flush()
            except ForebayError as error:
                say(f"error: {error}")
                raise typer.Exit(error.exit_code) from None

        annotations: dict[str, Any] = {}
        defaults: dict[str, Any] = {}
        for parameter in own:
            if (block := blocks.get(parameter.name)) is not None:
                annotations |= get_type_hints(block, include_extras=True)
                defaults |= {field.name: field.default for field in dataclasses.fields(block)}
            else:
                annotations[parameter.name] = hints[parameter.name]
                defaults[parameter.name] = parameter.default
        annotations |= common
        defaults |= dict.fromkeys(common)
        if output is not None:
            annotations["output"] = Annotated[Output, typer.Option(help="How to print.")]
            defaults["output"] = output
        run.__annotations__ = annotations | {"return": None}
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                inspect.Parameter(
                    option, inspect.Parameter.KEYWORD_ONLY, default=defaults[option], annotation=annotation
                )
                for option, annotation in annotations.items()
            ]
        )
        return app.command(name)(run)

    return register


def _open_session(flags: dict[str, Any], *, output: Output) -> Session:
    given = [(name, value) for name, value in flags.items() if value is not None and name != "log_level"]
    typed = tuple(word for name, value in given for word in (f"--{name.replace('_', '-')}", str(value)))
    config = flags.pop("config")
    settings = load_settings(ProducerSettings, flags=flags, config=config)
    configure_logging(level=settings.log_level, service="forebay")
    if settings.log_level in ("warning", "error"):
        # librdkafka's retries are not logged one by one; the final error says what failed.
        logging.getLogger("forebay.librdkafka").setLevel(logging.CRITICAL)
    return Session(
        settings=settings,
        connection=settings.connection(),
        pool=settings.pool_topics(),
        envelopes=make_envelope_reader(settings, clock=SystemClock()),
        output=output,
        typed=typed,
    )


def to_json(value: object) -> str:
    """One line of JSON, printable."""
    return printable_json(msgspec.json.encode(value).decode())


def say(text: str) -> None:
    """Prints lines to stderr. Control characters are escaped, as texts may contain untrusted data."""
    typer.echo(printable_lines(text), err=True)


def suggested(session: Session, *words: str) -> str:
    """A suggested command line: these words and the common options as typed."""
    return shlex.join(["forebay", *words, *session.typed])


def stdout_console() -> Console:
    """A console for tables: coloured and as wide as the terminal, or plain and unbounded."""
    return Console() if sys.stdout.isatty() else Console(width=_PLAIN_WIDTH, no_color=True)


def table(*columns: str, right: frozenset[str] = frozenset()) -> Table:
    """An empty table; columns in ``right`` are aligned to the right."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", no_wrap=True)
    return made
