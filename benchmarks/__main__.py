"""`python -m benchmarks`: starts a broker, measures, ends with a table (stderr) and one JSON object (stdout).

Exit status 1: a promise is broken, or a measurement could not be made. Writes build/bench.json.
"""

from __future__ import annotations

import argparse
import json
import logging
import secrets
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from confluent_kafka import KafkaException
from rich.console import Console

from benchmarks.clients import measure_clients
from benchmarks.cluster import Cluster
from benchmarks.controls import measure_controls
from benchmarks.dead_letters import measure_dead_letters
from benchmarks.imports import measure_imports
from benchmarks.latency import BLOCK_REQUESTS, measure_latency
from benchmarks.memory import measure_memory
from benchmarks.metrics import measure_metrics
from benchmarks.outcomes import measure_outcomes
from benchmarks.programs import ROOT
from benchmarks.report import Findings
from benchmarks.streams import measure_streams
from benchmarks.throughput import measure_throughput
from forebay_sandbox.kafka.local import running_kafka
from forebay_schemas.errors import ExitCode, ForebayError

PARTS = (
    "throughput",
    "latency",
    "memory",
    "dead-letters",
    "metrics",
    "controls",
    "outcomes",
    "streams",
    "clients",
    "imports",
)
LIST_ROUNDS = 3
OUTPUT = ROOT / "build" / "bench.json"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", choices=PARTS, help="measure just this")
    parser.add_argument("--records", type=_positive, default=100_000, help="records of a throughput run")
    parser.add_argument("--rounds", type=_positive, default=5, help="throughput runs on either side")
    parser.add_argument("--blocks", type=_positive, default=10, help=f"blocks of {BLOCK_REQUESTS} round trips each way")
    parser.add_argument("--waiting", type=_positive, default=1_000_000, help="records waiting while memory is watched")
    parser.add_argument("--letters", type=_positive, default=300_000, help="dead letters that are listed")
    parser.add_argument("--cancels", type=_positive, default=1_000_000, help="cancels that a worker starts before")
    parser.add_argument("--theirs", type=_positive, default=200_000, help="results of others that a client passes over")
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def _measure(cluster: Cluster, given: argparse.Namespace, *, logs: Path, say: Callable[[str], None]) -> Findings:
    def wanted(part: str) -> bool:
        return given.only in (None, part)

    def pool(part: str) -> str:
        return f"bench-{tag}-{part}"

    tag = secrets.token_hex(4)
    throughput = latency = memory = dead_letters = metrics = controls = outcomes = streams = clients = None
    if wanted("throughput") or wanted("metrics"):
        throughput = measure_throughput(
            cluster, pool_name=pool("throughput"), records=given.records, rounds=given.rounds, logs=logs, say=say
        )
    if wanted("latency"):
        latency = measure_latency(cluster, pool_name=pool("latency"), blocks=given.blocks, logs=logs, say=say)
    if wanted("memory"):
        memory = measure_memory(cluster, pool_name=pool("memory"), records=given.waiting, logs=logs, say=say)
    if wanted("dead-letters"):
        dead_letters = measure_dead_letters(
            cluster, pool_name=pool("letters"), letters=given.letters, rounds=LIST_ROUNDS, logs=logs, say=say
        )
    if wanted("metrics"):
        assert throughput is not None
        metrics = measure_metrics(
            cluster,
            pool_name=pool("metrics"),
            full_speed=throughput.worker,
            logs=logs,
            say=say,
        )
    if wanted("controls"):
        controls = measure_controls(cluster, pool_name=pool("controls"), cancels=given.cancels, logs=logs, say=say)
    if wanted("outcomes"):
        outcomes = measure_outcomes(cluster, pool_name=pool("outcomes"), theirs=given.theirs, logs=logs, say=say)
    if wanted("streams"):
        streams = measure_streams(cluster, pool_name=pool("streams"), logs=logs, say=say)
    if wanted("clients"):
        clients = measure_clients(cluster, pool_name=pool("clients"), logs=logs, say=say)
    return Findings(
        throughput=throughput,
        latency=latency,
        memory=memory,
        dead_letters=dead_letters,
        metrics=metrics,
        controls=controls,
        outcomes=outcomes,
        streams=streams,
        clients=clients,
        imports=measure_imports(say=say) if wanted("imports") else None,
    )


def _on_kafka(given: argparse.Namespace, *, say: Callable[[str], None]) -> Findings:
    say("starting Kafka")
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as logs, running_kafka() as kafka:
        cluster = Cluster(kafka)
        try:
            return _measure(cluster, given, logs=Path(logs), say=say)
        finally:
            cluster.delete_all()


def _stop(_signal: int, _frame: FrameType | None) -> None:
    # As an exception it passes the blocks that end the child processes.
    raise SystemExit(ExitCode.FAILED)


def main(arguments: Sequence[str] | None = None) -> ExitCode:
    given = _parse(arguments)
    signal.signal(signal.SIGTERM, _stop)
    # A broker that has just started refuses for a moment, and the clients warn of that; what matters is raised.
    logging.getLogger("forebay.librdkafka").setLevel(logging.ERROR)
    console = Console(stderr=True)

    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    try:
        findings = Findings(imports=measure_imports(say=say)) if given.only == "imports" else _on_kafka(given, say=say)
    except ForebayError as error:
        say(f"bench: {error}")
        return error.exit_code
    except KafkaException as error:
        say(f"bench: Kafka refused: {error.args[0].str()}")
        return ExitCode.FAILED
    console.print(findings.as_table())
    broken = findings.broken_promises()
    for sentence in broken:
        say(f"BROKEN: {sentence}")
    found = json.dumps(findings.as_json())
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(found + "\n")
    print(found)
    return ExitCode.FAILED if broken else ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
