"""`forebay-sandbox kafka up|down|status|tool`. Prints answers on stdout, everything else on stderr."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from forebay_sandbox.kafka import service as kafka_service
from forebay_sandbox.kafka.service import DEFAULT_DATA_DIR, DEFAULT_PORT, State, Status
from forebay_sandbox.kafka.tools import TOOLS, tool_command
from forebay_schemas.errors import ExitCode, UsageError
from forebay_schemas.runtime.output import Output

app = typer.Typer(no_args_is_help=True, help="A real Apache Kafka on 127.0.0.1, for trying and testing.")


DataDir = Annotated[Path, typer.Option("--data-dir", help="Folder of the brokers' data, logs and state.")]
OutputOption = Annotated[Output, typer.Option("--output", help="How the answer is printed.")]


@app.command()
def up(
    *,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65_533, help=f"Port of the first broker; 0 picks free ones. [default: {DEFAULT_PORT}]"),
    ] = None,
    brokers: Annotated[int | None, typer.Option(help="1 or 3. [default: what the data was made for, else 1]")] = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    output: OutputOption = Output.TABLE,
) -> None:
    """Start Kafka unless it runs already, wait until it answers, and leave it running."""
    if brokers not in {None, 1, 3}:
        raise UsageError("--brokers", f"{brokers} is not possible", fix="give 1 or 3")
    status, started = kafka_service.up(data_dir=data_dir, port=port, brokers=brokers)
    typer.echo(f"Kafka {'is up' if started else 'runs already'}; logs and data: {status.data_dir}", err=True)
    if output is Output.JSON:
        typer.echo(json.dumps(asdict(status) | {"started": started}))
    else:
        typer.echo(status.bootstrap_servers)


@app.command()
def down(
    *,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the data as well.")] = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    output: OutputOption = Output.TABLE,
) -> None:
    """Stop what `up` started. The data stays, unless --delete is given."""
    stopped = kafka_service.down(data_dir=data_dir)
    if delete:
        kafka_service.delete(data_dir=data_dir)
    if output is Output.JSON:
        typer.echo(json.dumps({"stopped": stopped, "deleted": delete, "data_dir": str(data_dir.resolve())}))
    else:
        said = "stopped" if stopped else f"was not running; looked in {data_dir.resolve()}, see --data-dir"
        typer.echo(f"{said}{'; data deleted' if delete else ''}")


@app.command()
def status(*, data_dir: DataDir = DEFAULT_DATA_DIR, output: OutputOption = Output.TABLE) -> None:
    """Show the state of Kafka. Exits with 0 if every broker runs and answers, else with 1."""
    found = kafka_service.status(data_dir=data_dir)
    typer.echo(json.dumps(asdict(found)) if output is Output.JSON else _table(found))
    if found.state is State.STOPPED:
        typer.echo(f"looked in {found.data_dir}; where `kafka up` ran elsewhere, give its --data-dir", err=True)
    if found.state is not State.RUNNING:
        raise typer.Exit(ExitCode.FAILED)


def _table(status: Status) -> str:
    rows = {
        "state": status.state.value,
        "bootstrap servers": status.bootstrap_servers or "-",
        "brokers": f"{len(status.pids)} of {status.brokers}",
        "processes": " ".join(map(str, status.pids)) or "-",
        "memory": f"{status.resident_bytes / 2**20:.0f} MiB",
        "data": status.data_dir,
    }
    return "\n".join(f"{name:<18} {value}" for name, value in rows.items())


# Everything after the tool's name goes to the tool, options included.
@app.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
def tool(
    *,
    name: Annotated[
        str, typer.Argument(metavar="TOOL", help=f"One of {', '.join(TOOLS)}; or a main class in Kafka's jars.")
    ],
    args: Annotated[list[str] | None, typer.Argument(metavar="ARGS...", help="Given to the tool as they are.")] = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Run one of Kafka's own console tools, e.g. `kafka tool console-producer --topic T`.

    --bootstrap-server is added when not given: FOREBAY_BOOTSTRAP_SERVERS, else the cluster of --data-dir, else
    127.0.0.1:9092.
    """
    servers = os.environ.get("FOREBAY_BOOTSTRAP_SERVERS") or kafka_service.status(data_dir=data_dir).bootstrap_servers
    command = tool_command(name, args or [], bootstrap_servers=servers or f"127.0.0.1:{DEFAULT_PORT}")
    # The tool replaces this process, so that terminal, signals and exit status are the tool's.
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted
