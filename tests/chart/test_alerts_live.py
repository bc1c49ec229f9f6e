"""The chart's rules and dashboards in a real Prometheus that scrapes real workers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from chart.panels import FILES, expressions_in, with_all_chosen
from chart.rendered import CHART
from forebay_producer import Producer
from forebay_sandbox.engine.process import call
from forebay_sandbox.kafka.access import KafkaAccess
from forebay_sandbox.process import RunRecord, Watchdog, new_token
from forebay_sandbox.stack import incident
from forebay_sandbox.stack.prometheus import LocalPrometheus, in_quick_time, jobs_of, running_prometheus
from forebay_sandbox.stack.stack import MODEL, Launcher, Part, Stack
from harness.waiting import wait_until

RULES = CHART / "rules" / "forebay.yaml"

FASTER = 30.0
"""Five minutes become ten seconds."""

PER_SECOND = 6.0

TTL_MS = 120_000
"""Long enough that all end late and none is dropped for it: the alert on dropped ones is another."""


class Watched(NamedTuple):
    """A scraped process."""

    stack: Stack
    exporter: Part


@pytest.fixture
def watched(kafka: KafkaAccess, tmp_path: Path) -> Iterator[Watched]:
    """The parts of `make up`, in a pool of their own."""
    token = new_token()
    watchdog = Watchdog(RunRecord.of_this_process(token=token, folders_to_delete=()))
    parts: list[Part] = []
    try:
        launcher = Launcher(token=token, folder=tmp_path / "stack", log_dir=tmp_path / "logs")
        stack = launcher.start(kafka=kafka, pool=f"watched-{token[:8]}", engines=("engine",))
        parts += stack.parts
        exporter = launcher.start_exporter(kafka=kafka, pool=stack.pool)
        parts.append(exporter)
        yield Watched(stack, exporter)
    finally:
        watchdog.close()
        for part in parts:
            part.process.wait()


@contextmanager
def prometheus_beside(watched: Watched, *, binary: Path, folder: Path) -> Iterator[LocalPrometheus]:
    """Scrapes the stack each second; its rules are the chart's, their windows and `for` a thirtieth as long."""
    rules = in_quick_time(RULES.read_text(encoding="utf-8"), factor=FASTER)
    jobs = jobs_of(workers=[worker.url for worker in watched.stack.workers], exporter=watched.exporter.url)
    with running_prometheus(binary=binary, jobs=jobs, rules=rules, folder=folder) as prometheus:
        wait_until("all targets are up", lambda: all(prometheus.targets_up().values()))
        yield prometheus


@contextmanager
def high_requests(stack: Stack) -> Iterator[None]:
    """Somebody asks a few times a second, in high, and goes on asking however long it takes."""
    asked_enough = threading.Event()

    def ask() -> None:
        payload = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 20}
        with Producer(bootstrap_servers=stack.kafka.bootstrap_servers, pool=stack.pool) as producer:
            while not asked_enough.wait(1 / PER_SECOND):
                producer.submit(
                    {"biz_type": "chat_completion", "priority": "high", "ttl_ms": TTL_MS, "payload": payload}
                )

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield
    finally:
        asked_enough.set()
        asking.join()


def firing(prometheus: LocalPrometheus) -> dict[str, Any] | None:
    """The core alert, if it fires."""
    core = {"alertname": "ForebayEndToEndSlow", "severity": "page", "promise": "wait"}
    return next((alert for alert in prometheus.firing() if core.items() <= alert["labels"].items()), None)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_core_alert_fires_while_the_engine_is_slow_and_clears_when_it_is_well(
    watched: Watched, prometheus: Path, tmp_path: Path
) -> None:
    stack = watched.stack
    engine = stack.engines[0].url
    with prometheus_beside(watched, binary=prometheus, folder=tmp_path / "prometheus") as watch, high_requests(stack):
        p95 = 'forebay:queue_seconds:p95{tier="high"}'
        wait_until("requests end in time", lambda: watch.query(f"{p95} > 0 and {p95} < 3"))
        assert firing(watch) is None

        slow_at = time.monotonic()
        slow = {"faults": [{"kind": "slow", "factor": 30}]}
        assert call(engine, "PUT", "/sandbox/faults", slow)[0] < 300
        alert = wait_until("the alert fires", lambda: firing(watch), seconds=120)
        assert alert is not None
        assert time.monotonic() - slow_at > 300 / FASTER, "it fired before the time of its `for`"
        assert alert["labels"]["pool"] == stack.pool
        assert alert["labels"]["tier"] == "high"
        assert alert["annotations"]["summary"].startswith(f"{stack.pool}: 1 of 20 high requests waits for ")
        assert alert["annotations"]["runbook_url"] == "docs/runbooks/ForebayEndToEndSlow.md"

        assert call(engine, "DELETE", "/sandbox/faults")[0] < 300
        wait_until("the alert clears", lambda: firing(watch) is None, seconds=120)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_every_panel_shows_something_of_a_running_stack(watched: Watched, prometheus: Path, tmp_path: Path) -> None:
    stack = watched.stack
    # There is no GPU here, and nothing of Kubernetes.
    absent = ("forebay_gpu_utilisation_ratio", "forebay_gpu_memory_used_ratio", "forebay_gpu_age", "kube_pod_")
    expressions = {expr for path in FILES for expr in expressions_in(path)}
    empty = {expr for expr in expressions if not any(metric in expr for metric in absent)}
    with prometheus_beside(watched, binary=prometheus, folder=tmp_path / "prometheus") as watch, high_requests(stack):
        deadline = time.monotonic() + 120
        while empty and time.monotonic() < deadline:
            # Again and again: a rate of dead letters shows only when there are more than before.
            incident.break_out(stack.engines[0].url, stack.kafka, pool_name=stack.pool, letters=30)
            empty -= {expr for expr in empty if watch.query(with_all_chosen(expr, rate_interval="15s"))}
            time.sleep(1)
    assert sorted(empty) == []
