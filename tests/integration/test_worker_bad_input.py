"""Settings that cannot work: one line that names the field and the fix, the right exit code, never a traceback."""

from __future__ import annotations

import socket
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from harness.live_pool import LivePool
from harness.worker_process import Ended, run_worker_command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay_sandbox.kafka.access import KafkaAccess

BACKEND = {"FOREBAY_BACKEND_URL": "http://127.0.0.1:9"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """``named``: what the line must contain. ``kafka``: whether it gets as far as the broker, and finds it."""

    exit_code: int
    named: tuple[str, ...]
    settings: dict[str, str] = field(default_factory=dict)
    kafka: bool = False


CASES = {
    "unknown-variable": Case(
        exit_code=2,
        settings={**BACKEND, "FOREBAY_LIMIT_MAXX": "3"},
        named=("FOREBAY_LIMIT_MAXX", "is no setting", "FOREBAY_LIMIT_MAX?"),
    ),
    "url-without-scheme": Case(
        exit_code=2,
        settings={"FOREBAY_BACKEND_URL": "127.0.0.1:8000"},
        named=("FOREBAY_BACKEND_URL", "127.0.0.1:8000", "http://127.0.0.1:8000"),
    ),
    "no-backend": Case(exit_code=2, named=("FOREBAY_BACKEND_URL", "FOREBAY_HANDLER", "both missing")),
    "backend-and-handler": Case(
        exit_code=2,
        settings={**BACKEND, "FOREBAY_HANDLER": "json:dumps"},
        named=("FOREBAY_BACKEND_URL", "FOREBAY_HANDLER", "both set"),
    ),
    "handler-no-module": Case(
        exit_code=2, settings={"FOREBAY_HANDLER": "no_such_module:run"}, named=("FOREBAY_HANDLER", "no_such_module")
    ),
    "handler-not-async": Case(
        exit_code=2, settings={"FOREBAY_HANDLER": "json:dumps"}, named=("FOREBAY_HANDLER", "json:dumps", "async")
    ),
    "unreachable-broker": Case(
        exit_code=3,
        settings={**BACKEND, "FOREBAY_BOOTSTRAP_SERVERS": "127.0.0.1:1", "FOREBAY_KAFKA_WAIT_SECONDS": "0"},
        named=("127.0.0.1:1", "FOREBAY_BOOTSTRAP_SERVERS"),
    ),
    "missing-topics": Case(
        exit_code=1,
        settings={**BACKEND, "FOREBAY_POOL": "never-made"},
        named=(
            "forebay.never-made.requests.high",
            "forebay.never-made.results",
            "forebay.never-made.dead-letter",
            "forebay topics create --pool never-made",
        ),
        kafka=True,
    ),
    "port-taken": Case(exit_code=2, settings=BACKEND, named=("FOREBAY_OPS_PORT", "free port"), kafka=True),
}


@pytest.fixture(scope="module")
def endings(kafka: KafkaAccess) -> Iterator[dict[str, Future[Ended]]]:
    """All of them run side by side: starting Python is most of the time."""
    pool = LivePool(kafka)
    with ThreadPoolExecutor(4) as executor, socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])

        def start(name: str, case: Case) -> Future[Ended]:
            settings = {"FOREBAY_POOL": pool.name} if case.kafka else {}
            if case.kafka:
                settings["FOREBAY_BOOTSTRAP_SERVERS"] = kafka.bootstrap_servers
            if name == "port-taken":
                settings["FOREBAY_OPS_PORT"] = port
            return executor.submit(run_worker_command, settings | case.settings)

        # The one that waits for ten seconds for a broker goes first.
        order = sorted(CASES, key=lambda name: name != "unreachable-broker")
        yield {name: start(name, CASES[name]) for name in order}
    pool.close()


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_setting_ends_in_one_line(endings: dict[str, Future[Ended]], name: str) -> None:
    case = CASES[name]
    ended = endings[name].result()
    assert ended.exit_code == case.exit_code, ended.stderr
    assert ended.stdout == ""
    [line] = ended.stderr.splitlines()
    assert line.startswith("error: ")
    for word in case.named:
        assert word in line


def test_an_unknown_flag_is_a_usage_error() -> None:
    ended = run_worker_command({}, "--limit-maximum", "3")
    assert ended.exit_code == 2
    assert "--limit-maximum" in ended.stderr
    assert "Traceback" not in ended.stderr
