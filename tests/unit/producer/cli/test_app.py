"""The lists of commands: what they say of each is what the command says itself, and they import none of them."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
import typer

from forebay_producer.cli.app import MODULES
from forebay_producer.cli.app import app as forebay
from forebay_worker.cli import app as forebay_worker


@pytest.mark.parametrize("app", [forebay, forebay_worker], ids=["forebay", "forebay-worker"])
def test_each_summary_is_the_first_paragraph_of_the_commands_help(app: typer.Typer) -> None:
    group = typer.main.get_command(app)
    summaries = {name: lazy.summary for name, lazy in group.lazy.items()}  # type: ignore[attr-defined]
    paragraphs = {
        name: " ".join(inspect.cleandoc(group.commands[name].help).split("\n\n")[0].split())  # type: ignore[attr-defined]
        for name in summaries
    }
    assert summaries
    assert summaries == paragraphs


def test_the_list_of_commands_imports_neither_a_command_nor_a_client() -> None:
    program = (
        "import sys; from forebay_producer.cli.app import main\n"
        "try: main()\n"
        "finally: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program, "--help"], capture_output=True, text=True, check=True)
    assert "submit" in done.stdout
    assert not {"confluent_kafka", "pydantic", "structlog", "prometheus_client", *MODULES.values()} & {
        *done.stderr.split()
    }
