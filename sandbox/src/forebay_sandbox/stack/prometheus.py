"""A real Prometheus on this machine that scrapes a stack and evaluates the chart's rules. Starts and ends a process.

It ends with the run whose token it carries. Its data is in a folder of the caller.
"""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode, urlsplit

from forebay_sandbox.engine.process import call, end_process
from forebay_sandbox.errors import SandboxError
from forebay_sandbox.kafka.local import free_port
from forebay_sandbox.kafka.spec import HOST
from forebay_sandbox.process import RunRecord, Watchdog, clean_up_after_crashed_runs, new_token, token_option

if TYPE_CHECKING:
    from collections.abc import Iterator

START_SECONDS_MAX: Final = 60
_LOG_LINES: Final = 15
_SECONDS_OF: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class PrometheusError(SandboxError):
    """Prometheus ended, did not answer in time, or refused a query. The message ends with its own error."""

    reason = "prometheus_failed"


class LocalPrometheus:
    """A running Prometheus."""

    def __init__(self, *, url: str) -> None:
        self.url = url

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The instant vector of now: each element's `metric` (its labels) and `value`. Raises ``PrometheusError``."""
        result: list[dict[str, Any]] = self._get("query", query=expr)["result"]
        return result

    def firing(self) -> list[dict[str, Any]]:
        """The alerts that fire now, with `labels` and `annotations`."""
        return [alert for alert in self._get("alerts")["alerts"] if alert["state"] == "firing"]

    def targets_up(self) -> dict[str, bool]:
        """Each target's host:port, and whether its last scrape worked."""
        active = self._get("targets", state="active")["activeTargets"]
        return {target["labels"]["instance"]: target["health"] == "up" for target in active}

    def ready(self) -> bool:
        try:
            return call(self.url, "GET", "/-/ready")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def _get(self, what: str, **parameters: object) -> dict[str, Any]:
        status, content = call(self.url, "GET", f"/api/v1/{what}?{urlencode(parameters)}")
        document: dict[str, Any] = json.loads(content)
        if status != 200:
            raise PrometheusError(f"{document.get('error')}: {parameters.get('query', what)}")
        data: dict[str, Any] = document["data"]
        return data


@contextmanager
def running_prometheus(
    *,
    binary: Path,
    jobs: Mapping[str, Sequence[str]],
    rules: str,
    folder: Path,
    scrape_seconds: float = 1.0,
) -> Iterator[LocalPrometheus]:
    """Scrapes the host:port of each job and evaluates ``rules`` (a rule file's text), every ``scrape_seconds``.

    Writes to ``folder``, its log to prometheus.log. Ends with the block, or with this process, even after kill -9.
    Raises ``PrometheusError``.
    """
    clean_up_after_crashed_runs()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rules.yaml").write_text(rules, encoding="utf-8")
    (folder / "prometheus.json").write_text(_configuration(jobs, scrape_seconds=scrape_seconds), encoding="utf-8")
    port = free_port()
    token = new_token()
    watchdog = Watchdog(RunRecord.of_this_process(token=token, folders_to_delete=()))
    log_path = folder / "prometheus.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            # The token is argv[0], as Prometheus refuses unknown flags.
            [
                token_option(token),
                f"--config.file={folder / 'prometheus.json'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={HOST}:{port}",
            ],
            executable=binary,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        prometheus = LocalPrometheus(url=f"http://{HOST}:{port}")
        _wait_until_ready(prometheus, process, log_path)
        yield prometheus
    finally:
        end_process(process)
        watchdog.close()


def jobs_of(*, workers: Sequence[str], exporter: str) -> dict[str, list[str]]:
    """The scrape jobs for a stack with these URLs."""
    return {
        "forebay-worker": [urlsplit(url).netloc for url in workers],
        "forebay-exporter": [urlsplit(exporter).netloc],
    }


def in_quick_time(rules: str, *, factor: float) -> str:
    """The rule file with every window and `for` divided by ``factor``, for runs of minutes. Pure.

    Names (`:rate5m`) and thresholds stay.
    """

    def shorter(match: re.Match[str]) -> str:
        milliseconds = round(1000 * int(match["number"]) * _SECONDS_OF[match["unit"]] / factor)
        return f"{match['before']}{milliseconds}ms{match['after']}"

    text = re.sub(r"(?P<before>\[)(?P<number>\d+)(?P<unit>[smhd])(?P<after>\])", shorter, rules)
    return re.sub(
        r"(?P<before>\b(keep_firing_)?for: )(?P<number>\d+)(?P<unit>[smh])(?P<after>)$",
        shorter,
        text,
        flags=re.MULTILINE,
    )


def _configuration(jobs: Mapping[str, Sequence[str]], *, scrape_seconds: float) -> str:
    # JSON is YAML too.
    every = f"{round(1000 * scrape_seconds)}ms"
    return json.dumps(
        {
            "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [
                {"job_name": name, "static_configs": [{"targets": list(targets)}]} for name, targets in jobs.items()
            ],
        }
    )


def _wait_until_ready(prometheus: LocalPrometheus, process: subprocess.Popen[bytes], log_path: Path) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while not prometheus.ready():
        if process.poll() is not None or time.monotonic() > deadline:
            tail = "\n".join(log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:])
            raise PrometheusError(f"Prometheus at {prometheus.url} is not ready:\n{tail}")
        time.sleep(0.1)
