"""`python -m benchmarks.pacing_live`: a real broker, the simulated engine, and workers with default settings, in real
time; a quarter of an hour. Ends with one JSON object (stdout). Exit status 1: a promise is broken. Writes
build/bench-pacing-live.json, with what was seen of engine and workers every half second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from confluent_kafka import KafkaException
from rich.console import Console

from benchmarks.cluster import Cluster
from benchmarks.pacing.bound import bound_requests
from benchmarks.pacing.contestants import OURS, front_of
from benchmarks.pacing.scenarios import pulse, steady
from benchmarks.pacing.scores import score
from benchmarks.pacing.virtual import run as run_virtually
from benchmarks.pacing.workloads import Arrival, Hint, arrivals, physics, workloads
from benchmarks.pacing_live.drive import Act, Drive, Record
from benchmarks.pacing_live.judge import broken_promises, figures_of, recovery_of, rounded, time_ratio
from benchmarks.programs import ROOT, paced_worker
from forebay_sandbox.engine.process import EngineProcess, running_engine
from forebay_sandbox.kafka.local import free_port, running_kafka
from forebay_schemas.errors import ExitCode, ForebayError
from forebay_schemas.runtime.log import configure_logging

SCENARIOS = ("pulse", "code", "conv", "mixed", "slow", "restart")
USUAL = ("pulse", "code", "slow", "restart")
SEED = 1
FAULT_AT_SECONDS, FAULT_ENDS_SECONDS, FAULT_RUN_SECONDS = 60.0, 120.0, 180.0
RESTART_SECONDS = 5.0
RESTART_RUN_SECONDS = 120.0
SLOW_FACTOR = 1 / 0.7
NO_METRICS_URL = "http://127.0.0.1:9/metrics"
OUTPUT = ROOT / "build" / "bench-pacing-live.json"

Say = Callable[[str], None]


class _Engine:
    """The engine, which can be killed and started anew at the same address."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._port = free_port()
        self._process = self._start()
        self.url = self._process.url

    def _start(self) -> EngineProcess:
        return self._stack.enter_context(running_engine(physics=physics(), port=self._port))

    def slow_down(self) -> None:
        self._process.faults({"kind": "slow", "factor": SLOW_FACTOR})

    def speed_up(self) -> None:
        self._process.faults()

    def kill(self) -> None:
        self._process.kill()

    def start_again(self) -> None:
        self._process = self._start()


class _Stage:
    """A cluster on which scenarios are played, each with a pool, an engine and workers of its own."""

    def __init__(self, *, cluster: Cluster, workers: int, metrics_url: str | None, logs: Path, say: Say) -> None:
        self._cluster = cluster
        self._workers = workers
        self._metrics_url = metrics_url
        self._logs = logs
        self._say = say
        self._tag = secrets.token_hex(4)
        self.records: dict[str, Record] = {}

    def play(self, name: str, *, seconds: float | None) -> dict[str, Any]:
        """Its figures."""
        self._say(f"{name}:")
        engine = physics()
        if name == "pulse":
            load = pulse(engine, seed=SEED, **({} if seconds is None else {"seconds": seconds}))
            record = self._drive(name, load.offered, lambda _: [])
            figures = figures_of(record, workers=self._workers).as_json()
            return figures | {"time_ratio": round(time_ratio(record, load.ideal_seconds), 4)}
        if name == "slow":
            offered = [each for each in steady(engine, seed=SEED) if each.at_seconds < FAULT_RUN_SECONDS]
            record = self._drive(
                name,
                offered,
                lambda it: [Act(FAULT_AT_SECONDS, it.slow_down), Act(FAULT_ENDS_SECONDS, it.speed_up)],
            )
            found = recovery_of(
                record, begins=FAULT_AT_SECONDS, ends=FAULT_ENDS_SECONDS, until=FAULT_RUN_SECONDS, engine=engine
            )
            return figures_of(record, workers=self._workers).as_json() | rounded(asdict(found))
        if name == "restart":
            offered = [each for each in steady(engine, seed=SEED) if each.at_seconds < RESTART_RUN_SECONDS]
            back_at = FAULT_AT_SECONDS + RESTART_SECONDS
            record = self._drive(
                name, offered, lambda it: [Act(FAULT_AT_SECONDS, it.kill), Act(back_at, it.start_again)]
            )
            # It serves from when it first answers: its start is not the worker's to shorten.
            serves_at = next(
                (look.at_seconds for look in record.looks if look.at_seconds > back_at and look.engine is not None),
                back_at,
            )
            found = recovery_of(
                record, begins=FAULT_AT_SECONDS, ends=serves_at, until=RESTART_RUN_SECONDS, engine=engine
            )
            return figures_of(record, workers=self._workers).as_json() | rounded(asdict(found))
        return self._trace(name, seconds=seconds or 100.0)

    def _trace(self, name: str, *, seconds: float) -> dict[str, Any]:
        engine = physics()
        whole = arrivals(workloads()[name], hint=Hint.NOISY, seed=SEED)
        offered = [each for each in whole if each.at_seconds < seconds]
        record = self._drive(name, offered, lambda _: [])
        bound = bound_requests(offered, engine)
        figures = figures_of(record, workers=self._workers)
        virtual = score(run_virtually(offered, physics=engine, make_front=front_of(OURS, engine), seed=SEED), bound)
        on_time = figures.on_time_share * figures.offered
        return figures.as_json() | {
            "ratio": round(on_time / sum(bound.values()), 4),
            "virtual_ratio": round(virtual.ratio, 4),
            "virtual_on_time_share": round(virtual.on_time_share, 4),
        }

    def _drive(self, name: str, offered: Sequence[Arrival], make_acts: Callable[[_Engine], Sequence[Act]]) -> Record:
        pool = self._cluster.make_pool(f"bench-{self._tag}-{name}")
        with ExitStack() as stack:
            engine = _Engine(stack)
            urls = [
                stack.enter_context(
                    paced_worker(
                        self._cluster.kafka,
                        pool=pool.name,
                        backend_url=engine.url,
                        metrics_url=self._metrics_url,
                        number=number,
                        logs=self._logs,
                    )
                )
                for number in range(self._workers)
            ]
            drive = Drive(
                kafka=self._cluster.kafka,
                pool=pool,
                offered=offered,
                engine_url=engine.url,
                worker_urls=urls,
                acts=make_acts(engine),
                say=self._say,
            )
            record = self.records[name] = asyncio.run(drive.run())
        return record


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pacing_live", description=__doc__)
    parser.add_argument("--only", choices=SCENARIOS, action="append", help=f"just these; usually {', '.join(USUAL)}")
    parser.add_argument("--workers", type=int, choices=range(1, 9), default=1, help="before the one engine")
    parser.add_argument("--seconds", type=float, help="of a trace (100); of the pulse and the valley before it (60)")
    parser.add_argument("--blind", action="store_true", help="the workers do not find the engine's metrics")
    parser.add_argument("--logs", type=Path, help="where the workers' logs are kept")
    return parser.parse_args(arguments)


def _stop(_signal: int, _frame: FrameType | None) -> None:
    # As an exception it passes the blocks that end the child processes.
    raise SystemExit(ExitCode.FAILED)


def main(arguments: Sequence[str] | None = None) -> ExitCode:
    """Runs the benchmark; returns the exit status."""
    given = _parse(arguments)
    signal.signal(signal.SIGTERM, _stop)
    configure_logging(level="error", service="bench-pacing-live")
    console = Console(stderr=True)

    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    found: dict[str, dict[str, Any]] = {}
    try:
        say("starting Kafka")
        with tempfile.TemporaryDirectory(prefix="forebay-bench-") as temporary, running_kafka() as kafka:
            logs = given.logs or Path(temporary)
            logs.mkdir(parents=True, exist_ok=True)
            cluster = Cluster(kafka)
            stage = _Stage(
                cluster=cluster,
                workers=given.workers,
                metrics_url=NO_METRICS_URL if given.blind else None,
                logs=logs,
                say=say,
            )
            try:
                for name in given.only or USUAL:
                    found[name] = stage.play(name, seconds=given.seconds)
                    say(json.dumps(found[name]))
            finally:
                cluster.delete_all()
    except ForebayError as error:
        say(f"bench: {error}")
        return error.exit_code
    except KafkaException as error:
        say(f"bench: Kafka refused: {error.args[0].str()}")
        return ExitCode.FAILED
    broken = broken_promises(found)
    for sentence in broken:
        say(f"BROKEN: {sentence}")
    OUTPUT.parent.mkdir(exist_ok=True)
    looks = {name: [asdict(look) for look in record.looks] for name, record in stage.records.items()}
    OUTPUT.write_text(json.dumps({"figures": found, "looks": looks}) + "\n", encoding="utf-8")
    print(json.dumps(found))
    return ExitCode.FAILED if broken else ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
