"""`forebay-sandbox engine`: runs the simulated engine until SIGTERM or Ctrl-C; its URL is the first line on stdout."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated

import typer

from forebay_sandbox.engine.physics import EnginePhysics
from forebay_schemas.clock import SystemClock
from forebay_schemas.errors import ExitCode

DEFAULT_MODEL = "qwen2.5-72b"
_PHYSICS = EnginePhysics()


def add_engine_command(app: typer.Typer) -> None:
    """Add the command `engine` to the sandbox's commands."""
    app.command(name="engine")(_engine)


def _engine(
    *,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 picks a free one.")] = 8000,
    control_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="A second port for /sandbox/*; its URL is the second line.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help=f"A model it serves; may be repeated. [{DEFAULT_MODEL}]")
    ] = None,
    a_seconds: Annotated[float, typer.Option(help="Each step takes at least this long.")] = _PHYSICS.a_seconds,
    b_seconds: Annotated[float, typer.Option(help="More for each decoding sequence.")] = _PHYSICS.b_seconds,
    c_seconds: Annotated[float, typer.Option(help="More for each prompt token prefilled.")] = _PHYSICS.c_seconds,
    prefill_chunk_tokens: Annotated[
        int, typer.Option(help="Prompt tokens prefilled in one step.")
    ] = _PHYSICS.prefill_chunk_tokens,
    max_num_seqs: Annotated[int, typer.Option(help="Requests in the batch.")] = _PHYSICS.max_num_seqs,
    kv_tokens: Annotated[int, typer.Option(help="Tokens that the KV cache holds.")] = _PHYSICS.kv_tokens,
    own_queue_max: Annotated[int, typer.Option(help="Requests that wait; beyond: 503.")] = _PHYSICS.own_queue_max,
    speed: Annotated[float, typer.Option(help="How many times as fast as all that.")] = 1.0,
    log: Annotated[Path | None, typer.Option(help="Append what became of each request, as JSON lines.")] = None,
    seed: Annotated[int, typer.Option(help="For faults with a probability.")] = 0,
    with_parent: Annotated[bool, typer.Option("--with-parent", help="Exit when standard input ends.")] = False,
) -> None:
    """Simulate an inference engine: OpenAI's API over the physics of continuous batching, with faults to order."""
    try:
        physics = EnginePhysics(
            a_seconds=a_seconds,
            b_seconds=b_seconds,
            c_seconds=c_seconds,
            prefill_chunk_tokens=prefill_chunk_tokens,
            max_num_seqs=max_num_seqs,
            kv_tokens=kv_tokens,
            own_queue_max=own_queue_max,
        ).sped_up(speed)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if with_parent:
        from forebay_sandbox.parent import exit_with_parent

        exit_with_parent()
    try:
        asyncio.run(
            _serve(
                physics=physics,
                models=model or [DEFAULT_MODEL],
                host=host,
                port=port,
                control_port=control_port,
                seed=seed,
                log_path=log,
            )
        )
    except OSError as error:
        typer.echo(f"the engine cannot start: {error}", err=True)
        raise typer.Exit(ExitCode.FAILED) from None


async def _serve(
    *,
    physics: EnginePhysics,
    models: list[str],
    host: str,
    port: int,
    control_port: int | None,
    seed: int,
    log_path: Path | None,
) -> None:
    from forebay_sandbox.engine.server import EngineServer

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = EngineServer(
        physics=physics,
        models=models,
        clock=SystemClock(),
        host=host,
        port=port,
        control_port=control_port,
        seed=seed,
        log_path=log_path,
    )
    async with server as engine:
        typer.echo(engine.url)
        if control_port is not None:
            typer.echo(engine.control_url)
        await stop.wait()


def main() -> None:
    """`python -m forebay_sandbox.engine.cli`: the command by itself."""
    app = typer.Typer(add_completion=False)
    add_engine_command(app)
    app()


if __name__ == "__main__":
    main()
